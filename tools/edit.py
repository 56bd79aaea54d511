"""`edit`: replace a piece of text in a file; every byte outside it stays as it is."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Location, Result, Tool, ToolError, digest, path_effects
from .diff import Splice, splice_diff, spliced
from .files import (
    Snapshot,
    hold_to,
    in_thread,
    read_file,
    refuse_dangling,
    refuse_read_only,
    replace_file,
)
from .nearest import describe_nearest
from .text import Encoding, count_separators, detect, line_separator, plural

_MOST_NAMED = 20


class EditArguments(Arguments):
    """A piece of a file and what to put in its place."""

    path: Annotated[str, Field(description="File, relative to the repository root.")]
    old: Annotated[
        str,
        Field(description="Exact text to replace, without line numbers. Must occur once."),
    ]
    new: Annotated[str, Field(description="Text to put in its place. Empty to delete.")]
    replace_all: Annotated[
        bool, Field(description="Replace every occurrence instead of the only one.")
    ] = False


@dataclass(frozen=True)
class Plan:
    """An edit that can be carried out."""

    where: Location
    was: Snapshot
    encoding: Encoding
    splices: list[Splice]
    lines: list[int]
    """Line of each place, from 1."""

    def effects(self) -> tuple[Effect, ...]:
        """The write, bound to the bytes that were looked at."""
        return path_effects(EffectKind.WRITE, self.where, before=self.was.digest)

    def diff(self) -> str:
        """Unified diff of the bytes that will be written."""
        return splice_diff(self.where.name, self.was.data, self.splices, self.encoding)


class MatchError(ToolError):
    """The file is there, but `old` cannot be replaced in it; the text quotes the file."""


class Edit(Tool[EditArguments]):
    """Replace text in a file."""

    name = "edit"
    description = (
        "Replace text in an existing file. `old` must match the file exactly, spaces and "
        "indentation included, and occur exactly once: take in enough neighbouring lines, or set "
        "`replace_all`. A newline in `old` matches LF, CRLF or CR; `new` takes the file's own. "
        "Encoding, BOM and line endings are kept. Every other byte of the file stays as it is."
    )
    arguments = EditArguments

    def effects(self, args: EditArguments, facts: Facts) -> tuple[Effect, ...]:
        try:
            plan = make_plan(args, facts)
        except MatchError:
            # All that this call can do is fail and quote the file: that is reading.
            return path_effects(EffectKind.READ, facts.locate(args.path))
        return plan.effects()

    def preview(self, args: EditArguments, facts: Facts) -> str:
        try:
            plan = make_plan(args, facts)
        except ToolError as error:
            return f"Nothing would be changed. {error}"
        return _notes(plan) + plan.diff()

    async def run(self, args: EditArguments, context: Context) -> Result:
        return await in_thread(lambda stop: _run(args, context, stop))


def _run(args: EditArguments, context: Context, stop: threading.Event) -> Result:
    facts = context.facts
    plan = make_plan(args, facts)
    hold_to(context.granted, plan.effects())
    pieces = spliced(plan.was.data, plan.splices)
    replace_file(plan.where, facts, plan.was, pieces, stop)
    name = plan.where.name
    known = facts.seen.get(name) == plan.was.digest
    return Result(
        text=f"Replaced {plural(len(plan.splices), 'occurrence')} in {name}, "
        f"{_at_lines(plan.lines)}. {_notes(plan)}".rstrip(),
        seen={name: digest(b"".join(pieces))} if known else {},
        diff=plan.diff(),
        changed=(name,),
    )


def _notes(plan: Plan) -> str:
    """What is worth knowing beyond the diff, one line each."""
    notes: list[str] = []
    if plan.encoding.guessed or plan.encoding.codec != "utf-8":
        guessed = ", a guess that fits every byte" if plan.encoding.guessed else ""
        notes.append(f"The file is in {plan.encoding.label}{guessed}.")
    if plan.was.stat.st_nlink > 1:
        notes.append(
            f"The file has {plan.was.stat.st_nlink} hard links: this name gets its own copy, "
            f"the others keep the old content."
        )
    return "".join(f"{note}\n" for note in notes)


# --- planning ----------------------------------------------------------------------------------


def make_plan(args: EditArguments, facts: Facts) -> Plan:
    """Find what to replace and with which bytes.

    Raises MatchError when the text does not fit the file, ToolError when the file cannot be edited.
    """
    if not args.old:
        raise ToolError(
            "`old` is empty, so there is no place to edit. To insert, put the line next to the "
            "place in `old` and repeat it in `new` with the addition. To make a file, use `write`."
        )
    if args.old == args.new:
        raise ToolError("`old` and `new` are the same text: this edit would change nothing.")
    refuse_dangling(args.path, facts)
    where = facts.locate(args.path)
    was = read_file(where, facts)
    refuse_read_only(where, was.stat)
    encoding = detect(was.data)
    if encoding is None:
        raise ToolError(f"{where.name} is binary, not text: `edit` cannot change it.")
    old, new = _line_feeds(args.old), _line_feeds(args.new)
    if old == new:
        raise ToolError("`old` and `new` differ only in line endings, which `edit` keeps.")
    seen = facts.seen.get(where.name)
    if seen is not None and seen != was.digest:
        raise MatchError(
            f"{where.name} changed since it was shown to you; nothing was written. "
            f"{describe_nearest(old, where.name, was.data, encoding)}\n"
            f"Read the file again before you edit it."
        )
    return _match(old, new, where, was, encoding, args.replace_all)


def _match(
    old: str, new: str, where: Location, was: Snapshot, encoding: Encoding, replace_all: bool
) -> Plan:
    spans: list[tuple[int, int]] = []
    end = 0
    for span in _spans(was.data, old, encoding):
        if not replace_all or span[0] >= end:
            spans.append(span)
            end = span[1]
    if not spans:
        raise MatchError(
            f"`old` does not occur in {where.name}; nothing was written. "
            f"{describe_nearest(old, where.name, was.data, encoding)}"
        )
    lines = _line_numbers(was.data, [start for start, _ in spans], encoding)
    if len(spans) > 1 and not replace_all:
        raise MatchError(
            f"`old` occurs {len(spans):,} times in {where.name}, {_at_lines(lines)}; nothing was "
            f"written. Take in neighbouring lines so that it occurs once, or set `replace_all`."
        )
    _refuse_ambiguous(old, new, where, encoding)
    around = _Endings(was.data, encoding)
    splices: list[Splice] = []
    for start, end in spans:
        there = encoding.decode(was.data[start:end])
        text = _replacement(there, old, new, around.around(start, end))
        splices.append(Splice(start, end, encoding.encode(text)))
    return Plan(where, was, encoding, splices, lines)


def _line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n")


def _spans(data: bytes, old: str, encoding: Encoding) -> Iterator[tuple[int, int]]:
    """Places of `old` in order, overlapping ones included; a line feed matches any line ending.

    A place counts only where a character begins: the second byte of a GBK or Shift-JIS character
    can look like a letter.
    """
    lf, cr = re.escape(encoding.lf), re.escape(encoding.cr)
    ending = b"(?:%b%b|(?<!%b)%b|%b(?!%b))" % (cr, lf, cr, lf, cr, lf)
    try:
        pieces = [re.escape(encoding.encode(piece)) for piece in old.split("\n")]
    except UnicodeEncodeError:
        return
    pattern = re.compile(ending.join(pieces))
    at = len(encoding.bom)
    while found := pattern.search(data, at):
        start, end = found.span()
        if start % encoding.unit == 0 and _starts_character(data, start, encoding):
            yield start, end
            at = start + encoding.unit
        else:
            at = start + 1


def _starts_character(data: bytes, start: int, encoding: Encoding) -> bool:
    if encoding.codec not in {"gb18030", "cp932", "euc_jp", "euc_kr", "big5"}:
        return True  # UTF-8, UTF-16, UTF-32 and one-byte encodings cannot match half a character
    line = data.rfind(b"\n", 0, start) + 1  # no byte of a longer character is a line feed
    try:
        data[line:start].decode(encoding.codec)
    except UnicodeDecodeError:
        return False
    return True


def _refuse_ambiguous(old: str, new: str, where: Location, encoding: Encoding) -> None:
    """Raise MatchError when the file's encoding is not known well enough to write `new` in it."""
    try:
        encoding.encode(new)
    except UnicodeEncodeError as error:
        char = new[error.start]
        raise MatchError(
            f"{where.name} is in {encoding.label}, which has no {char!r} (U+{ord(char):04X}); "
            f"nothing was written. Write it without this character."
        ) from None
    doubt = encoding.doubt("".join(set(new) - set(old)))
    if doubt:
        raise MatchError(
            f"The encoding of {where.name} is not certain: {doubt}. Nothing was written. Add only "
            f"ASCII here, or ask the user for the encoding."
        )


