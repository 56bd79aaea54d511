"""`git`: look at the history, and commit, without running anything that the repository names."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..agent.context.secrets import is_secret
from ..agent.effects import Effect, EffectKind
from .base import ABSENT, Arguments, Context, Facts, Result, Tool, ToolError, path_effects
from .files import in_thread
from .output import Output, free_path
from .repository import Repository
from .text import plural

NAMES_SECONDS = 1.0
"""Time to find out which files a call would show: nothing else happens meanwhile."""
MOST_FILES = 2_000
"""Most files of one call; each is decided on by its own."""

_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty",
          "--submodule=short")  # fmt: skip
_NAMES = ("--name-only", "--no-renames", "-z")
_LINE = "%h %ad %an%d %s"
_COMMIT_HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit")
_WHOLE = "commit %H%d%nParents: %p%nAuthor: %an <%ae>%nDate:   %ad%n%n%w(0,4,4)%B"


class GitArguments(Arguments):
    """What to look at, or what to commit."""

    action: Literal["status", "diff", "log", "show", "commit"] = Field(
        description="status: what differs from the last commit, by name. diff: how the work tree "
        "differs from `revision`, or the two ends of A..B. log: one line for each commit, newest "
        "first. show: one commit with its changes, or with `file` a file as of it. commit: "
        "`paths` as they are now, new and deleted files included, and nothing else."
    )
    paths: Annotated[
        tuple[str, ...],
        Field(description="Only these files and folders. Default: all; `commit` needs them."),
    ] = ()
    revision: Annotated[
        str,
        Field(description="Commit, tag or branch; for diff and log also A..B or A...B. "
              "Default: HEAD, and the index for diff."),
    ] = ""  # fmt: skip
    file: Annotated[str, Field(description="For show: the file whose content to show.")] = ""
    staged: Annotated[bool, Field(description="For diff: what is staged.")] = False
    summary: Annotated[
        bool, Field(description="For diff, log, show: names and counts of lines, no changes.")
    ] = False
    count: Annotated[int, Field(ge=1, le=1000, description="For log: commits to show.")] = 20
    skip: Annotated[int, Field(ge=0, description="For log: commits to pass over first.")] = 0
    message: Annotated[str, Field(description="For commit: its message.")] = ""

    @model_validator(mode="after")
    def _coherent(self) -> GitArguments:
        if self.action == "commit" and not (self.paths and self.message.strip()):
            raise ValueError("action `commit` needs `paths` and `message`")
        for name, actions in _ONLY.items():
            if self.action not in actions and getattr(self, name) != type(self).model_fields[
                name
            ].get_default():  # fmt: skip
                raise ValueError(f"action `{self.action}` takes no `{name}`")
        if self.file and self.paths:
            raise ValueError("give `file` or `paths`, not both")
        return self


_ONLY = {
    "revision": ("diff", "log", "show"),
    "file": ("show",),
    "staged": ("diff",),
    "summary": ("diff", "log", "show"),
    "count": ("log",),
    "skip": ("log",),
    "message": ("commit",),
}
"""Which actions an argument goes with."""


class Git(Tool[GitArguments]):
    """Look at the repository's history, and commit."""

    name = "git"
    description = (
        "Look at the state and history of the git repository, or commit files. Hooks, filters, "
        "external diff programs and signing are never run. The middle of a long output is cut "
        "and the whole kept in a file. For everything else git can do, use `shell`."
    )
    arguments = GitArguments

    def effects(self, args: GitArguments, facts: Facts) -> tuple[Effect, ...]:
        """Every file whose content would be shown or committed, by its own name."""
        repository = Repository.around(facts.root)
        own = facts.locate(str(repository.git_dir))
        found = [_command(args), Effect(kind=EffectKind.READ, path=".git")]
        if repository.strays:
            found += path_effects(EffectKind.READ, facts.locate(str(repository.common)))
        for path in args.paths:
            _name(path, facts)
            found += path_effects(EffectKind.READ, facts.locate(path))
        match args.action:
            case "commit":
                names = _changed(repository, args.paths, facts)
                found += [
                    _reads(name, "committed", before=_digest(facts.root / name)) for name in names
                ]
                detail = f"commits {plural(len(names), 'file')}"
                found.append(Effect(kind=EffectKind.WRITE, path=own.name, detail=detail))
                if not own.inside:
                    found.append(Effect(kind=EffectKind.OUTSIDE_ROOT, path=own.name))
            case "diff" | "show" if not args.summary:
                names = _shown(repository, args, facts)
                found += [_reads(name, "shown") for name in names]
            case _:
                names = []
                found.append(Effect(kind=EffectKind.READ, path="."))
        found += [Effect(kind=EffectKind.SECRET, path=name) for name in names if is_secret(name)]
        return tuple(dict.fromkeys(found))

    def preview(self, args: GitArguments, facts: Facts) -> str:
        """A commit: its message and what it holds."""
        if args.action != "commit":
            return ""
        repository = Repository.around(facts.root)
        names = _changed(repository, args.paths, facts)
        return "\n".join([args.message.strip(), "", *_status_lines(repository, names)])

    async def run(self, args: GitArguments, context: Context) -> Result:
        granted = sorted(
            effect.path
            for effect in context.granted
            if effect.kind is EffectKind.READ and effect.detail and effect.path
        )
        return await in_thread(lambda stop: _run(args, context, granted, stop))


