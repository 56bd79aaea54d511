"""The text of a file that is most like what was looked for, to put in an error."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from difflib import SequenceMatcher
from itertools import accumulate, islice

from .text import Encoding, bare, endings, numbered, split_lines

_MOST_PLACES = 200
_MOST_WORDS = 40
_MOST_LINES = 40
_LEAST_ALIKE = 0.4
_LONGEST = 400


def describe_nearest(old: str, name: str, data: bytes, encoding: Encoding) -> str:
    """Where `old` nearly occurs, with line numbers and the first difference."""
    text = encoding.decode(data[len(encoding.bom) :])
    lines = split_lines(text, endings(text).separator)
    wanted = old.removesuffix("\n").split("\n")
    if all(re.match(r"\s*\d+\t", line) for line in wanted):
        return "`old` begins with the line numbers that `read` shows: leave them out."
    at = _nearest(wanted, lines)
    if at is None:
        return f"Nothing in {name} resembles it: read the file, or `search` for a part of it."
    found = lines[at : at + len(wanted)][:_MOST_LINES]
    last = at + len(found)
    where = f"line {last}" if len(found) == 1 else f"lines {at + 1} to {last}"
    shown = numbered([_cut(bare(line)) for line in found], at + 1)
    text = f"The nearest text is at {where}:\n{shown}"
    pairs = list(zip(wanted, map(bare, found), strict=False))
    for number, (want, have) in enumerate(pairs):
        # `old` may begin and end within a line
        part = have if number else have[-len(want) :]
        part = part[: len(want)] if number == len(wanted) - 1 else part
        if want != part and not (len(wanted) == 1 and want in have):
            return (
                f"{text}\nFirst difference, line {at + 1 + number}: expected {_cut(want)!r}, "
                f"the file has {_cut(have)!r}."
            )
    return text


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} [{len(line):,} characters in all]"


def _nearest(wanted: list[str], lines: list[str]) -> int | None:
    """Start of the most similar run of lines."""
    best: tuple[float, int] = (_LEAST_ALIKE, -1)
    text = "\n".join(wanted)
    matcher = SequenceMatcher(None, "", text[:_LONGEST], autojunk=False)
    for start in _candidates(wanted, lines):
        window = "\n".join(bare(line) for line in lines[start : start + len(wanted)])
        matcher.set_seq1(window[:_LONGEST])
        if matcher.real_quick_ratio() > best[0] and matcher.quick_ratio() > best[0]:
            best = max(best, (matcher.ratio(), -start))
    return None if best == (_LEAST_ALIKE, -1) else -best[1]


def _candidates(wanted: list[str], lines: list[str]) -> list[int]:
    """Starts worth comparing: lines that share words with the wanted ones, rare words first."""
    offsets: dict[str, int] = {}
    for offset, line in enumerate(wanted):
        for word in re.findall(r"\w+", line):
            offsets.setdefault(word, offset)
    text = "".join(lines)
    starts = list(accumulate(map(len, lines), initial=0))
    votes: dict[int, float] = defaultdict(float)
    for word in sorted(offsets, key=len, reverse=True)[:_MOST_WORDS]:
        found = [
            match.start() for match in islice(re.finditer(re.escape(word), text), _MOST_PLACES)
        ]
        for place in found:
            start = bisect_right(starts, place) - 1 - offsets[word]
            votes[max(0, start)] += len(word) / len(found)
    ranked = sorted(votes, key=lambda start: (-votes[start], start))[:_MOST_PLACES]
    return ranked or list(range(min(len(lines), _MOST_PLACES)))