class _Endings:
    """The line ending around each place; places are asked for in order."""

    def __init__(self, data: bytes, encoding: Encoding) -> None:
        self._data, self._encoding = data, encoding
        lf, cr = re.escape(encoding.lf), re.escape(encoding.cr)
        self._pattern = re.compile(b"%b%b|%b|%b" % (cr, lf, lf, cr))
        self._at, self._ending = -1, ""

    def around(self, start: int, end: int) -> str:
        """Ending of the line that holds the place, else of the line before it, else LF."""
        if self._at < end:
            self._at, self._ending = self._next(end) or self._previous(start)
        return self._ending

    def _next(self, at: int) -> tuple[int, str] | None:
        while found := self._pattern.search(self._data, at):
            if found.start() % self._encoding.unit == 0:
                return found.start(), self._encoding.decode(found[0])
            at = found.start() + 1
        return None

    def _previous(self, before: int) -> tuple[int, str]:
        """For the last line; holds for every place after this one too."""
        text = self._encoding.decode(self._data[len(self._encoding.bom) : before])
        at = max(text.rfind("\n"), text.rfind("\r"))
        ending = "\r\n" if text[max(0, at - 1) : at + 1] == "\r\n" else text[at : at + 1]
        return len(self._data), ending if at >= 0 else "\n"


