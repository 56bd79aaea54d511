"""How recently and how often files changed, from the last commits. Positions, never clock times."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import git
from .errors import Stop, never

_COMMITS = 1000
_HALF_LIFE = 50
"""Commits after which a change counts half."""


@dataclass(frozen=True, slots=True)
class History:
    """What the last commits changed; files they did not change are absent."""

    age: dict[str, int] = field(default_factory=dict[str, int])
    """Commits since the last change; 0 for the newest commit."""
    rate: dict[str, float] = field(default_factory=dict[str, float])
    """Changes, each halved for every 50 commits since."""

    def oldest_first(self, names: Iterable[str]) -> list[str]:
        """Longest unchanged first, then by name: the same on every clone of a commit."""
        return sorted(names, key=lambda name: (-self.age.get(name, _COMMITS), name))


def read_history(root: Path, stop: Stop = never) -> History:
    """The history of the files below `root`; empty without git or commits."""
    command = f"log -n {_COMMITS} --format=%x01 --name-only -z --no-renames --relative HEAD -- ."
    (data,) = git.outputs(root, command.split(), stop=stop)
    history = History()
    for age, commit in enumerate((data or b"").split(b"\1")[1:]):
        weight = 0.5 ** (age / _HALF_LIFE)
        for record in commit.split(b"\0"):
            name = os.fsdecode(record.lstrip(b"\n"))
            if name:
                history.age.setdefault(name, age)
                history.rate[name] = history.rate.get(name, 0.0) + weight
    return history