# --- effects -----------------------------------------------------------------------------------


def _command(args: GitArguments) -> Effect:
    """The command that a rule about git's sub-commands speaks of."""
    words = ("git", args.action, *filter(None, [args.revision]), *args.paths)
    if args.message:
        words = (*words, "-m", args.message)
    return Effect(kind=EffectKind.EXECUTE, command=words, understood=True)


def _reads(name: str, detail: str, *, before: str | None = None) -> Effect:
    """Git follows no link: the name is the file."""
    return Effect(kind=EffectKind.READ, path=name, detail=detail, before=before)


def _name(path: str, facts: Facts) -> str:
    """A path of the model as git takes it: relative to the root, links not followed."""
    facts.locate(path)
    lexical = Path(os.path.normpath(facts.root / path))
    if lexical != facts.root and facts.root not in lexical.parents:
        raise ToolError(
            f"{path} is outside the repository root; git is asked only about what is in it."
        )
    return lexical.relative_to(facts.root).as_posix()


def _digest(path: Path) -> str:
    """Of what a commit would hold."""
    try:
        if path.is_symlink():
            return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, IsADirectoryError):
        return ABSENT
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}.") from error


def _changed(repository: Repository, paths: Sequence[str], facts: Facts) -> list[str]:
    """The files that a commit of these paths would hold. Raises ToolError when there are none."""
    wanted = [_name(path, facts) for path in paths]
    data = repository.output(
        "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all",
        "--ignore-submodules=dirty", "--", *wanted, limit=NAMES_SECONDS,
    )  # fmt: skip
    entries = [entry for entry in os.fsdecode(data).split("\0") if entry]
    for entry in entries:
        if entry[:2] in ("DD", "AU", "UD", "UA", "DU", "AA", "UU"):
            raise ToolError(f"{entry[3:]} has a conflict that is not resolved: resolve it first.")
    if not entries:
        what = ", ".join(wanted)
        raise ToolError(f"Nothing to commit in {what}: unchanged, ignored by git, or not there.")
    return _few(_below(repository, (entry[3:] for entry in entries)))


def _below(repository: Repository, names: Iterable[str]) -> list[str]:
    """Names relative to the root instead of the top of the work tree."""
    prefix = repository.root.relative_to(repository.top).as_posix()
    return [name if prefix == "." else name.removeprefix(f"{prefix}/") for name in names]


