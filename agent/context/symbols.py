"""Where a name is declared, used, and called from: always from the files as they are now.

No index is kept, so none can be stale: the files that contain the name at all are found first (a
plain scan), and only those are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import Stop, check, never
from .kinds import left_out, never_sent, unreadable
from .pack import decode
from .selection import LARGEST_FILE
from .syntax import Declaration, declarations
from .walk import read_regular, walk

_LONGEST_LINE = 200


@dataclass(frozen=True, slots=True)
class Definition:
    """A place that declares a name."""

    file: str
    declaration: Declaration
    inside: str
    """The declarations it stands in, joined by dots; empty at the top."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A line that uses a name."""

    file: str
    line: int
    """From 1."""
    text: str
    inside: str
    """The innermost declarations around it, joined by dots; empty at the top of a file."""
    call: bool
    """Whether the name is followed by an opening parenthesis there."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that is known of a name."""

    definitions: tuple[Definition, ...]
    references: tuple[Reference, ...]
    """By file and line; without the definitions themselves."""
    unparsed: tuple[str, ...]
    """Files that contain the name but whose language has no grammar here."""


def find(root: Path, name: str, *, under: str = "", stop: Stop = never) -> Found:
    """Look for an identifier in the files below `root`, or below its folder or file `under`.

    `Class.method` narrows the definitions to those inside `Class`. Secrets, binary, vendored and
    generated files are not looked at.
    """
    scope, _, last = name.replace("::", ".").rpartition(".")
    word = re.compile(rf"(?<![\w$]){re.escape(last)}(?![\w$])")
    definitions: list[Definition] = []
    references: list[Reference] = []
    unparsed: list[str] = []
    needle = last.encode()
    for file in _files(root, under, stop):
        data = read_regular(root / file, LARGEST_FILE)
        if isinstance(data, str) or needle not in data or unreadable(data):
            continue
        text, _ = decode(data)
        if not word.search(text):
            continue
        declared = declarations(file, text.encode())
        if declared is None:
            unparsed.append(file)
        here = list(_with_scope(declared or ()))
        own = [(one, inside) for one, inside in here if _is(one, inside, last, scope)]
        definitions += [Definition(file, one, inside) for one, inside in own]
        lines = {one.line for one, _ in own}
        references += _references(file, text, word, here, lines)
    return Found(tuple(definitions), tuple(references), tuple(unparsed))


def _files(root: Path, under: str, stop: Stop) -> Iterator[str]:
    for number, (name, _) in enumerate(walk(root, stop=stop).files):
        if number % 256 == 0:
            check(stop)
        inside = not under or name == under or name.startswith(under.rstrip("/") + "/")
        if inside and never_sent(name) is None and left_out(name) is None:
            yield name


def _with_scope(declared: Iterable[Declaration]) -> Iterator[tuple[Declaration, str]]:
    """Declarations with the names of those around them."""
    around: list[str] = []
    for one in declared:
        del around[one.depth :]
        yield one, ".".join(around)
        around.append(one.name)


def _is(one: Declaration, inside: str, name: str, scope: str) -> bool:
    plain = re.split(r"::|\.|->", one.name)[-1]
    if plain != name:
        return False
    full = re.sub(r"<.*>", "", f"{inside}.{one.name}".replace("::", "."))
    return not scope or f".{full}".endswith(f".{scope}.{name}")


def _references(
    file: str,
    text: str,
    word: re.Pattern[str],
    declared: list[tuple[Declaration, str]],
    skipped: set[int],
) -> Iterator[Reference]:
    for number, line in enumerate(text.split("\n"), start=1):
        match = word.search(line)
        if match is None or number in skipped:
            continue
        around = [(one, inside) for one, inside in declared if one.line <= number <= one.end]
        inside = ""
        if around:
            one, outer = around[-1]
            inside = f"{outer}.{one.name}".lstrip(".")
        call = any(line[m.end() :].lstrip().startswith("(") for m in word.finditer(line))
        yield Reference(file, number, line.strip()[:_LONGEST_LINE], inside, call)
