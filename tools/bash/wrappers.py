"""Programs that run another command: what they run is classified as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

from ...agent.effects import Effect, EffectKind
from .builtins import is_harmless
from .site import Field, Site, unknown
from .syntax import words_of
from .usage import Meaning, not_understood, parse_words

_Handler = Callable[[Sequence[Field], Site], Meaning]


def _specs(flags: str, values: str = "") -> dict[str, str]:
    return {**dict.fromkeys(flags.split(), ""), **dict.fromkeys(values.split(), "text")}


def _prefix(flags: str, values: str = "", skip: int = 0, doubt: str = "") -> _Handler:
    """`wrapper options [skipped operands] command ...`."""

    specs = {"-#": "", **_specs(flags, values)}

    def handler(words: Sequence[Field], site: Site) -> Meaning:
        parsed = parse_words(words, specs, stops=True)
        doubts = parsed.doubts + ((doubt,) if doubt else ())
        skipped, inner = parsed.operands[:skip], parsed.operands[skip:]
        if any(word.text is None for word in skipped):
            doubts += ("words that cannot be known before the command",)
        if doubts and not inner:
            return Meaning((), doubts)
        runs = (inner,) if inner else ()
        if parsed.doubts:  # where the command starts is not sure: show each candidate
            runs += tuple(
                tuple(words[i:])
                for i, word in enumerate(words[:8])
                if word.text is not None and not word.text.startswith("-")
            )
        return Meaning((), doubts, runs=tuple(dict.fromkeys(runs)))

    return handler


def env(words: Sequence[Field], site: Site) -> Meaning:
    """`env [NAME=VALUE ...] command`; alone it prints the environment."""
    if any((w.text or "").startswith(("-S", "--split-string", "-vS", "-iS")) for w in words):
        return not_understood("it splits a string into a command")
    parsed = parse_words(
        words, _specs("-v -i - --ignore-environment", "-u --unset -C --chdir"), stops=True
    )
    doubts = list(parsed.doubts)
    if parsed.options:
        doubts.append("it changes the environment or the folder")
    rest = list(parsed.operands)
    while rest and ((text := rest[0].text) is not None or rest[0].head):
        source = text if text is not None else rest[0].head
        found = re.match(r"([^=]*)=", source)
        if found is None:
            if source == "-":
                doubts.append("it clears the environment")
                rest.pop(0)
                continue
            break
        value = text[found.end() :] if text is not None else None
        if not is_harmless(found.group(1), value):
            doubts.append(f"it sets {found.group(1)} for the command")
        rest.pop(0)
    if not rest:
        effect = Effect(kind=EffectKind.SECRET, detail="the environment may hold keys")
        return Meaning((effect,), tuple(doubts))
    return Meaning((), tuple(doubts), runs=(tuple(rest),))


def xargs(words: Sequence[Field], site: Site) -> Meaning:
    """`xargs command`: runs it with words from its input, which cannot be known."""
    specs = _specs("-0 -r -t -x -o", "-n -L -P -I -J -d -s -E")
    specs |= _specs("--null --no-run-if-empty --verbose --exit",
                    "--max-args --max-lines --max-procs --delimiter")  # fmt: skip
    specs |= {"-a": "read", "--arg-file": "read", "-i": "?", "--replace": "?"}
    parsed = parse_words(words, specs, stops=True)
    effects = [e for file in parsed.values("-a --arg-file") for e in site.read(file)]
    command = list(parsed.operands) or [Field("echo", "echo")]
    marks = [v.text or "{}" for v in parsed.values("-I -J --replace -i")]
    if parsed.has("-i --replace") and not marks:
        marks = ["{}"]
    if marks:
        command = [
            Field(None, w.source, head=w.text.partition(mark)[0])
            if w.text is not None and (mark := next((m for m in marks if m in w.text), ""))
            else w
            for w in command
        ]
    else:
        command.append(Field(None, "words from the input", several=True))
    return Meaning(tuple(effects), parsed.doubts, runs=(tuple(command),))


def shell(name: str, words: Sequence[Field], site: Site) -> Meaning:
    """`bash -c 'script'`; other shells read it differently, so they are not understood."""
    doubts = [] if name == "bash" else [f"{name} is not bash"]
    position = 0
    command = False
    while position < len(words):
        text = words[position].text
        if text is None:
            return not_understood("a word that cannot be known")
        if not text.startswith("-") or text == "-":
            break
        position += 1
        if text == "--":
            break
        if text in ("--norc", "--noprofile"):
            continue
        if text in ("-o", "+o") and position < len(words):
            if words[position].text not in ("pipefail", "errexit", "nounset"):
                doubts.append("an option of the shell")
            position += 1
            continue
        if text == "--version":
            return Meaning((), tuple(doubts))
        if not re.fullmatch(r"-[ceuxvn]+", text):
            doubts.append(f"option `{text}`")
        command = command or ("c" in text and not text.startswith("--"))
    if command:
        if position >= len(words) or (script := words[position].text) is None:
            return not_understood("a script that cannot be known")
        return Meaning((), tuple(doubts), scripts=(script,))
    if position < len(words):
        return not_understood("it runs a script", site.read(words[position]))
    return not_understood("it runs its input")


def ssh(words: Sequence[Field], site: Site) -> Meaning:
    """`ssh host command`: runs it elsewhere."""
    specs = _specs("-4 -6 -A -a -C -f -G -g -K -k -M -N -n -q -s -T -t -V -v -X -x -Y -y",
                   "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w")  # fmt: skip
    parsed = parse_words(words, specs, stops=True)
    host = parsed.operands[0].text if parsed.operands else None
    effects = [Effect(kind=EffectKind.NETWORK, target=host)]
    remote = parsed.operands[1:]
    if remote and all(word.text is not None for word in remote):
        text = tuple((" ".join(word.text or "" for word in remote)).split())
        effects.append(Effect(kind=EffectKind.EXECUTE, command=text, detail=f"on {host}"))
    return not_understood("it runs commands on another machine", effects)


def evaluate(words: Sequence[Field], site: Site) -> Meaning:
    """`eval words`: the words are a script."""
    texts = [word.text for word in words]
    scripts = (" ".join(t for t in texts if t is not None),) if None not in texts else ()
    return Meaning((), ("it runs text as a script",), scripts=scripts, alters_shell=True)


def source(words: Sequence[Field], site: Site) -> Meaning:
    """`source file`: the file runs in this shell."""
    effects = site.read(words[0]) if words else ()
    return Meaning(effects, ("it runs a file in this shell",), alters_shell=True)


def trap(words: Sequence[Field], site: Site) -> Meaning:
    """`trap script signal`: the script runs later."""
    scripts = tuple(w.text for w in words[:2] if w.text is not None and not w.text.startswith("-"))
    return Meaning((), ("it runs a script later",), scripts=scripts[:1])


def alias(words: Sequence[Field], site: Site) -> Meaning:
    """`alias name=script`: later commands of that name are others."""
    scripts = tuple((w.text or "").partition("=")[2] for w in words)
    return Meaning(
        (), ("it changes what a name means",), scripts=tuple(filter(None, scripts)),
        alters_shell=True,
    )  # fmt: skip


def watch(words: Sequence[Field], site: Site) -> Meaning:
    """`watch command`: sh runs it again and again."""
    parsed = parse_words(words, _specs("-d -t -b -e -g -c -x -p", "-n -q --interval"), stops=True)
    texts = [word.text for word in parsed.operands]
    scripts = (" ".join(t for t in texts if t is not None),) if None not in texts else ()
    return Meaning((), ("it runs a command through sh",), scripts=scripts)


def time(words: Sequence[Field], site: Site) -> Meaning:
    """`time command`: bash's keyword, or the program with `-o file`."""
    parsed = parse_words(words, {**_specs("-p -v -a", "-f"), "-o": "write"}, stops=True)
    effects = [e for file in parsed.values("-o") for e in site.write(file)]
    runs = (parsed.operands,) if parsed.operands else ()
    return Meaning(tuple(effects), parsed.doubts, runs=runs)


