"""The suites: each a function from a seed to tasks, written to a folder when they are run."""

from __future__ import annotations

import hashlib
import importlib
import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from ..material import Material
from ..spec import SpecError, TaskSpec

SUITES = {
    "nano": "generated:nano",
    "real": "generated:real",
    "ask": "ask:tasks",
    "safety": "safety:tasks",
    "refactor": "refactor:tasks",
    "recall": "recall:tasks",
    "trace": "trace:tasks",
    "marathon": "marathon:tasks",
}
"""Name -> module and function that makes the tasks."""

Part = Literal["whole", "tenth"]


def materials(name: str, seed: int = 0) -> Iterator[Material]:
    """The tasks of a suite, in their order. Raises SpecError for a name that is none."""
    if name not in SUITES:
        raise SpecError(
            f"there is no suite {name!r}: choose of {', '.join(SUITES)}, or give a folder of tasks"
        )
    module, _, function = SUITES[name].partition(":")
    yield from getattr(importlib.import_module(f".{module}", __name__), function)(seed)


def load(
    suite: str, into: Path, *, seed: int = 0, limit: int | None = None, part: Part = "whole"
) -> list[TaskSpec]:
    """The tasks of a suite by name, or of a folder, ready to run.

    Those of a named suite are written below `into`, where they are not yet. A folder holds one
    task, or one in each of its folders. Raises SpecError.
    """
    if suite not in SUITES and Path(suite).is_dir():
        return _of_folder(Path(suite).resolve())[:limit]
    made: Iterable[Material] = materials(suite, seed)
    if part == "tenth":
        made = tenth(list(made))
    folder = into.resolve() / f"{suite}-{seed}"
    return [TaskSpec.read(_written(one, folder)) for one in islice(made, limit)]


def _written(one: Material, folder: Path) -> Path:
    """The folder of a task; one that another version wrote is written anew."""
    place, fresh = folder / one.slug, folder / f".{one.slug}.new"
    if fresh.exists():
        shutil.rmtree(fresh)
    one.write(fresh)
    if place.exists():
        shutil.rmtree(place)
    fresh.rename(place)
    return place


def _of_folder(folder: Path) -> list[TaskSpec]:
    if (folder / "task.toml").is_file():
        return [TaskSpec.read(folder)]
    found = sorted(path.parent for path in folder.glob("*/task.toml"))
    if not found:
        raise SpecError(f"{folder}: neither a task nor a folder of tasks: there is no task.toml")
    return [TaskSpec.read(path) for path in found]


def tenth(tasks: Sequence[Material]) -> list[Material]:
    """A fixed tenth: of each family a tenth of its tasks and at least two, of unlike kinds first."""
    families: dict[str, list[Material]] = defaultdict(list)
    for one in tasks:
        families[one.family].append(one)
    chosen: list[Material] = []
    for some in families.values():
        kinds: dict[str, list[Material]] = defaultdict(list)
        for one in sorted(some, key=lambda task: hashlib.sha256(task.name.encode()).digest()):
            tags = one.settings.get("tags", {})
            kinds[f"{one.settings.get('ambiguous')} {tags.get('kind', '')}"].append(one)
        mixed = [
            queue[turn]
            for turn in range(max(map(len, kinds.values())))
            for queue in kinds.values()
            if turn < len(queue)
        ]
        chosen += mixed[: max(2, math.ceil(len(some) / 10))]
    return chosen
