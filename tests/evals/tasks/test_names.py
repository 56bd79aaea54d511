"""Two vocabularies that share nothing."""

from __future__ import annotations

import random
import re

from unabridged.evals.tasks.families import make_task
from unabridged.evals.tasks.names import Names, Split, split_of
from unabridged.evals.tasks.task import FAMILIES

STYLES = ("function", "class", "constant", "module", "variable")


def pieces(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]


def test_every_piece_belongs_to_one_split() -> None:
    for split in ("train", "test"):
        names = Names(random.Random(7), split)
        for _ in range(300):
            for style in STYLES:
                for piece in pieces(names.fresh(style)):
                    assert split_of(piece) == split, piece


def test_no_fresh_name_contains_another() -> None:
    names = Names(random.Random(3), "train")
    made = [names.fresh(random.Random(n).choice(STYLES)).lower() for n in range(150)]
    for one in made:
        assert [other for other in made if one in other] == [one]


def test_no_name_of_a_held_out_task_is_in_a_training_task() -> None:
    def made(split: Split) -> set[str]:
        found: set[str] = set()
        for family in FAMILIES:
            for seed in range(15):
                task = make_task(family, seed, split, "small", injected=False)
                names = re.findall(r"(?:def|class) (\w+)", "\n".join(task.files.values()))
                found |= {n for n in names if not n.lower().startswith("test")}
        return found - {"__init__"}

    train, test = made("train"), made("test")
    assert len(train) > 150
    assert len(test) > 150
    assert {p for n in train for p in pieces(n)}.isdisjoint({p for n in test for p in pieces(n)})