# ---- find and fd ---------------------------------------------------------------------------

_FIND_FLAGS = words_of("""-daystart -depth -d -mount -xdev -noleaf -ignore_readdir_race -nowarn -warn -empty -false
    -true -nouser -nogroup -readable -writable -executable -print -print0 -prune -quit -ls -and
    -or -not -a -o ! ( ) ,""")
_FIND_VALUES = words_of("""-maxdepth -mindepth -regextype -amin -atime -cmin -ctime -mmin -mtime -used -size -type
    -xtype -name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -perm
    -user -group -uid -gid -inum -links -fstype -printf -newermt -newerat -newerct -context""")
_FIND_FILES = words_of("-newer -anewer -cnewer -samefile -newermm")
_FIND_WRITES = words_of("-fprint -fprint0 -fls")

FIND_YES = ("find . -name '*.py'", "find src -type f -newer README.md | head", "find", "find src",
            "find . \\( -name a -o -name b \\) -prune -o -print",
            "find . -type f -name '*.py' -exec grep -l foo {} +",
            "find src -type f -exec wc -l {} \\;")  # fmt: skip
FIND_NO = ("find . -delete", "find . -fprint out", "find . -fls out", "find /etc", "find . -exec rm {} +",
           "find . -exec sh -c 'id' \\;", "find . -ok rm {} \\;", "find -L .", "find . -fprintf out x",
           "find . -name a -exec cat {} +", "find . -execdir ./evil {} +", "find ..", "find -files0-from x",
           "find $x -name a")  # fmt: skip