def _replacement(was: str, old: str, new: str, around: str) -> str:
    """`new` with line endings, for a place that holds `was`.

    In a file with mixed endings only what changes may change: lines that `old` and `new` share at
    their beginning or end keep their own endings, changed lines keep those of the lines they
    replace, added lines take the one next to them.
    """
    old_lines, new_lines = old.split("\n"), new.split("\n")
    kept: list[str] = re.findall(r"\r\n|\n|\r", was)
    if len(kept) != len(old_lines) - 1:  # a lone carriage return is part of `old` itself
        kept = []
    count = len(new_lines) - 1
    head = min(_shared(old_lines, new_lines), len(kept), count)
    same_tail = _shared(old_lines[::-1], new_lines[::-1])
    tail = max(0, min(same_tail - 1, len(kept) - head, count - head))
    middle = kept[head : len(kept) - tail]
    fill = (middle[-1:] or kept[:head][-1:] or kept[:1] or [around])[0]
    middle = [*middle, *[fill] * count][: count - head - tail]
    chosen = [*kept[:head], *middle, *kept[len(kept) - tail :]]
    return "".join(line + ending for line, ending in zip(new_lines, [*chosen, ""], strict=True))


def _shared(a: list[str], b: list[str]) -> int:
    """Number of equal lines at the beginning."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def _line_numbers(data: bytes, starts: list[int], encoding: Encoding) -> list[int]:
    """Numbers of the lines, from 1, that hold these ordered places."""
    separator = line_separator(data, encoding)
    numbers: list[int] = []
    at, number = len(encoding.bom), 1
    for start in starts:
        number += count_separators(data, at, start, encoding, separator)
        at = start
        numbers.append(number)
    return numbers


def _at_lines(lines: list[int]) -> str:
    """`at line 3`, `at lines 3, 9`, with the rest counted."""
    shown = ", ".join(str(line) for line in lines[:_MOST_NAMED])
    more = f" and {len(lines) - _MOST_NAMED:,} more" if len(lines) > _MOST_NAMED else ""
    return f"at line{'s' if len(lines) > 1 else ''} {shown}{more}"
