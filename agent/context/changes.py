"""What changed since the model was last told: a diff for each changed file, new files whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from .pack import decode, frame, frame_text

OPENING = """\
<changes>
The repository is not as above any more: what follows is newer. A <diff path="…"> applies to the
last text of that file above; a <file> or <outline> replaces it.
</changes>
"""

NAMED = """\
<changes>
The task names these files: here they are whole.
</changes>
"""

BY_OTHERS = """\
<changes>
Files changed since you were last told: by somebody else, or by a call of yours that was interrupted
or runs on. A <diff path="…"> applies to the text as you know it, your own edits included; a <file>
or <outline> replaces it.
</changes>
"""

_CONTEXT = 3
_MOST_COMPARED = 4_000_000
"""Product of line counts up to which lines are compared; beyond, the region is replaced whole."""
_WORTH_A_DIFF = 0.7


def change(name: str, old: bytes, new: bytes) -> str:
    """The shorter way to tell that a file known as `old` is `new` now: a diff or the whole file."""
    whole = frame(name, new)
    (old_text, old_encoding), (new_text, new_encoding) = decode(old), decode(new)
    if old_encoding != new_encoding:
        return whole
    diff = frame_text("diff", name, unified_diff(old_text, new_text))
    return diff if len(diff) < _WORTH_A_DIFF * len(whole) else whole


def unified_diff(old: str, new: str) -> str:
    """Hunks with three lines of context, without the two header lines. Lines end in `\\n` only."""
    a, b = _lines(old), _lines(new)
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    # Compare only what differs, with the lines around it for context.
    before = min(start, _CONTEXT)
    after = min(end, _CONTEXT)
    first = start - before
    a, b = a[first : len(a) - end + after], b[first : len(b) - end + after]
    return "".join(_hunks(a, b, first, before, after))


def _hunks(
    a: Sequence[str], b: Sequence[str], first: int, before: int, after: int
) -> Iterator[str]:
    if len(a) * len(b) <= _MOST_COMPARED:
        groups = SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(_CONTEXT)
    else:
        a_end, b_end = len(a) - after, len(b) - after
        groups = [
            [
                ("equal", 0, before, 0, before),
                ("replace", before, a_end, before, b_end),
                ("equal", a_end, len(a), b_end, len(b)),
            ]
        ]
    for group in groups:
        (_, a_start, _, b_start, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        yield (
            f"@@ -{_range(first + a_start, a_end - a_start)} "
            f"+{_range(first + b_start, b_end - b_start)} @@\n"
        )
        for tag, a_from, a_to, b_from, b_to in group:
            if tag == "equal":
                yield from (_line(" ", line) for line in a[a_from:a_to])
            else:
                yield from (_line("-", line) for line in a[a_from:a_to])
                yield from (_line("+", line) for line in b[b_from:b_to])


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def _line(sign: str, line: str) -> str:
    return sign + (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")


def _range(start: int, count: int) -> str:
    """As POSIX has it: from 1, the line before for an empty range, no count when it is 1."""
    first = start + 1 if count else start
    return str(first) if count == 1 else f"{first},{count}"
