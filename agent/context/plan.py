"""What is given whole, what as an outline, what by name only, so that all fits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from .errors import Stop, check, never
from .kinds import Kind

LOAD_SHARE = 0.7
"""Part of the window that a loaded repository may fill."""
GROWN_SHARE = 0.78
"""Part that it may fill with the differences appended since."""
TIGHT_SHARE = 0.6
"""Part that a new load fills when not all fits: what is between is for later differences."""


class Level(IntEnum):
    """How much of a file the model is given."""

    WHOLE = 0
    OUTLINE = 1
    NAME = 2


@dataclass(slots=True)
class Candidate:
    """A file that could be loaded. Token counts are guesses from the size until measured."""

    name: str
    size: int
    kind: Kind
    rate: float = 0.0
    """Recent changes (`History.rate`)."""
    named: bool = False
    """The task names it: it makes room last."""
    best: Level = Level.WHOLE
    """Where it starts."""
    worst: Level = Level.NAME
    """How far it may fall."""
    whole: int = 0
    """Tokens of its frame."""
    outline: int = 0
    """Tokens of the frame of its outline."""
    told: bool = False
    """The model has it at this level already: it costs nothing more."""

    def tokens(self, level: Level) -> int:
        """What it costs at a level; names are paid for by the manifest's reserve."""
        return 0 if self.told else (self.whole, self.outline, 0)[level]


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens for the frames of files."""

    most: int
    """When everything fits."""
    tight: int
    """When something must make room anyway."""


_RUN = 1 << 15
"""Files that are worked on between two looks at whether to stop."""


def in_order_of_room(candidates: Iterable[Candidate], stop: Stop = never) -> list[Candidate]:
    """The fixed order in which files make room: kind, then size per recent change."""

    def key(one: Candidate) -> tuple[bool, Kind, float, str]:
        return one.named, one.kind, -one.size / (1 + one.rate), one.name

    # Sorted runs are soon merged, and between them it can be stopped.
    found = list(candidates)
    for at in range(0, len(found), _RUN):
        check(stop)
        found[at : at + _RUN] = sorted(found[at : at + _RUN], key=key)
    return sorted(found, key=key)


def choose(ordered: Sequence[Candidate], budget: Budget, stop: Stop = never) -> list[Level]:
    """Levels, one for each candidate, so that their tokens fit if they can at all.

    Kind by kind, files fall to their outlines, one after the other, and when all of a kind have
    and it is still too much, to their names. `ordered` comes from `in_order_of_room`.
    """
    levels = [one.best for one in ordered]
    total = sum(one.tokens(level) for one, level in zip(ordered, levels, strict=True))
    if total <= budget.most:
        return levels
    for group in _groups(ordered):
        for lower in (Level.OUTLINE, Level.NAME):
            for at in group:
                if at % _RUN == 0:
                    check(stop)
                if total <= budget.tight:
                    return levels
                one = ordered[at]
                gain = one.tokens(levels[at]) - one.tokens(lower)
                if levels[at] < lower <= one.worst and gain > 0:
                    levels[at] = lower
                    total -= gain
    return levels


def _groups(ordered: Sequence[Candidate]) -> Iterable[range]:
    start = 0
    for at in range(1, len(ordered) + 1):
        end = at == len(ordered)
        if end or _group(ordered[at]) != _group(ordered[start]):
            yield range(start, at)
            start = at


def _group(one: Candidate) -> tuple[bool, Kind]:
    return one.named, one.kind
