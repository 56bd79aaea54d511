"""git: which sub-commands only read, and what the others would lose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...agent.effects import Effect, EffectKind
from ..base import holds_git_credentials, is_secret
from .folders import exists
from .gitrepo import common_dir_of, git_dir_of, read_index, tracked, untrusted
from .site import Field, Site
from .usage import Check, Meaning, Parsed, Row

_COMMON_DIFF = (
    "-p -u -s -U: -w -b -M? -C? -D -B? -R -a -W -z -l: -S: -G: -O- --patch --no-patch --unified: "
    "--raw --stat? --numstat --shortstat --dirstat? --summary --name-only --name-status "
    "--patch-with-stat --compact-summary --no-ext-diff --no-textconv --color? --no-color "
    "--color-words? --word-diff? --word-diff-regex: --color-moved? --no-renames --find-renames? "
    "--find-copies? --diff-filter: --pickaxe-regex --pickaxe-all --relative? --text "
    "--ignore-all-space --ignore-space-change --ignore-blank-lines --ignore-space-at-eol "
    "--ignore-cr-at-eol --function-context --inter-hunk-context: --abbrev? --full-index --binary "
    "--exit-code --quiet --check --minimal --patience --histogram --diff-algorithm: "
    "--ignore-submodules? --src-prefix: --dst-prefix: --no-prefix --line-prefix: --cc -c -m "
    "--no-indent-heuristic --indent-heuristic --irreversible-delete --no-color-moved "
).replace("-O- ", "")

_COMMON_LOG = (
    "-n: -# -i -E -F -g -L: -q --max-count: --skip: --since: --after: --until: --before: "
    "--author: --committer: --grep: --all-match --invert-grep --regexp-ignore-case "
    "--extended-regexp --fixed-strings --perl-regexp --merges --no-merges --first-parent --all "
    "--branches? --tags? --remotes? --glob: --exclude: --reflog --walk-reflogs --cherry-pick "
    "--cherry-mark --cherry --left-right --left-only --right-only --oneline --graph --no-graph "
    "--decorate? --no-decorate --decorate-refs: --source --format: --pretty? --date: "
    "--relative-date --reverse --topo-order --date-order --author-date-order --follow "
    "--full-history --simplify-merges --simplify-by-decoration --ancestry-path --boundary "
    "--abbrev-commit --no-abbrev-commit --no-notes --notes? --encoding: --parents --children "
    "--show-pulls --min-parents: --max-parents: --log-size --no-walk? --stdin- "
    "--use-mailmap --mailmap --no-mailmap --not --count --timestamp --dense --sparse "
).replace("--stdin- ", "")


def _formats(parsed: Parsed) -> str | None:
    """Formats that verify signatures run gpg."""
    for value in parsed.values("--format --pretty"):
        if value.text is None or "%G" in value.text or "signature" in value.text:
            return "a format that runs gpg"
    return None


def _revisions(parsed: Parsed, site: Site) -> Iterable[Effect]:
    """Operands are revisions or paths: those that could be paths count as such."""
    for value in parsed.values("-L"):
        path = (value.text or "").rpartition(":")[2]
        if is_secret(path):
            yield Effect(kind=EffectKind.SECRET, path=path)
    for operand in parsed.operands:
        text = operand.text
        if text is None:
            yield from site.read(operand)
            continue
        for path in text.split(":")[1:]:
            if path and not path.startswith(("/", ":")) and site.inside(path):
                yield Effect(kind=EffectKind.READ, path=_in_tree(path, site), below=True)
            if is_secret(path):
                yield Effect(kind=EffectKind.SECRET, path=path, detail=f"as of {text}")
        if text.startswith(":"):
            magic = re.sub(r"^:(?:\([^)]*\)|[!^/]*)", "", text)
            if is_secret(magic):
                yield Effect(kind=EffectKind.SECRET, path=magic)
            continue
        where = site.locate(text)
        looks_outside = text.startswith(("/", "~")) or ".." in text.split("/")
        if where is None or looks_outside or exists(where.path) or is_secret(text):
            yield from site.read(operand)


_PATCH = (
    "-p -u -U -c -m --cc -W --patch --unified --patch-with-stat --binary --function-context "
    "--color-words --word-diff"
)
_NO_PATCH = (
    "-s --no-patch --stat --shortstat --numstat --dirstat --summary --compact-summary --raw "
    "--name-only --name-status --quiet --check"
)


def _patch(parsed: Parsed, site: Site) -> Iterable[Effect]:
    """For commands that show a patch unless told otherwise: what it shows without naming it."""
    blobs = [o for o in parsed.operands if re.search(r"^[^/].*:|^:[^/]", o.text or "")]
    only_blobs = bool(blobs) and len(blobs) == len(parsed.operands)
    if not only_blobs and (parsed.has(_PATCH) or not parsed.has(_NO_PATCH)):
        yield from _in_patch(parsed, site)
    yield from _revisions(parsed, site)


def _patch_if_asked(parsed: Parsed, site: Site) -> Iterable[Effect]:
    """The same for commands that show one only when asked."""
    if parsed.has(_PATCH):
        yield from _in_patch(parsed, site)
    yield from _revisions(parsed, site)


def _stash(parsed: Parsed, site: Site) -> Iterable[Effect]:
    show = parsed.leading == "show"
    return _patch(parsed, site) if show else _patch_if_asked(parsed, site)


def _in_patch(parsed: Parsed, site: Site) -> Iterable[Effect]:
    """What a patch reads: the named paths, or all, and the secrets of the index there."""
    found = tracked(site.cwd) if site.cwd is not None else None
    if found is None:
        detail = "which tracked files a patch shows cannot be known"
        yield Effect(kind=EffectKind.SECRET, detail=detail)
        return
    work_tree, names = found
    # Without `--` git itself refuses a word that is both a revision and a path.
    paths = parsed.operands[parsed.before_dashes or (1 if parsed.leading == "show" else 0) :]
    where = [site.locate(o.text) for o in paths if o.text]
    named = [w.path for w in where if w is not None and exists(w.path)]
    for path in named or [work_tree]:
        place = site.locate(str(path))
        whole = place.name if place is not None and place.inside else "."
        yield Effect(kind=EffectKind.READ, path=whole, below=True, detail="as git has it")
    for name in filter(is_secret, names):
        path = work_tree / name
        if not named or any(n == path or n in path.parents for n in named):
            place = site.locate(str(path))
            detail = "tracked, so a patch may show it"
            yield Effect(kind=EffectKind.SECRET, path=place.name if place else name, detail=detail)


def _in_tree(path: str, site: Site) -> str:
    """A path of a revision, relative to the root: it starts at the top of the work tree, but for
    `./` and `../`."""
    around = (site.cwd, *site.cwd.parents) if site.cwd is not None else ()
    top = next((folder for folder in around if exists(folder / ".git")), None)
    start = top if top is not None and not path.startswith(".") else site.cwd
    place = site.locate(str(start / path)) if start is not None else None
    return place.name if place is not None else path


def _addresses(_parsed: Parsed, site: Site) -> Iterable[Effect]:
    """Addresses of remotes may hold a password."""
    around = (site.cwd, *site.cwd.parents) if site.cwd is not None else ()
    work_tree = next((folder for folder in around if exists(folder / ".git")), None)
    git_dir = git_dir_of(work_tree) if work_tree is not None else None
    if git_dir is not None and holds_git_credentials(common_dir_of(git_dir) / "config"):
        detail = "an address with a password"
        yield Effect(kind=EffectKind.SECRET, path=".git/config", detail=detail)


def _grep_tree(parsed: Parsed, site: Site) -> Iterable[Effect]:
    """`git grep` reads tracked files below the paths, or below this folder."""
    first = 0 if parsed.has("-e") else 1
    paths = [o for o in parsed.operands[first:] if o.text and site.inside(o.text)]
    existing = [o for o in paths if (w := site.locate(o.text or "")) and exists(w.path)]
    yield from _revisions(Parsed(operands=parsed.operands[first:]), site)
    index = b"" if parsed.has("--untracked") or site.cwd is None else read_index(site.cwd)
    for path in existing or [Field(".", ".")]:
        for effect in site.tree(path):
            name = (effect.path or "").rpartition("/")[2].encode() + b"\0"
            if effect.kind is not EffectKind.SECRET or not index or name in index:
                yield effect


def _list_check(names: str) -> Check:
    """Operands are patterns only with these options; else they name what to create."""

    def check(parsed: Parsed) -> str | None:
        if parsed.operands and not parsed.has(names):
            return "it creates or changes a reference"
        return _formats(parsed)

    return check


def _verb(*verbs: str) -> Check:
    """The first operand is a verb that only reads."""

    def check(parsed: Parsed) -> str | None:
        return None if parsed.leading in verbs else "it changes the repository"

    return check


_CONFIG_SAFE = re.compile(
    r"(?i)(user\.(name|email)|core\.\w+|branch\..*|init\.\w+|pull\.\w+|push\.\w+|merge\.\w+|"
    r"diff\.\w+|remote\.[^.]+\.(url|fetch))"
)


def _config_check(parsed: Parsed) -> str | None:
    operands = [o.text for o in parsed.operands]
    if operands[:1] == ["get"]:
        operands = operands[1:]
    elif not parsed.has("--get --get-all") and len(operands) != 1:
        return "it changes git's settings"
    if len(operands) != 1 or operands[0] is None or not _CONFIG_SAFE.fullmatch(operands[0]):
        return "settings may hold tokens"
    return None


def _show_ref(parsed: Parsed) -> str | None:
    return "it changes a reference" if len(parsed.operands) != 1 else None


READS: tuple[Row, ...] = (
    Row("status", "-s -b -v -u? -z --short --branch --verbose --porcelain? --long "
        "--untracked-files? --ignored? --ignore-submodules? --column? --no-column --ahead-behind "
        "--no-ahead-behind --renames --no-renames --show-stash", "text*", also=_revisions,
        yes=("git status", "git status -sb", "git status --porcelain src"),
        no=("git status --unknown",)),
    Row("diff", _COMMON_DIFF + "--cached --staged --merge-base --no-index", "text*", also=_patch,
        yes=("git diff", "git diff HEAD~1 -- src", "git diff --stat main...HEAD", "git diff --cached"),
        no=("git diff --ext-diff", "git diff --output=x", "git diff --no-index /etc/passwd README.md",
            "git diff -O/etc/x", "git diff --textconv", "git diff --ext", "git diff --submodule=diff",
            "git diff /etc/passwd README.md", "git diff -o x")),
    Row("log whatchanged", _COMMON_LOG + _COMMON_DIFF, "text*", also=_patch_if_asked, check=_formats,
        yes=("git log --oneline -20", "git log -p src", "git log --format='%h %s' -n 5",
             "git log main..HEAD --stat", "git log -S foo -- src/a.py"),
        no=("git log --output=x", "git log --ext-diff -p", "git log --format=%G?", "git log --outpu=x",
            "git log --show-signature", "git log -- /etc", "git log --textconv", "git log -p .env")),
    Row("show", _COMMON_LOG + _COMMON_DIFF, "text*", also=_patch, check=_formats,
        yes=("git show HEAD", "git show HEAD:README.md", "git show --stat HEAD~2"),
        no=("git show --output=x", "git show --ext-diff", "git show HEAD:.env", "git show --textconv")),
    Row("shortlog", _COMMON_LOG + "-n -s -e -w? --summary --numbered --email --group:", "text*",
        also=_revisions, check=_formats, yes=("git shortlog -sn HEAD",), no=("git shortlog --output=x",)),
    Row("blame annotate", "-L: -l -t -s -f -n -w -M? -C? -e -b -c -p --show-name --show-number "
        "--show-email --porcelain --line-porcelain --since: --date: --abbrev: --root --first-parent",
        "text*", also=_revisions, yes=("git blame -L 1,5 README.md",),
        no=("git blame --contents /etc/passwd README.md", "git blame -S x README.md")),
    Row("ls-files", "-c -d -m -o -i -s -u -k -z -t -v -f -x: --cached --deleted --modified --others "
        "--ignored --stage --unmerged --killed --exclude: --exclude-standard --directory --full-name "
        "--error-unmatch --abbrev? --eol --deduplicate --no-empty-directory", "text*", also=_revisions,
        yes=("git ls-files", "git ls-files '*.py'", "git ls-files -co --exclude-standard"),
        no=("git ls-files -X /etc/passwd", "git ls-files --exclude-from=/etc/x",
            "git ls-files --recurse-submodules")),
    Row("ls-tree", "-d -r -t -l -z --long --name-only --name-status --full-name --full-tree --abbrev? "
        "--object-only", "text*", also=_revisions, yes=("git ls-tree -r HEAD --name-only",),
        no=("git ls-tree --unknown HEAD",)),
    Row("rev-parse", "--abbrev-ref? --short? --verify --quiet -q --symbolic --symbolic-full-name --all "
        "--branches? --tags? --remotes? --show-toplevel --show-prefix --show-cdup --git-dir "
        "--git-common-dir --absolute-git-dir --is-inside-work-tree --is-inside-git-dir "
        "--is-bare-repository --is-shallow-repository --git-path: --show-superproject-working-tree "
        "--show-object-format", "text*", also=_revisions,
        yes=("git rev-parse HEAD", "git rev-parse --abbrev-ref HEAD", "git rev-parse --show-toplevel"),
        no=("git rev-parse --parseopt", "git rev-parse --unknown")),
    Row("rev-list", _COMMON_LOG + "--objects --disk-usage? --no-object-names", "text*",
        also=_revisions, check=_formats, yes=("git rev-list --count HEAD",),
        no=("git rev-list --stdin", "git rev-list --use-bitmap-index --x HEAD")),
    Row("describe", "--all --tags --contains --abbrev: --candidates: --exact-match --long --match: "
        "--exclude: --always --first-parent", "text*", also=_revisions,
        yes=("git describe --tags --always",), no=("git describe --dirty", "git describe --broken")),
    Row("branch", "-a -r -v -l -i -q --all --remotes --verbose --list --show-current --merged? "
        "--no-merged? --contains? --no-contains? --points-at: --sort: --format: --color? --no-color "
        "--column? --no-column --abbrev? --no-abbrev --ignore-case", "text*",
        check=_list_check("-l --list --merged --no-merged --contains --no-contains --points-at"),
        yes=("git branch", "git branch -a", "git branch --show-current", "git branch --list 'f*'",
             "git branch -vv"),
        no=("git branch new", "git branch -D main", "git branch -m a b", "git branch -f main HEAD~1",
            "git branch -u origin/x", "git branch --edit-description", "git branch -r -d origin/x",
            "git branch --format=%G?")),
    Row("tag", "-l -n? -i --list --sort: --format: --color? --column? --contains? --no-contains? "
        "--merged? --no-merged? --points-at: --ignore-case", "text*",
        check=_list_check("-l --list --contains --no-contains --merged --no-merged --points-at -n"),
        yes=("git tag", "git tag -l 'v*'", "git tag --sort=-creatordate"),
        no=("git tag v1", "git tag -d v1", "git tag -v v1", "git tag -f v1", "git tag -a v1 -m x")),
    Row("remote", "-v --verbose", "text*", also=_addresses,
        check=lambda parsed: _verb("get-url")(parsed) if parsed.operands else None,
        yes=("git remote -v", "git remote", "git remote get-url origin"),
        no=("git remote add x url", "git remote set-url origin x", "git remote show origin",
            "git remote update", "git remote remove origin", "git remote prune origin")),
    Row("stash", _COMMON_LOG + _COMMON_DIFF + "--include-untracked --only-untracked", "text*",
        also=_stash,
        check=lambda parsed: _verb("list", "show")(parsed) or _formats(parsed),
        yes=("git stash list", "git stash show -p"),
        no=("git stash", "git stash pop", "git stash drop", "git stash clear", "git stash -u",
            "git stash list --output=x", "git stash push", "git stash show --ext-diff")),
    Row("reflog", _COMMON_LOG + _COMMON_DIFF, "text*", also=_patch_if_asked, check=lambda parsed: _formats(parsed)
        or (None if not parsed.operands or parsed.operands[0].text not in
            ("expire", "delete", "drop", "write", None) else "it changes the reflog"),
        yes=("git reflog", "git reflog show -n 5"),
        no=("git reflog expire --all", "git reflog delete HEAD@{1}", "git reflog --output=x")),
    Row("config", "--get --get-all --local --global --system --show-origin --show-scope --type: "
        "--bool --int --name-only -z --null --default:", "text*", also=_addresses, check=_config_check,
        yes=("git config user.name", "git config --get remote.origin.url", "git config get core.bare"),
        no=("git config user.name x", "git config --list", "git config -l", "git config -e",
            "git config --unset a.b", "git config alias.x '!id'", "git config core.pager ./e",
            "git config --get http.extraheader", "git config -f /etc/x --get a.b",
            "git config --global user.name x", "git config --get-regexp .")),
    Row("grep", "-i -I -w -v -h -H -n -l -L -z -o -c -p -q -E -G -P -F -W -a -r -e: -A: -B: -C: -m: -# "
        "--cached --untracked --text --ignore-case --word-regexp --invert-match --extended-regexp "
        "--basic-regexp --perl-regexp --fixed-strings --line-number --column --files-with-matches "
        "--name-only --files-without-match --null --only-matching --count --color? --no-color "
        "--break --heading --show-function --function-context --context: --after-context: "
        "--before-context: --max-depth: --max-count: --threads: --and --or --not --all-match --quiet "
        "--full-name --exclude-standard", "text*", also=_grep_tree,
        yes=("git grep -n foo", "git grep foo HEAD -- src", "git grep -e a --and -e b"),
        no=("git grep -O foo", "git grep --open-files-in-pager=./e foo", "git grep -Oless foo",
            "git grep -f /etc/passwd", "git grep --no-index foo /etc", "git grep --textconv foo",
            "git grep --recurse-submodules foo")),
    Row("cat-file", "-t -s -p -e --buffer", "text*", also=_revisions,
        yes=("git cat-file -p HEAD", "git cat-file -t HEAD"),
        no=("git cat-file --textconv HEAD:a", "git cat-file --filters HEAD:a", "git cat-file -p HEAD:.env",
            "git cat-file --batch")),
    Row("merge-base", "-a --all --octopus --independent --is-ancestor --fork-point", "text*",
        yes=("git merge-base main HEAD",), no=("git merge-base --unknown a b",)),
    Row("name-rev", "--tags --refs: --all --name-only --always", "text*",
        yes=("git name-rev HEAD",), no=("git name-rev --stdin",)),
    Row("for-each-ref", "--count: --sort: --format: --points-at: --merged? --no-merged? --contains? "
        "--no-contains? --ignore-case --color?", "text*", check=_formats,
        yes=("git for-each-ref --format='%(refname)' refs/heads",),
        no=("git for-each-ref --stdin", "git for-each-ref --format='%(signature)'")),
    Row("show-ref", "--head --heads --tags --hash? --abbrev? -s? -d --dereference -q --quiet --verify",
        "text*", yes=("git show-ref --heads",), no=("git show-ref --exclude-existing=x",)),
    Row("show-branch", "-r -a --remotes --all --current --topo-order --date-order --sparse "
        "--more: --list --merge-base --no-name --sha1-name", "text*", yes=("git show-branch",),
        no=("git show-branch --unknown",)),
    Row("symbolic-ref", "-q --quiet --short", "text*", check=_show_ref,
        yes=("git symbolic-ref --short HEAD",),
        no=("git symbolic-ref HEAD refs/heads/x", "git symbolic-ref -d HEAD")),
    Row("count-objects", "-v -H --verbose --human-readable", "none", yes=("git count-objects -vH",),
        no=("git count-objects x",)),
    Row("worktree", "-v --verbose --porcelain -z", "text*", check=_verb("list"),
        yes=("git worktree list",), no=("git worktree add ../x", "git worktree remove x")),
    Row("diff-tree", _COMMON_DIFF + "-r -t --root -v --stdin- --no-commit-id --pretty? --format: "
        .replace("--stdin- ", ""), "text*", also=_patch_if_asked, check=_formats,
        yes=("git diff-tree --no-commit-id --name-only -r HEAD",), no=("git diff-tree --ext-diff HEAD",)),
    Row("diff-index diff-files", _COMMON_DIFF + "--cached -q", "text*", also=_patch_if_asked,
        yes=("git diff-index --quiet HEAD --",), no=("git diff-index --output=x HEAD",)),
    Row("cherry", "-v --verbose --abbrev?", "text*", yes=("git cherry -v main",),
        no=("git cherry --unknown",)),
    Row("range-diff", _COMMON_DIFF + "--creation-factor: --left-only --right-only", "text*",
        also=_patch,
        yes=("git range-diff main~2..main HEAD~2..HEAD",), no=("git range-diff --output=x a b",)),
    Row("check-ignore", "-q -v -n -z --quiet --verbose --non-matching --no-index", "text*",
        also=_revisions, yes=("git check-ignore -v build",), no=("git check-ignore --stdin",)),
    Row("check-attr", "-a --all --cached -z", "text*", yes=("git check-attr -a README.md",),
        no=("git check-attr --stdin",)),
    Row("notes", "--ref:", "text*", check=_verb("list", "show"), yes=("git notes list",),
        no=("git notes add -m x", "git notes remove")),
    Row("version", "--build-options", "none", yes=("git version", "git --version"), no=("git version x",)),
    Row("var", "", "text*", check=lambda p: None if [o.text for o in p.operands] in
        (["GIT_AUTHOR_IDENT"], ["GIT_COMMITTER_IDENT"], ["GIT_DEFAULT_BRANCH"]) else "settings",
        yes=("git var GIT_AUTHOR_IDENT",), no=("git var -l",)),
)  # fmt: skip

_ROWS = {name: row for row in READS for name in row.names.split()}

# ---- what would be lost --------------------------------------------------------------------

_NETWORK = frozenset({"fetch", "pull", "push", "clone", "ls-remote", "remote", "submodule",
                      "send-email", "request-pull", "archive"})  # fmt: skip

_GLOBAL = {
    **dict.fromkeys(
        ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--glob-pathspecs",
         "--noglob-pathspecs", "--icase-pathspecs", "--no-replace-objects"), ""),
    "-C": "text",
    "-c": "text",
}  # fmt: skip
_SAFE_SETTINGS = re.compile(
    r"(?i)core\.pager=cat|pager\.\w+=false|"
    r"(?:color\.\w+|core\.quotepath|advice\.\w+|core\.abbrev|log\.date|safe\.directory|"
    r"diff\.(?:renames|context|algorithm|noprefix))(?:=.*)?"
)

YES = ("git -C src log --oneline", "git --no-pager diff", "git -c color.ui=never status")
NO = (
    "git -c alias.x='!id' x", "git -c core.pager=./e log", "git --exec-path=./e log",
    "git --git-dir=/x log", "git --work-tree=/ status", "git -p log", "git -C /etc log",
    "git x", "git", "git --paginate log", "git commit -m x", "git add .", "git push",
    "git log --help",
)  # fmt: skip


def git(words: Sequence[Field], site: Site) -> Meaning:
    """The meaning of `git ...`; its plain form leaves out the global options."""
    doubts: list[str] = []
    effects: list[Effect] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word.text is None:
            return Meaning(tuple(effects), ("a word that may turn out to be an option",))
        if not word.text.startswith("-"):
            break
        position += 1
        if word.text in ("--version", "-v"):
            return Meaning(tuple(effects), tuple(doubts))
        use = _GLOBAL.get(word.text)
        if use is None:
            doubts.append(f"git `{word.text}`")
            if word.text in ("--git-dir", "--work-tree", "--namespace", "--exec-path"):
                position += 1
        elif use == "text":
            value = words[position] if position < len(words) else None
            position += 1
            if value is None or value.text is None:
                doubts.append(f"git `{word.text}` with an unknown value")
                site = replace(site, cwd=None)
            elif word.text == "-C":
                effects.extend(site.look(value))
                where = site.locate(value.text)
                site = replace(site, cwd=where.path if where else None)
            elif not _SAFE_SETTINGS.fullmatch(value.text):
                doubts.append(f"git setting `{value.text}`")
    rest = words[position:]
    if not rest:
        return Meaning(tuple(effects), (*doubts, "no sub-command"))
    name, arguments = rest[0].text or "", rest[1:]
    row = _ROWS.get(name)
    found = row.means(arguments, site) if row else None
    if found is not None:
        effects.extend(found.effects)
    if found is None or found.doubts:
        doubts.extend(found.doubts if found else (f"git {name} is not one that only reads",))
        effects.extend(_more(name, arguments, site))
    elif not doubts and name not in ("version", "config", "var"):
        doubts.extend(_distrust(site))
    plain = (Field("git", "git"), *rest)
    return Meaning(tuple(effects), tuple(doubts), words=plain)


def _distrust(site: Site) -> Iterable[str]:
    """Why git may run programs here, looked up once for each folder."""
    if site.cwd is None:
        return ("its folder is not known",)
    if site.cwd not in site.distrust:
        site.distrust[site.cwd] = untrusted(site.cwd)
    reason = site.distrust[site.cwd]
    return (reason,) if reason else ()


def _more(name: str, words: Sequence[Field], site: Site) -> Iterable[Effect]:
    """What a changing sub-command loses, sends or writes, as far as its words say."""
    texts = [word.text or "" for word in words]
    options = {text.partition("=")[0] for text in texts if text.startswith("-")}
    letters = {c for text in options if re.match(r"-[A-Za-z]", text) for c in text[1:]}
    operands = [text for text in texts if not text.startswith("-")]
    first = operands[0] if operands else ""
    if lost := _lost(name, first, operands, options, letters, texts, site):
        yield Effect(kind=EffectKind.GIT_DESTRUCTIVE, detail=lost)
    remote_verbs = {"remote": ("show", "update", "prune"), "submodule": ("update", "add", "sync")}
    if name == "archive":
        if "--remote" in options:
            yield Effect(kind=EffectKind.NETWORK, detail="git archive --remote")
    elif name in _NETWORK and (name not in remote_verbs or first in remote_verbs[name]):
        yield Effect(kind=EffectKind.NETWORK, target=_target(name, operands))
    if name == "branch" and operands and not letters & set("adDmMcCl"):
        yield Effect(kind=EffectKind.WRITE, path=".git", detail=f"creates branch {first}")
    if name == "config" and "config" not in first and len(operands) > 1:
        yield Effect(kind=EffectKind.WRITE, path=".git/config", detail="changes git's settings")
    for index, word in enumerate(words):
        text = word.text or ""
        value: Field | None = None
        if text.startswith("--output="):
            value = Field(text.partition("=")[2], word.source)
        elif text in ("--output", "-o", "--output-directory") and index + 1 < len(words):
            value = words[index + 1]
        elif text.startswith("-o") and len(text) > 2:
            value = Field(text[2:], word.source)
        if value is not None and name in ("log", "diff", "show", "archive", "format-patch"):
            yield from site.write(value)
    if name == "clone" and operands:
        base = re.sub(r"\.git$", "", operands[0].rstrip("/")).rpartition("/")[2]
        yield from site.write(Field(operands[1] if len(operands) > 1 else base or ".", "clone"))
    if name in ("bundle",) and first == "create" and len(operands) > 1:
        yield from site.write(Field(operands[1], operands[1]))
    if name == "worktree" and first == "add" and len(operands) > 1:
        yield from site.write(Field(operands[1], operands[1]))
    if name in ("rm", "mv"):
        for operand in operands:
            yield from site.delete(Field(operand, operand))


def _target(name: str, operands: Sequence[str]) -> str | None:
    if name in ("remote", "submodule", "send-email", "request-pull"):
        return operands[1] if len(operands) > 1 else None
    return operands[0] if operands else "origin"


def _lost(
    name: str,
    first: str,
    operands: Sequence[str],
    options: set[str],
    letters: set[str],
    texts: Sequence[str],
    site: Site,
) -> str | None:
    """What a sub-command would lose, in words; None if nothing."""
    forced = "--force" in options or "f" in letters
    match name:
        case "reset" if options & {"--hard", "--merge", "--keep"}:
            return "uncommitted changes in tracked files"
        case "clean":
            return None if "n" in letters or "--dry-run" in options else "untracked files"
        case "checkout" | "switch":
            if forced or "--discard-changes" in options:
                return "uncommitted changes in tracked files"
            if letters & set("bBcC") or "--orphan" in options:
                return "the branch's old position" if letters & set("BC") else None
            paths = "--" in texts or any(
                (where := site.locate(o)) is not None and exists(where.path) for o in operands
            )
            return "uncommitted changes in the named paths" if paths else None
        case "restore":
            staged = ("--staged" in options or "S" in letters) and "W" not in letters
            return None if staged else "uncommitted changes in the named paths"
        case "stash" if first in ("drop", "clear"):
            return "stashed changes"
        case "branch" if letters & set("DMCf") or (forced and "d" in letters):
            return "commits that only this branch reaches"
        case "tag" if "d" in letters or forced:
            return "where the tag points"
        case "push" if (
            forced
            or options & {"--force-with-lease", "--mirror", "--delete", "--prune"}
            or "d" in letters
            or any(o.startswith(("+", ":")) for o in operands)
        ):
            return "commits of the remote"
        case "reflog" if first in ("expire", "delete"):
            return "the way back to lost commits"
        case "gc" | "prune" | "repack" if name == "prune" or "--prune" in options:
            return "objects that nothing reaches"
        case "filter-branch" | "filter-repo" | "rebase" | "replace":
            return None if options & {"--abort", "--continue"} else "the branch's history as it is"
        case "update-ref" if "d" in letters or "--stdin" in options:
            return "where the reference points"
        case "worktree" if first in ("remove", "prune"):
            return "the work tree's files"
        case "rm":
            return "the named files" if "--cached" not in options else None
        case "commit" if "--amend" in options:
            return "the last commit as it is"
        case "merge" | "cherry-pick" | "revert" | "am" if "--abort" in options:
            return "the work on conflicts so far"
        case "submodule" if first == "deinit" or forced:
            return "changes in submodules"
        case "checkout-index" | "read-tree" if forced or "u" in letters or "--reset" in options:
            return "uncommitted changes in tracked files"
        case "symbolic-ref" if "d" in letters:
            return "where the reference points"
        case _:
            return None
