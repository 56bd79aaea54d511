"""Unified diffs as lines to show: coloured as code, side by side where there is room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len
from rich.style import Style
from rich.text import Span, Text

from .palette import Palette
from .text import safe

SIDE_BY_SIDE = 110
"""Cells from which the two sides stand next to each other."""
MOST_COLOURED = 2000
"""Lines of a diff that are coloured as code; a longer one is shown in plain text, whole."""

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)")


@dataclass
class Row:
    """One line of a file, on its old side, its new one or both."""

    kind: Literal[" ", "-", "+", "\\"]
    text: str
    old: int = 0
    new: int = 0


@dataclass
class Hunk:
    """Lines that belong together."""

    heading: str
    rows: list[Row] = field(default_factory=list[Row])


@dataclass
class FileDiff:
    """The changes of one file; `words` are lines that are no part of a hunk."""

    name: str
    words: list[str] = field(default_factory=list[str])
    hunks: list[Hunk] = field(default_factory=list[Hunk])


def parse(diff: str) -> list[FileDiff]:
    """Read a unified diff of one or more files. Unknown lines are kept as words."""
    files: list[FileDiff] = []
    left_old = left_new = old = new = 0
    for line in diff.split("\n"):
        if files and files[-1].hunks and (left_old > 0 or left_new > 0):
            kind, text = line[:1] or " ", line[1:]
            rows = files[-1].hunks[-1].rows
            if kind == "-":
                rows.append(Row("-", text, old=old))
                old, left_old = old + 1, left_old - 1
                continue
            if kind == "+":
                rows.append(Row("+", text, new=new))
                new, left_new = new + 1, left_new - 1
                continue
            if kind == " ":
                rows.append(Row(" ", text, old=old, new=new))
                old, new, left_old, left_new = old + 1, new + 1, left_old - 1, left_new - 1
                continue
        if line.startswith("\\") and files and files[-1].hunks:
            files[-1].hunks[-1].rows.append(Row("\\", line[1:].strip()))
        elif line.startswith("--- "):
            files.append(FileDiff(_name(line[4:])))
        elif line.startswith("+++ ") and files:
            name = _name(line[4:])
            files[-1].name = name if name != "/dev/null" else files[-1].name
        elif (hunk := _HUNK.match(line)) and files:
            old, new = int(hunk[1]), int(hunk[2])
            sizes = re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line)
            assert sizes is not None
            left_old, left_new = int(sizes[1] or 1), int(sizes[2] or 1)
            files[-1].hunks.append(Hunk(hunk[3].strip()))
        elif line:
            if not files:
                files.append(FileDiff(""))
            files[-1].words.append(line)
    return files


def _name(text: str) -> str:
    name = text.split("\t")[0]
    return name[2:] if name[:2] in ("a/", "b/") else name


def lines(diff: str, width: int, palette: Palette, *, header: bool = True) -> list[Text]:
    """The diff as lines of at most `width` cells."""
    files = parse(diff)
    coloured = sum(len(hunk.rows) for file in files for hunk in file.hunks) <= MOST_COLOURED
    found: list[Text] = []
    for file in files:
        if header and file.name:
            added = sum(row.kind == "+" for hunk in file.hunks for row in hunk.rows)
            removed = sum(row.kind == "-" for hunk in file.hunks for row in hunk.rows)
            title = Text(safe(file.name), palette.strong)
            title.append(f"  +{added}", palette.good).append(f" -{removed}", palette.bad)
            found.append(title)
        found += [Text(safe(words), palette.dim) for words in file.words]
        for number, hunk in enumerate(file.hunks):
            if number or hunk.heading:
                found.append(Text(f"  ⋯ {safe(hunk.heading)}", palette.dim))
            sides = _coloured(file.name, hunk, palette) if coloured else _plain(hunk)
            if width >= SIDE_BY_SIDE:
                found += _beside(hunk, sides, width, palette)
            else:
                found += _unified(hunk, sides, width, palette)
    return found


def _plain(hunk: Hunk) -> list[Text]:
    return [Text(safe(row.text)) for row in hunk.rows]


def _coloured(name: str, hunk: Hunk, palette: Palette) -> list[Text]:
    """The rows as code: each side is coloured as one piece, so that strings over lines are seen."""
    found = _plain(hunk)
    for left_out in ("+", "-"):
        at = [i for i, row in enumerate(hunk.rows) if row.kind not in (left_out, "\\")]
        code = "\n".join(found[i].plain for i in at)
        coloured = highlight(code, name, palette)
        if coloured is None:
            return found
        for i, line in zip(at, coloured.split("\n", allow_blank=True), strict=False):
            if hunk.rows[i].kind == " " and left_out == "-":
                continue
            found[i] = line
    return found


def highlight(code: str, name: str, palette: Palette) -> Text | None:
    """Code in colours, by the file's name; None where nothing is known of it."""
    from pygments.lexers import get_lexer_for_filename
    from pygments.util import ClassNotFound
    from rich.syntax import Syntax

    try:
        lexer = get_lexer_for_filename(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
    syntax = Syntax("", lexer, theme=palette.code_theme, background_color="default")
    text = syntax.highlight(code)
    text.style = ""
    for i, span in enumerate(text.spans):
        text.spans[i] = Span(span.start, span.end, without_back(span.style))
    text.rstrip_end(len(code) + 1)
    if text.plain.endswith("\n") and not code.endswith("\n"):
        text.right_crop(1)
    return text


def without_back(style: str | Style) -> Style:
    """A style without its background: that of the line counts."""
    style = Style.parse(style) if isinstance(style, str) else style
    return Style(color=style.color, bold=style.bold, italic=style.italic, underline=style.underline)


def _number(value: int, size: int) -> str:
    return f"{value or '':>{size}}"


def _unified(hunk: Hunk, sides: list[Text], width: int, palette: Palette) -> Iterator[Text]:
    size = len(str(max((max(row.old, row.new) for row in hunk.rows), default=1)))
    for row, code in zip(hunk.rows, sides, strict=True):
        gutter = f"{_number(row.old, size)} {_number(row.new, size)} {row.kind} "
        yield from _cells(gutter, code, row.kind, width, palette)


def _beside(hunk: Hunk, sides: list[Text], width: int, palette: Palette) -> Iterator[Text]:
    size = len(str(max((max(row.old, row.new) for row in hunk.rows), default=1)))
    half = (width - 1) // 2
    for left, right in _pairs(hunk):
        cells: list[list[Text]] = []
        for at, old in ((left, True), (right, False)):
            if at is None:
                cells.append([])
                continue
            row = hunk.rows[at]
            gutter = f"{_number(row.old if old else row.new, size)} {row.kind} "
            cells.append(list(_cells(gutter, sides[at], row.kind, half, palette)))
        for i in range(max(len(cells[0]), len(cells[1]))):
            line = cells[0][i] if i < len(cells[0]) else Text(" " * half)
            line = line.copy()
            line.append("│", palette.dim)
            yield line + (cells[1][i] if i < len(cells[1]) else Text(" " * half))


def _pairs(hunk: Hunk) -> Iterator[tuple[int | None, int | None]]:
    """Which rows stand next to each other."""
    olds: list[int] = []
    news: list[int] = []

    def flush() -> Iterator[tuple[int | None, int | None]]:
        for i in range(max(len(olds), len(news))):
            yield (olds[i] if i < len(olds) else None, news[i] if i < len(news) else None)
        olds.clear()
        news.clear()

    for i, row in enumerate(hunk.rows):
        if row.kind == "-":
            olds.append(i)
        elif row.kind == "+":
            news.append(i)
        else:
            yield from flush()
            yield (i, i)
    yield from flush()


def _cells(gutter: str, code: Text, kind: str, width: int, palette: Palette) -> Iterator[Text]:
    """One row, wrapped into lines of exactly `width` cells."""
    back = {"+": palette.added, "-": palette.removed}.get(kind, Style())
    mark = {"+": palette.good, "-": palette.bad}.get(kind, palette.dim)
    room = max(width - len(gutter), 8)
    for number, piece in enumerate(_wrapped(code, room)):
        line = Text(gutter if number == 0 else " " * len(gutter), mark)
        line.append_text(piece)
        line.append(" " * max(width - cell_len(line.plain), 0))
        line.stylize_before(back)
        yield line


def _wrapped(code: Text, room: int) -> list[Text]:
    """Cut into pieces by cells; code is not moved around by words."""
    if cell_len(code.plain) <= room:
        return [code]
    cuts: list[int] = []
    used = 0
    for i, char in enumerate(code.plain):
        size = cell_len(char)
        if used + size > room:
            cuts.append(i)
            used = 0
        used += size
    return list(code.divide(cuts))
