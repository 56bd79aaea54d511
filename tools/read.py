"""`read`: the real content of a file with line numbers, whatever its encoding."""

from __future__ import annotations

import threading
from typing import Annotated

from pydantic import Field

from ..agent.effects import Effect, EffectKind
from .base import Arguments, Context, Facts, Image, Result, Tool, ToolError, path_effects
from .files import Snapshot, in_thread, read_file
from .text import Encoding, Endings, detect, endings, numbered, plural, split_lines

PAGE = 200_000
"""Most characters of a file in one result, about 50,000 tokens."""

_MOST_IMAGE_BYTES = 20_000_000
_HEX_BYTES = 256
_MOST_NAMED = 20


class ReadArguments(Arguments):
    """A file and a range of its lines."""

    path: Annotated[str, Field(description="File, relative to the repository root.")]
    start: Annotated[
        int | None, Field(ge=1, description="First line to show, from 1. Default: the first.")
    ] = None
    end: Annotated[
        int | None, Field(ge=1, description="Last line to show, included. Default: the last.")
    ] = None


class Read(Tool[ReadArguments]):
    """Show a file."""

    name = "read"
    description = (
        "Show a file as it is now, each line after its number and a tab. A heading says the size, "
        "encoding and line endings; a file too long for one result comes in pages, and the heading "
        "says how to get the next. PNG, JPEG and WebP files are shown as images."
    )
    arguments = ReadArguments

    def effects(self, args: ReadArguments, facts: Facts) -> tuple[Effect, ...]:
        return path_effects(EffectKind.READ, facts.locate(args.path))

    async def run(self, args: ReadArguments, context: Context) -> Result:
        return await in_thread(lambda _stop: _run(args, context.facts, _stop))


def _run(args: ReadArguments, facts: Facts, _stop: threading.Event) -> Result:
    where = facts.locate(args.path)
    was = read_file(where, facts)
    mime = _image_type(was.data)
    if mime:
        return _image(where.name, was, mime)
    encoding = detect(was.data)
    if encoding is None:
        return Result(_describe_binary(where.name, was))
    text = encoding.decode(was.data[len(encoding.bom) :])
    ends = endings(text)
    lines = split_lines(text, ends.separator)
    first, last = _range(args, where.name, len(lines))
    end, cut = _page(lines, first, last)
    heading = _heading(where.name, was, encoding, ends, lines)
    whole = first == 1 and end == len(lines) and not cut
    body = numbered([lines[end - 1][:PAGE]] if cut else lines[first - 1 : end], first)
    if not whole:
        heading += f"\nShown: {_shown(first, end, cut, lines)}"
    return Result(
        text=f"{heading}\n{body}".rstrip("\n") if lines else heading,
        seen={where.name: was.digest} if whole else {},
    )


def _range(args: ReadArguments, name: str, count: int) -> tuple[int, int]:
    first, last = args.start or 1, args.end or count
    if first > max(count, 1):
        raise ToolError(f"{name} has {plural(count, 'line')}: `start` {first} is past its end.")
    if args.end is not None and last < first:
        raise ToolError(f"`end` {last} comes before `start` {first}.")
    return first, min(last, count)


def _page(lines: list[str], first: int, last: int) -> tuple[int, bool]:
    """Last line that fits in one result, and whether it is one line that does not fit itself."""
    size = 0
    for number in range(first, last + 1):
        size += len(lines[number - 1]) + 8
        if size > PAGE:
            return max(first, number - 1), number == first
    return last, False


def _shown(first: int, end: int, cut: bool, lines: list[str]) -> str:
    if cut:
        rest = f"tail -n +{first} FILE | head -n 1 | cut -c {PAGE + 1}-"
        size = len(lines[first - 1])
        more = f"; next lines: start={end + 1}" if end < len(lines) else ""
        return (
            f"the first {PAGE:,} of the {size:,} characters of line {first}; for the rest use "
            f"`shell`: {rest}{more}"
        )
    more = f"; next part: start={end + 1}" if end < len(lines) else ""
    return f"lines {first} to {end} of {len(lines):,}{more}"


def _heading(name: str, was: Snapshot, encoding: Encoding, ends: Endings, lines: list[str]) -> str:
    if not was.data:
        return f"{name}: empty file, 0 bytes"
    size = f"{plural(len(lines), 'line')}, {plural(len(was.data), 'byte')}"
    label = (
        f"{encoding.label} (a guess that fits every byte)" if encoding.guessed else encoding.label
    )
    notes = [f"{name}: {size}, {label}, {ends.describe()}"]
    if not ends.final:
        notes[0] += ", no newline at the end"
    if ends.mixed:
        notes.append(_describe_mixed(ends, lines))
    if encoding.damaged:
        notes.append(_describe_damage(was, encoding))
    return "\n".join(notes)


def _describe_mixed(ends: Endings, lines: list[str]) -> str:
    """Which lines end otherwise than most."""
    usual = "\r\n" if ends.crlf > ends.lf else "\n"
    odd = [n for n, line in enumerate(lines, 1) if line.endswith("\r\n") == (usual == "\n")]
    text = (
        f"Lines that end in {'LF' if usual != chr(10) else 'CRLF'}: {_numbers(odd)}." if odd else ""
    )
    if ends.cr:
        text += f" {plural(ends.cr, 'lone carriage return is', 'lone carriage returns are')} shown as \\r."
    return text.strip()


def _describe_damage(was: Snapshot, encoding: Encoding) -> str:
    """Where bytes stand that are no text in this encoding."""
    data = was.data[len(encoding.bom) :]
    places: list[int] = []
    at, line = 0, 1
    while len(places) <= _MOST_NAMED:
        try:
            data[at:].decode(encoding.codec)
        except UnicodeDecodeError as error:
            line += encoding.decode(data[at : at + error.start]).count("\n")
            places.append(line)
            at += error.end
        else:
            break
    return (
        f"Bytes that are not {encoding.codec.upper()} are shown as \\xE9 and the like, lines "
        f"{_numbers(list(dict.fromkeys(places)))}."
    )


def _numbers(lines: list[int]) -> str:
    more = " and more" if len(lines) > _MOST_NAMED else ""
    return ", ".join(str(line) for line in lines[:_MOST_NAMED]) + more


# --- what is not text --------------------------------------------------------------------------


def _image_type(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _image(name: str, was: Snapshot, mime: str) -> Result:
    size = len(was.data)
    if size > _MOST_IMAGE_BYTES:
        raise ToolError(
            f"{name} is an image of {size:,} bytes, more than the {_MOST_IMAGE_BYTES:,} that can "
            f"be shown. Make a smaller copy with `shell`, outside the files you were asked to change."
        )
    return Result(f"{name}: {mime}, {plural(size, 'byte')}", images=(Image(mime, was.data),))


def _describe_binary(name: str, was: Snapshot) -> str:
    shown = was.data[:_HEX_BYTES]
    rows = [
        f"{at:08x}  {shown[at : at + 16].hex(' '):<47}  {_printable(shown[at : at + 16])}"
        for at in range(0, len(shown), 16)
    ]
    which = f"first {len(shown)} bytes" if len(was.data) > len(shown) else "all of it"
    return "\n".join(
        [f"{name}: binary, {plural(len(was.data), 'byte')}, SHA-256 {was.digest}; {which}:", *rows]
    )


def _printable(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