def find(words: Sequence[Field], site: Site) -> Meaning:
    """`find`: lists by default; its actions delete, write and run."""
    doubts: list[str] = []
    effects: list[Effect] = []
    runs: list[tuple[Field, ...]] = []
    position = 0
    while position < len(words) and words[position].text in ("-H", "-P"):
        position += 1
    starts: list[Field] = []
    while position < len(words):
        word = words[position]
        if word.text is None and not (word.head and word.head[0] not in "-(!,"):
            return not_understood("a word that may turn out to be an action", unknown(
                EffectKind.READ, word.source))  # fmt: skip
        if word.text is not None and (word.text.startswith("-") or word.text in ("(", "!", ",")):
            break
        starts.append(word)
        position += 1
    starts = starts or [Field(".", ".")]
    for start in starts:
        effects.extend(site.look(start))
    regular = _only_and(words[position:])
    typed = False
    while position < len(words):
        word = words[position]
        text = word.text
        position += 1
        value = words[position] if position < len(words) else None
        if text in _FIND_FLAGS:
            continue
        if text in _FIND_VALUES:
            typed = typed or (text == "-type" and value is not None and value.text == "f")
            if value is not None and value.several:
                doubts.append("a value that may be several words")
            position += 1
        elif text in _FIND_FILES and value is not None:
            effects.extend(site.look(value))
            position += 1
        elif text == "-delete":
            for start in starts:
                effects.extend(site.delete(start))
        elif text in _FIND_WRITES and value is not None:
            effects.extend(site.write(value))
            position += 1
        elif text == "-fprintf" and value is not None:
            effects.extend(site.write(value))
            position += 2
        elif text in ("-exec", "-execdir", "-ok", "-okdir"):
            command: list[Field] = []
            while position < len(words) and words[position].text != ";":
                if words[position].text == "+" and command and command[-1].text == "{}":
                    break
                command.append(words[position])
                position += 1
            position += 1
            if any(w.text is None and w.several for w in command):
                doubts.append("words that may end the command early")
            if text.endswith("dir"):
                doubts.append("it runs in the folder of each file")
            runs.append(tuple(_found(w, starts, regular and typed) for w in command))
        else:
            doubts.append(f"find `{word.source[:40]}`")
    return Meaning(tuple(effects), tuple(doubts), runs=tuple(runs))


