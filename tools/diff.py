"""Unified diffs of bytes: what a person approves and what the log keeps.

Lines are compared with their endings, so that a changed ending is a changed line. What would not
be seen is written out: `\\r`, other control characters, marks that reorder text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from .text import Encoding, count_separators, endings, line_separator, plural, split_lines

_CONTEXT = 3
_MOST_COMPARED = 2_000
"""Larger differing parts are shown as all removed, all added: comparing them takes minutes."""
_MOST_HUNKS = 2_000


@dataclass(frozen=True)
class Splice:
    """Bytes `start` to `end` of a file are replaced by `new`."""

    start: int
    end: int
    new: bytes


def splice_diff(name: str, data: bytes, splices: Sequence[Splice], encoding: Encoding) -> str:
    """Diff of a file and the file with ordered, disjoint splices; looks only at their places."""
    separator = line_separator(data, encoding)
    regions = _regions(data, splices, encoding, separator)
    hunks: list[_Hunk] = []
    at, line, moved = len(encoding.bom), 0, 0
    for start, end, inside in regions[:_MOST_HUNKS]:
        line += count_separators(data, at, start, encoding, separator)
        at = start
        before = data[start:end]
        after = b"".join(_pieces(before, start, inside))
        old = split_lines(encoding.decode(before), separator)
        new = split_lines(encoding.decode(after), separator)
        hunks += _compare(old, new, line, line + moved)
        moved += len(new) - len(old)
    return _render(name, name, hunks, left_out=len(regions) - _MOST_HUNKS)


def whole_diff(
    name: str, before: bytes | None, after: bytes, encoding: Encoding, old_encoding: Encoding
) -> str:
    """Diff of a whole file; `before` is None for a new one."""
    old_text = old_encoding.decode((before or b"")[len(old_encoding.bom) :])
    new_text = encoding.decode(after[len(encoding.bom) :])
    old = split_lines(old_text, endings(old_text).separator)
    new = split_lines(new_text, endings(new_text).separator)
    return _render("/dev/null" if before is None else name, name, _compare(old, new, 0, 0))


def spliced(data: bytes, splices: Sequence[Splice]) -> list[bytes | memoryview]:
    """The new content, without copying what stays."""
    return _pieces(data, 0, splices)


def _pieces(data: bytes, offset: int, splices: Sequence[Splice]) -> list[bytes | memoryview]:
    view = memoryview(data)
    pieces: list[bytes | memoryview] = []
    at = 0
    for splice in splices:
        pieces += [view[at : splice.start - offset], splice.new]
        at = splice.end - offset
    pieces.append(view[at:])
    return pieces


def _regions(
    data: bytes, splices: Sequence[Splice], encoding: Encoding, separator: str
) -> list[tuple[int, int, list[Splice]]]:
    """Whole lines around each splice with some context, merged where they meet."""
    mark = separator.encode(encoding.codec)
    regions: list[tuple[int, int, list[Splice]]] = []
    for splice in splices:
        start = _back(data, splice.start, mark, _CONTEXT + 1, len(encoding.bom))
        end = _forward(data, splice.end, mark, _CONTEXT + 1)
        if regions and start <= regions[-1][1]:
            first, _, inside = regions[-1]
            regions[-1] = (first, end, [*inside, splice])
        else:
            regions.append((start, end, [splice]))
    return regions


def _back(data: bytes, at: int, mark: bytes, count: int, least: int) -> int:
    """Start of the line `count` - 1 lines above the one that holds `at`."""
    for _ in range(count):
        found = data.rfind(mark, least, at)
        while found > 0 and found % len(mark):
            found = data.rfind(mark, least, found + len(mark) - 1)
        if found < 0:
            return least
        at = found
    return at + len(mark)


def _forward(data: bytes, at: int, mark: bytes, count: int) -> int:
    """End of the line `count` - 1 lines below the one that holds `at`."""
    for _ in range(count):
        found = data.find(mark, at)
        while found > 0 and found % len(mark):
            found = data.find(mark, found + 1)
        if found < 0:
            return len(data)
        at = found + len(mark)
    return at


# --- hunks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hunk:
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: list[tuple[str, str]]
    """Sign and line with its ending."""


def _compare(old: list[str], new: list[str], old_at: int, new_at: int) -> list[_Hunk]:
    """Hunks of two lists of lines that start at these lines (from 0) of their files."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    keep_head, keep_tail = max(0, head - _CONTEXT), max(0, tail - _CONTEXT)
    old = old[keep_head : len(old) - keep_tail]
    new = new[keep_head : len(new) - keep_tail]
    hunks: list[_Hunk] = []
    for group in _groups(old, new, head - keep_head, tail - keep_tail):
        lines: list[tuple[str, str]] = []
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                lines += [(" ", line) for line in old[i1:i2]]
                continue
            lines += [("-", line) for line in old[i1:i2]]
            lines += [("+", line) for line in new[j1:j2]]
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        hunks.append(
            _Hunk(old_at + keep_head + i1, i2 - i1, new_at + keep_head + j1, j2 - j1, lines)
        )
    return hunks


def _groups(
    old: list[str], new: list[str], head: int, tail: int
) -> list[list[tuple[str, int, int, int, int]]]:
    """Operations in groups, `head` and `tail` being the numbers of equal lines at both ends."""
    if old == new:
        return []
    if max(len(old), len(new)) <= _MOST_COMPARED:
        matcher = SequenceMatcher(None, old, new, autojunk=False)
        return [list(group) for group in matcher.get_grouped_opcodes(_CONTEXT)]
    last_old, last_new = len(old) - tail, len(new) - tail
    whole = [
        ("equal", 0, head, 0, head),
        ("replace", head, last_old, head, last_new),
        ("equal", last_old, len(old), last_new, len(new)),
    ]
    return [whole]


def _render(old_name: str, new_name: str, hunks: list[_Hunk], left_out: int = 0) -> str:
    if not hunks:
        return ""
    shown = [line for hunk in hunks for _, line in hunk.lines]
    plain = "\r\n" if all(line.endswith("\r\n") for line in shown) else "\n"
    old_label = old_name if old_name == "/dev/null" else f"a/{old_name}"
    note = "\tevery line shown ends in CRLF" if plain == "\r\n" else ""
    out = [f"--- {old_label}", f"+++ b/{new_name}{note}"]
    for hunk in hunks:
        old_range = _range(hunk.old_start, hunk.old_count)
        new_range = _range(hunk.new_start, hunk.new_count)
        out.append(f"@@ -{old_range} +{new_range} @@")
        for sign, line in hunk.lines:
            out.append(sign + visible(line.removesuffix(plain)))
            if not line.endswith(("\n", "\r")):
                out.append("\\ No newline at end of file")
    if left_out > 0:
        out.append(f"(and {plural(left_out, 'more place')}, changed in the same way)")
    return "\n".join(out) + "\n"


def _range(start: int, count: int) -> str:
    """As diff writes it: numbers from 1; an empty range names the line before it."""
    return f"{start + 1 if count else start},{count}"


def visible(text: str) -> str:
    """Text with every character that a terminal would not show, or would act on, written out."""
    if text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char == "\r":
        return "\\r"
    if char == "\n":
        return "\\n"
    if char == "\t" or char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02X}"
    return (
        f"\\x{code:02X}" if code < 256 else f"\\u{code:04X}" if code < 65536 else f"\\U{code:08X}"
    )
