"""What is run and what comes of it: suites, trials, outcomes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .tasks.families import make_task
from .tasks.real import real_tasks
from .tasks.repository import Size
from .tasks.task import Family, Task

NANO: Mapping[Family, int] = {
    "rename": 60, "value": 50, "fix": 45, "deprecated": 40, "parameter": 40, "ask": 45, "blocked": 20,
}  # fmt: skip
"""Tasks of each family in the suite: 300."""

SIZES: Mapping[Size, int] = {"small": 55, "medium": 25, "large": 12, "huge": 8}
"""How often each size comes, in a hundred."""

SUITES = ("nano", "real")


def suite(name: str, *, seed: int = 0, limit: int | None = None) -> list[Task]:
    """The tasks of a suite; the first `limit` are a fair mix.

    `nano` is generated, all of the held-out split, other tasks for another seed. `real` is twenty
    tasks written by hand.

    Raises ValueError for a name that is none.
    """
    if name not in SUITES:
        raise ValueError(f"there is no suite {name!r}: choose of {', '.join(SUITES)}")
    if name == "real":
        return real_tasks()[:limit]
    rng = random.Random(f"suite {name} {seed}")  # noqa: S311 - not a secret
    families: list[Family] = [family for family, count in NANO.items() for _ in range(count)]
    rng.shuffle(families)
    chosen: list[Task] = []
    for number, family in enumerate(families[:limit]):
        size = rng.choices(list(SIZES), list(SIZES.values()))[0]
        chosen.append(make_task(family, 1000 * seed + number, "test", size))
    return chosen


@dataclass(frozen=True)
class Outcome:
    """How one trial ended."""

    id: str
    family: Family
    size: Size
    injected: bool
    success: bool
    asked: bool
    """Whether it ended in a question to the user."""
    exit_code: int | None
    """Of the agent; None when it had to be stopped."""
    problems: tuple[str, ...]
    """Why it is no success; empty when it is one."""
    pack_tokens: int | None
    """Of the repository as the agent counted it."""
    steps: int | None
    tokens: int | None
    """In and out, all requests."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """One line of the results."""
        return {**self.__dict__, "problems": list(self.problems)}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Outcome:
        """Read a line back."""
        return cls(**{**stored, "problems": tuple(stored["problems"])})


def chosen_of(outcomes: Sequence[Outcome], **values: Any) -> list[Outcome]:
    """Those with these values."""
    return [o for o in outcomes if all(getattr(o, k) == v for k, v in values.items())]