def _only_and(words: Sequence[Field]) -> bool:
    """Whether every test must hold for an action to run; only a name or path may be excluded."""
    for word, following in zip_longest(words, words[1:]):
        if word.text in ("-o", "-or", ",", "("):
            return False
        if word.text in ("!", "-not") and (
            following is None
            or following.text not in ("-path", "-name", "-iname", "-ipath", "-wholename")
        ):
            return False
    return True


def _found(word: Field, starts: Sequence[Field], regular: bool) -> Field:
    """What `{}` stands for: a file below the start, if only regular files are taken."""
    if word.text is None or "{}" not in word.text:
        return word
    start = starts[0].text
    if word.text == "{}" and regular and len(starts) == 1 and start and start[0] != "-":
        return Field(None, word.source, head=start, below=start)
    return Field(None, word.source, head=word.text.partition("{}")[0])


_FD = (
    "-H -I -u -s -i -g -F -a -l -p -0 -1 -q --hidden --no-ignore --unrestricted --case-sensitive "
    "--ignore-case --glob --regex --fixed-strings --absolute-path --list-details --full-path "
    "--print0 --quiet --prune --no-ignore-vcs --no-ignore-parent --version --help --strip-cwd-prefix"
)
_FD_VALUES = (
    "-d -t -e -E -S -c -j --max-depth --min-depth --exact-depth --type --extension --exclude "
    "--size --color --threads --max-results --changed-within --changed-before --owner"
)
FD_YES = ("fd foo src", "fd -e py", "fd")
FD_NO = (
    "fd -x rm",
    "fd foo --exec rm",
    "fd -X rm",
    "fd foo /etc",
    "fd -L foo",
    "fd --exec-batch x",
)


def fd(words: Sequence[Field], site: Site) -> Meaning:
    """`fd pattern [folders]`: lists names; `-x` and `-X` run commands."""
    parsed = parse_words(words, _specs(_FD, _FD_VALUES))
    folders = parsed.operands[1:] or (Field(".", "."),)
    effects = [e for folder in folders for e in site.look(folder)]
    for index, word in enumerate(words):
        if word.text in ("-x", "-X", "--exec", "--exec-batch") and index + 1 < len(words):
            inner = (*words[index + 1 :], Field(None, "found files", several=True))
            return Meaning(tuple(effects), parsed.doubts, runs=(inner,))
    return Meaning(tuple(effects), parsed.doubts)


_PRIVILEGE = "it runs with other rights"