def _few(names: list[str]) -> list[str]:
    if len(names) > MOST_FILES:
        raise ToolError(
            f"That is {len(names):,} files, more than {MOST_FILES:,}. Narrow it down with `paths`, "
            "or ask for a `summary`."
        )
    for name in names:
        if any("\ud800" <= c <= "\udfff" for c in name):
            raise ToolError(f"{name!r} is not UTF-8. Use `shell` for such names.")
    return names


def _shown(repository: Repository, args: GitArguments, facts: Facts) -> list[str]:
    """The files whose content a diff or a commit shows."""
    if args.file:
        return [_name(args.file, facts)]
    words = [*_look(repository, args), *_NAMES, "--", *_where(repository, args, facts)]
    data = repository.output(*words, limit=NAMES_SECONDS)
    return _few(sorted({name for name in os.fsdecode(data).split("\0") if name}))


# --- commands ----------------------------------------------------------------------------------


def _where(repository: Repository, args: GitArguments, facts: Facts) -> list[str]:
    return [_name(path, facts) for path in args.paths] or list(repository.limit)


def _look(repository: Repository, args: GitArguments) -> list[str]:
    """A diff, or what a commit changes, without what to show of it."""
    if args.action == "show":
        commit = _commit(repository, args.revision or "HEAD")
        return ["show", *_PLAIN, "--relative", "--format=", commit]
    staged = ["--cached"] if args.staged else []
    return ["diff", *_PLAIN, "--relative", *staged, *_revisions(repository, args.revision)]


