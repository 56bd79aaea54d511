"""Words of the source -> fields as the program sees them: bash's expansions, as far as known."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .folders import is_folder
from .site import Field, Site
from .syntax import Channel, Command, Derived, Doubt, Number, Output, Text, Variable, Word, words_of

MAX_FIELDS = 512
"""A glob or brace expansion that gives more words than this is not followed."""

MAX_WORDS = 500
"""Words of one command that are followed."""
MAX_STARS = 6
"""Stars in one part of a pattern."""

HARMLESS_ENVIRONMENT = words_of("""BASH BASHPID BASH_VERSION COLUMNS EDITOR EUID GROUPS HOME HOSTNAME HOSTTYPE LANG LANGUAGE
    LC_ALL LC_CTYPE LINENO LINES LOGNAME MACHTYPE OLDPWD OSTYPE PATH PPID PWD RANDOM SECONDS SHELL
    SHLVL TERM TMPDIR TZ UID USER VIRTUAL_ENV VISUAL CONDA_PREFIX JAVA_HOME GOPATH GOROOT
    CARGO_HOME NODE_ENV CI XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_RUNTIME_DIR""")
"""Variables of the environment whose values are no secret."""

Variables = Mapping[str, str | None]
"""Variables assigned in the line; None: to a value that cannot be known."""


@dataclass
class Expanded:
    """What expanding some words gave."""

    fields: list[Field] = field(default_factory=list[Field])
    doubts: list[str] = field(default_factory=list[str])
    """Why the expansion itself is not understood."""
    commands: list[Command] = field(default_factory=list[Command])
    """Commands that run while expanding."""


Char = tuple[str, bool]
"""A character and whether it is quoted."""


def expand(word: Word, site: Site, variables: Variables, into: Expanded) -> None:
    """Append the fields of one word, with all expansions."""
    if len(into.fields) > MAX_WORDS:
        into.fields.append(Field(None, word.source, several=True))
        into.doubts.append("it has too many words")
        return
    into.fields.extend(_fields(word, site, variables, into, split=True))


def expand_whole(word: Word, site: Site, variables: Variables, into: Expanded) -> Field:
    """The value of a word that is neither split nor globbed: assignments, here-strings."""
    fields = list(_fields(word, site, variables, into, split=False))
    return fields[0] if len(fields) == 1 else Field(None, word.source)


def _fields(
    word: Word, site: Site, variables: Variables, into: Expanded, *, split: bool
) -> Iterator[Field]:
    if len(word.parts) == 1 and isinstance(part := word.parts[0], Channel):
        into.commands.append(part.body)
        yield Field(None, word.source, channel=True)
        return
    if len(word.parts) == 1 and isinstance(word.parts[0], Number):
        yield Field(None, word.source, number=True)
        return
    if split and _brace_meets_variable(word):
        into.doubts.append("braces next to a variable are expanded before it")
    chars: list[Char] = []
    known = True
    several = False
    for part in word.parts:
        if isinstance(part, Text):
            value, quoted = part.value, part.quoted
        else:
            value, quoted = _value(part, site, variables, into)
            if value is not None and not quoted and split and not _SAFE.fullmatch(value):
                value = None
            if value is None and not quoted and not isinstance(part, Number):
                several = split
            if isinstance(part, Variable) and part.name in ("@", "*"):
                several = split
            quoted = True  # what a variable gives is not expanded again, or is unknown
        if value is None:
            known = False
        elif known:
            chars.extend((char, quoted) for char in value)
        if value is not None and not known and _MAGIC & set(value) and not quoted:
            several = split
            if split and _is_glob([(char, False) for char in value]):
                into.doubts.append(_ELSEWHERE)
    if not split:
        head = "".join(char for char, _ in chars)
        tilde = not all(quoted for char, quoted in chars if char == "~")
        yield Field(head if known and not tilde else None, word.source)
        return
    yield from _spread(chars, known, several, word, site, into)


def _brace_meets_variable(word: Word) -> bool:
    """Whether brace expansion, which works on the text, may put together another `$name`."""
    plain = "".join(p.value for p in word.parts if isinstance(p, Text) and not p.quoted)
    return "{" in plain and ("$" in plain or not all(isinstance(p, Text) for p in word.parts))


_SAFE = re.compile(r"[A-Za-z0-9_./,:@%+=-]+")
_MAGIC = frozenset("*?[{")
_ELSEWHERE = "a pattern that may list names outside the repository"
_TILDE_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=(.*:)?~")


def _value(
    part: Variable | Derived | Number | Output | Channel | Doubt,
    site: Site,
    variables: Variables,
    into: Expanded,
) -> tuple[str | None, bool]:
    match part:
        case Variable(name, quoted):
            if name == "PWD" and "PWD" not in variables and site.cwd is not None:
                return str(site.cwd), quoted
            if name in variables:
                return variables[name], quoted
            _check_name(name, into)
            return None, quoted
        case Derived(name, quoted):
            if name not in variables:
                _check_name(name, into)
            return None, quoted
        case Number(quoted):
            return None, quoted
        case Output(body, quoted):
            into.commands.append(body)
            return None, quoted
        case Channel(body):
            into.commands.append(body)
            return None, False
        case Doubt(reason, inner, quoted):
            into.doubts.append(reason)
            into.commands.extend(inner)
            return None, quoted


def _check_name(name: str, into: Expanded) -> None:
    if name not in HARMLESS_ENVIRONMENT and not name.isdigit() and name not in "@*#?$!-":
        into.doubts.append(f"${name} comes from the environment and may be a secret")


def _spread(
    chars: list[Char], known: bool, several: bool, word: Word, site: Site, into: Expanded
) -> Iterator[Field]:
    """Brace, tilde and glob expansion of a word of which `chars` is the known start."""
    special = next((i for i, (c, q) in enumerate(chars) if not q and c in "{*?["), len(chars))
    head = "".join(char for char, _ in chars[:special])
    unknown = Field(None, word.source, head=head, several=True)
    if not known:
        if _is_glob(chars):
            into.doubts.append(_ELSEWHERE)
        tilde = bool(chars) and chars[0] == ("~", False)
        inexact = several or special < len(chars)
        yield Field(None, word.source, head="~" if tilde else head, several=inexact)
        return
    alternatives = _braces(chars)
    if alternatives is None:
        if _is_glob(chars):
            into.doubts.append(_ELSEWHERE)
        yield unknown
        return
    for alternative in alternatives:
        text = "".join(char for char, _ in alternative)
        if (alternative[:1] == [("~", False)]) or (
            _TILDE_ASSIGNMENT.match(text) and ("~", False) in alternative
        ):
            if _is_glob(alternative):
                into.doubts.append(_ELSEWHERE)
            yield Field(None, word.source, head=text.partition("~")[0] + "~")
        elif _is_glob(alternative):
            matches = _glob(alternative, site)
            if matches is None:
                if site.trust_disk or not _starts_inside(alternative, site):
                    into.doubts.append(_ELSEWHERE)
                yield unknown
            else:
                yield from (Field(match, word.source) for match in matches)
        elif text or any(isinstance(p, Text) and p.quoted for p in word.parts) or several:
            yield Field(text, word.source)
        elif word.parts and not all(isinstance(p, Text) for p in word.parts):
            yield Field(None, word.source, several=True)  # an empty unquoted variable is no word


def _braces(chars: list[Char]) -> list[list[Char]] | None:
    """Brace expansion; None for what is not modelled (nesting, steps, many words)."""
    done: list[list[Char]] = []
    waiting = [chars]
    while waiting:
        current = waiting.pop()
        opening = next((i for i, char in enumerate(current) if char == ("{", False)), None)
        if opening is None or ("}", False) not in current[opening:]:
            done.append(current)
            continue
        closing = current.index(("}", False), opening)
        inside = current[opening + 1 : closing]
        text = "".join(char for char, _ in inside)
        rest = current[closing + 1 :]
        if ("{", False) in inside:
            return None
        if (",", False) in inside:
            items: list[list[Char]] = [[]]
            for char in inside:
                if char == (",", False):
                    items.append([])
                else:
                    items[-1].append(char)
        elif ".." in text:
            sequence = re.fullmatch(r"(-?\d{1,4})\.\.(-?\d{1,4})", text)
            if sequence is None or any(quoted for _, quoted in inside):
                return None
            first, last = int(sequence[1]), int(sequence[2])
            if any(re.match(r"-?0\d", end) for end in sequence.groups()):
                return None
            step = 1 if last >= first else -1
            if abs(last - first) > MAX_FIELDS:
                return None
            items = [[(c, True) for c in str(n)] for n in range(first, last + step, step)]
        elif ("{", False) in rest or ("}", False) in rest or any(c in ",." for c in text):
            return None
        else:
            done.append(current)  # `{}` and `{word}` are literal
            continue
        waiting.extend(current[:opening] + item + rest for item in reversed(items))
        if len(waiting) + len(done) > MAX_FIELDS:
            return None
    return done


def _glob(pattern: list[Char], site: Site) -> list[str] | None:
    """The names a pattern matches, or itself when it matches none; None when it is not known."""
    if site.cwd is None or not site.trust_disk:
        return None
    text = "".join(char for char, _ in pattern)
    if text.startswith("/") or "//" in text or len(text) > 1_000:
        return None
    components: list[list[Char]] = [[]]
    for char in pattern:
        if char[0] == "/":
            components.append([])
        else:
            components[-1].append(char)
    if len(components) > 20 or any(c.count(("*", False)) > MAX_STARS for c in components):
        return None
    found = [""]
    for depth, component in enumerate(components):
        last = depth == len(components) - 1
        literal = "".join(char for char, _ in component)
        following: list[str] = []
        for prefix in found:
            if not _is_glob(component):
                if last and literal and not os.path.lexists(site.cwd / (prefix + literal)):
                    continue
                following.append(prefix + literal + ("" if last else "/"))
                continue
            where = site.locate(prefix or ".")
            if where is None or not where.inside:
                return None
            names = _names(where.path)
            if names is None:
                return None
            regex = _regex(component)
            if regex is None:
                return None
            for name in names:
                if (name.startswith(".") and not literal.startswith(".")) or not regex.fullmatch(
                    name
                ):
                    continue
                if not last and not is_folder(where.path / name):
                    continue
                following.append(prefix + name + ("" if last else "/"))
            if len(following) > MAX_FIELDS:
                return None
        found = following
    return sorted(found) or [text]


def _starts_inside(pattern: list[Char], site: Site) -> bool:
    """Whether the folder before the first star lies inside the root, and no `..` leads out."""
    text = "".join(char for char, _ in pattern)
    first = next(i for i, (char, quoted) in enumerate(pattern) if not quoted and char in "*?[")
    folder, slash, _ = text[:first].rpartition("/")
    return ".." not in text.split("/") and site.inside(folder + slash or ".")


def _is_glob(chars: list[Char]) -> bool:
    """Whether bash would look for matching names; a bracket counts only when it is closed."""
    closed = any(char == "]" for char, _ in chars)
    return any(not quoted and (char in "*?" or (char == "[" and closed)) for char, quoted in chars)


def _names(folder: Path) -> list[str] | None:
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return []
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    if len(names) > 20_000 or any("\udc80" <= char <= "\udcff" for name in names for char in name):
        return None
    return [".", "..", *names]


_BRACKET = re.compile(r"\[([!^]?)((?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9_.])+)\]")


def _regex(component: list[Char]) -> re.Pattern[str] | None:
    """A pattern as a regular expression; None for brackets that are not modelled."""
    parts: list[str] = []
    text = "".join(char for char, _ in component)
    position = 0
    while position < len(component):
        char, quoted = component[position]
        position += 1
        if not quoted and char in "*?":
            parts.append(".*" if char == "*" else ".")
        elif not quoted and char == "[" and "]" in text[position:]:
            found = _BRACKET.match(text, position - 1)
            if found is None or any(q for _, q in component[position : found.end()]):
                return None
            parts.append(f"[{'^' if found[1] else ''}{found[2]}]")
            position = found.end()
        else:
            parts.append(re.escape(char))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:  # a range that runs backwards
        return None