HANDLERS: dict[str, _Handler] = {
    "env": env,
    "xargs": xargs,
    "gxargs": xargs,
    "time": time,
    "nice": _prefix("", "-n --adjustment"),
    "timeout": _prefix("--foreground --preserve-status -v --verbose",
                       "-k --kill-after -s --signal", skip=1),
    "nohup": _prefix("", doubt="it goes on after the shell ends"),
    "setsid": _prefix("-c -f -w", doubt="it leaves the session"),
    "ionice": _prefix("-t", "-c -n", doubt="ionice"),
    "chrt": _prefix("-f -r -o -b -i", "", skip=1, doubt="chrt"),
    "taskset": _prefix("-a", "", skip=1, doubt="taskset"),
    "stdbuf": _prefix("", "-i -o -e --input --output --error", doubt="it loads a library"),
    "builtin": _prefix(""),
    "exec": _prefix("", doubt="it replaces the shell"),
    "coproc": _prefix("", doubt="it runs in the background"),
    "sudo": _prefix("-A -b -E -H -i -k -K -n -P -S -s -v --preserve-env",
                    "-C -g -h -p -r -t -T -u -U --user --group", doubt=_PRIVILEGE),
    "doas": _prefix("-n -s -L", "-a -C -u", doubt=_PRIVILEGE),
    "su": _prefix("-l -m -p -", "-c -s -g -G", skip=1, doubt=_PRIVILEGE),
    "pkexec": _prefix("--keep-cwd", "--user", doubt=_PRIVILEGE),
    "run0": _prefix("", "--user -u", doubt=_PRIVILEGE),
    "chroot": _prefix("", "--userspec --groups", skip=1, doubt=_PRIVILEGE),
    "unshare": _prefix("-r -m -n -p -u -U -f", "", doubt=_PRIVILEGE),
    "nsenter": _prefix("-m -n -p -u -U -a", "-t", doubt=_PRIVILEGE),
    "busybox": _prefix("", doubt="busybox"),
    "toybox": _prefix("", doubt="toybox"),
    "flock": _prefix("-n -s -x -u -o", "-w -E", skip=1, doubt="flock"),
    "strace": _prefix("-f -t -T -v -c", "-e -o -p -s", doubt="it traces the command"),
    "ltrace": _prefix("-f -c", "-e -o -p -s", doubt="it traces the command"),
    "script": _prefix("-q -a -e", "-c", doubt="it records a terminal"),
    "parallel": _prefix("-k -q -u", "-j -n -N", doubt="it runs words from its input"),
    "unbuffer": _prefix("-p", doubt="unbuffer"),
    "caffeinate": _prefix("-d -i -m -s -u", "-t -w", doubt="caffeinate"),
    "uv": _prefix("", skip=1, doubt="it runs the project's code"),
    "poetry": _prefix("", skip=1, doubt="it runs the project's code"),
    "npx": _prefix("-y --yes", "-p --package", doubt="it may download what it runs"),
    "uvx": _prefix("", "--from --with", doubt="it may download what it runs"),
    "ssh": ssh,
    "eval": evaluate,
    "source": source,
    ".": source,
    "trap": trap,
    "alias": alias,
    "watch": watch,
    "find": find,
    "gfind": find,
    "fd": fd,
    "fdfind": fd,
}  # fmt: skip

EXAMPLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "env": (("env LANG=C ls", "env NO_COLOR=1 cat README.md"),
            ("env", "env GIT_PAGER=./e git log", "env -i ls", "env -S 'rm x'", "env LD_PRELOAD=./e ls",
             "env -C / ls", "env rm x", "env -u PATH ls")),
    "xargs": (("xargs echo",), ("xargs rm", "xargs cat", "xargs -a /etc/passwd echo", "xargs sh -c")),
    "time": (("time ls src",), ("time rm README.md", "time make")),
    "nice": (("nice -n 5 wc README.md", "nice ls"), ("nice make", "nice -n 5 rm x")),
    "timeout": (("timeout 5 ls", "timeout -k 1 5s cat README.md"),
                ("timeout 5 make", "timeout $x ls", "timeout --unknown 5 rm x")),
    "nohup": ((), ("nohup ls", "nohup make")),
    "sudo": ((), ("sudo ls", "sudo -u root cat README.md")),
    "ssh": ((), ("ssh host ls", "ssh -oProxyCommand=./e host")),
    "eval": ((), ("eval ls", "eval \"$x\"")),
    "source": ((), ("source x.sh", ". ./x.sh")),
    "trap": ((), ("trap 'rm x' EXIT",)),
    "alias": ((), ("alias ls='rm -rf x'",)),
    "watch": ((), ("watch ls",)),
    "builtin": (("builtin echo hi",), ("builtin eval id",)),
    "exec": ((), ("exec ls", "exec -c git status")),
    "find": (FIND_YES, FIND_NO),
    "fd": (FD_YES, FD_NO),
    "bash": (("bash -c 'ls src'", "bash -euc 'cat README.md | wc -l'"),
             ("bash -c 'rm x'", "bash x.sh", "bash", "bash -ic ls", "bash -c \"$x\"", "bash --rcfile e -c ls")),
    "sh": ((), ("sh -c ls", "sh x.sh")),
}  # fmt: skip
"""Wrapper -> examples that are understood, and examples that are not or do more than read."""
