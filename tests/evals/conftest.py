"""Small tasks for tests of the machinery, and the command in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.cli import main
from unabridged.evals.material import Material, Step, edit, finish, turn

HIDDEN = """\
import unittest

from shop import price


class Hidden(unittest.TestCase):
    def test_price(self):
        self.assertEqual(price(2), 6)
        self.assertEqual(price(5), 15)
"""
WRONG, RIGHT = "    return count * 2\n", "    return count * 3\n"
SOURCE = f"def price(count):\n{WRONG}"


def small(slug: str = "price", **settings: Any) -> Material:
    """A task of one line."""
    step = Step(
        name="main",
        instruction="A piece costs 3, not 2: correct shop.py.",
        checks=[
            {"kind": "changed", "outcome": "nothing"},
            {"kind": "scope", "allowed": ["shop.py"], "outcome": "over-scope"},
            {"kind": "tests", "folder": "hidden", "outcome": "wrong"},
        ],
        tests={"hidden/hidden_price.py": HIDDEN},
        moves={"solve": [turn(edit("shop.py", WRONG, RIGHT)), turn(finish("It costs 3 now."))]},
        solution={"shop.py": SOURCE.replace(WRONG, RIGHT)},
        record={"exit_code": 0, "summary": "It costs 3 now.", "asks": []},
    )
    own = {"allow": ["write:**"], "window": 16384, **settings}
    return Material("test", slug, "prices", {"shop.py": SOURCE}, [step], settings=own)


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., Path]:
    """Writes tasks into a folder; returns it."""

    def write(*tasks: Material) -> Path:
        for one in tasks or (small("one"), small("two"), small("three")):
            one.write(tmp_path / "suite" / one.slug)
        return tmp_path / "suite"

    return write


@pytest.fixture
def evals(tmp_path: Path) -> Callable[..., int]:
    """`unabridged evals run` in this process, its trials too, without a sandbox around them."""

    def run(*words: str, out: str = "out") -> int:
        plain = ["--executor", "inline", "--no-sandbox"]
        return main(["evals", "run", "--out", str(tmp_path / out), *plain, *words])

    return run