def _commit(repository: Repository, revision: str) -> str:
    """The commit that a name stands for, so that nothing else can be asked for by one."""
    try:
        found = repository.output(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except ToolError as error:
        hint = ": the repository has no commit yet" if revision == "HEAD" else ""
        raise ToolError(f"{revision!r} names no commit here{hint}.") from error
    return found.decode().strip()


def _revisions(repository: Repository, text: str) -> list[str]:
    """A revision or a range with its ends as hashes; empty for none."""
    for dots in ("...", ".."):
        left, found, right = text.partition(dots)
        if found:
            ends = (_commit(repository, end or "HEAD") for end in (left, right))
            return [dots.join(ends)]
    return [_commit(repository, text)] if text else []


def _run(args: GitArguments, context: Context, granted: list[str], stop: threading.Event) -> Result:
    repository = Repository.around(context.facts.root)
    match args.action:
        case "commit":
            return _make(repository, args, granted, stop)
        case "status":
            words = ["status", "--short", "--branch", "--ignore-submodules=dirty", "--",
                     *_where(repository, args, context.facts)]  # fmt: skip
            note = "(nothing differs from the last commit)"
        case "log":
            return _log(repository, args, context, stop)
        case "show" if args.file:
            name = _name(args.file, context.facts)
            commit = _commit(repository, args.revision or "HEAD")
            words = ["show", "--no-textconv", f"{commit}:./{name}"]
            note = "(empty file)"
        case "show":
            words = _look(repository, args)
            words[words.index("--format=")] = f"--format={_WHOLE}"
            words += ["--encoding=UTF-8", "--no-notes", "--date=iso"]
            words += _what(repository, args, granted, context.facts)
            note = ""
        case "diff":
            if not args.summary and not granted:
                return Result("No difference.")
            words = _look(repository, args)
            words += _what(repository, args, granted, context.facts)
            note = "No difference."
    return _print(repository, words, note, context, stop)


def _what(
    repository: Repository, args: GitArguments, granted: list[str], facts: Facts
) -> list[str]:
    """What to show of a diff: counts, or the changes of exactly the files that were decided on."""
    if args.summary:
        return ["--stat=120", "--summary", "--", *_where(repository, args, facts)]
    return ["--patch", "--", *granted] if granted else ["--no-patch"]


def _log(
    repository: Repository, args: GitArguments, context: Context, stop: threading.Event
) -> Result:
    where = ["--", *_where(repository, args, context.facts)]
    revisions = _revisions(repository, args.revision or "HEAD")
    most = [f"--max-count={args.count + 1}", f"--skip={args.skip}"]
    commits = repository.output("rev-list", *most, *revisions, *where).split()
    if not commits:
        return Result("No commit.")
    shown = min(len(commits), args.count)
    words = ["log", *_PLAIN, f"--max-count={shown}", f"--skip={args.skip}", "--no-notes",
             "--encoding=UTF-8", "--date=format:%Y-%m-%d %H:%M", f"--format={_LINE}"]  # fmt: skip
    words += ["--stat=120"] if args.summary else []
    result = _print(repository, [*words, *revisions, *where], "", context, stop)
    if shown == len(commits):
        return result
    more = f"\n[{plural(shown, 'commit')} shown; there are older ones: skip={args.skip + shown}]"
    return Result(result.text + more, data=result.data)


def _print(
    repository: Repository,
    words: Sequence[str],
    empty: str,
    context: Context,
    stop: threading.Event,
) -> Result:
    """Run a command for its output: bounded for the model, whole on disk."""
    output = Output(free_path(context.files, context.call_id))
    try:
        done = repository.run(words, output.feed, stop=stop.is_set)
        if stop.is_set():
            raise ToolError("Interrupted.")
        if done.code:
            raise ToolError(done.error or f"git {words[0]} ended with exit code {done.code}.")
        text = output.excerpt().rstrip("\n")
        clean = words[0] == "status" and "\n" not in text
        data = {"bytes": output.total} | ({"output": str(output.path)} if output.on_disk else {})
        return Result(f"{text}\n{empty}".strip() if clean or not text else text, data=data)
    finally:
        output.close()


# --- commit ------------------------------------------------------------------------------------


def _status_lines(repository: Repository, names: Sequence[str]) -> list[str]:
    data = repository.output("status", "--short", "--no-renames", "--untracked-files=all",
                             "--ignore-submodules=dirty", "--", *names)  # fmt: skip
    return data.decode(errors="backslashreplace").rstrip("\n").split("\n")


def _make(
    repository: Repository, args: GitArguments, names: list[str], stop: threading.Event
) -> Result:
    """Commit exactly these files as they are now; what else is staged stays staged."""
    repository.output("var", "GIT_AUTHOR_IDENT")  # fails with advice where git knows no author
    known = repository.output("ls-files", "-z", "--", *names)
    new = sorted(set(names) - set(os.fsdecode(known).split("\0")))
    gone = set(_deleted(repository, new))
    new = [name for name in new if name not in gone]
    if new:
        repository.output("add", "--", *new)
    words = ("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--no-post-rewrite",
             "--cleanup=whitespace", "--message", args.message, "--only", "--", *names)  # fmt: skip
    done = repository.run(words, _ignore, stop=stop.is_set)
    if done.code:
        if new:
            repository.run(("reset", "--quiet", "--", *new), _ignore)
        said = "Interrupted." if stop.is_set() else done.error or "git commit failed."
        raise ToolError(f"Nothing was committed. {said}")
    made = repository.output("show", *_PLAIN, "--format=Committed %h: %s", "--stat=120", "HEAD")
    notes = _not_run(repository)
    return Result("\n".join([made.decode(errors="backslashreplace").rstrip("\n"), *notes]))


def _deleted(repository: Repository, names: Sequence[str]) -> list[str]:
    """Those whose deletion is staged."""
    if not names:
        return []
    data = repository.output("diff", *_PLAIN, "--relative", "--cached", "--diff-filter=D", *_NAMES,
                             "--", *names)  # fmt: skip
    return os.fsdecode(data).split("\0")


def _not_run(repository: Repository) -> list[str]:
    """What a commit by hand would have done besides."""
    notes: list[str] = []
    hooks = [name for name in _COMMIT_HOOKS if os.access(repository.hooks / name, os.X_OK)]
    if hooks:
        notes.append(f"[hooks of the repository that were not run: {', '.join(hooks)}]")
    if repository.settings().get("commit.gpgsign", "").lower() in ("true", "yes", "on", "1"):
        notes.append("[the commit is not signed, though the settings ask for it]")
    return notes


def _ignore(_data: bytes) -> None:
    pass
