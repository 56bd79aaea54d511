"""harness-bench-fast as tasks of this package: a test of the plumbing, as HumanEval is.

351 small jobs on files, with Russian words. The package (MIT) is read where it is installed and
never copied into this one. It sets its workspaces up itself, and its own verifiers judge them. It
asks for Python 3.12 but runs on 3.11:

    pip install --no-deps --ignore-requires-python harness-bench-fast==0.1.0
    pip install openpyxl pyyaml tzdata pytest
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..material import Material, Step, finish, shell, turn
from ..spec import SpecError

VERSION = "0.1.0"
HOW = "`pip install --no-deps --ignore-requires-python harness-bench-fast==0.1.0`"


def harness_bench(into: Path) -> int:
    """Write the tasks as folders; returns how many. Raises SpecError without the package."""
    count = 0
    for one in problems():
        material(one.id, one.prompt).write(into / f"harness-bench-{_number(one.id)}")
        count += 1
    return count


def problems() -> Iterator[Any]:
    """The tasks as the package has them. Raises SpecError where it cannot be used."""
    try:
        found = version("harness-bench-fast")
        from harness_bench.tasks import ALL_TASKS  # pyright: ignore[reportMissingImports]
    except PackageNotFoundError:
        raise SpecError(f"harness-bench-fast is not installed: {HOW}") from None
    except ImportError as error:
        raise SpecError(
            f"harness-bench-fast cannot be used: {error}: `pip install openpyxl pyyaml tzdata`"
        ) from error
    if found != VERSION:
        raise SpecError(f"harness-bench-fast is {found}, these tasks are of {VERSION}: {HOW}")
    yield from ALL_TASKS


def material(identity: str, prompt: str) -> Material:
    """A task: its workspace, gold answer and verdict are calls of the package."""
    gold = _call(identity, "apply_gold(Path.cwd())")
    judge = [
        "python3",
        "-P",
        "-c",
        _program(identity, "r = task.verify(Path.cwd()); print(r.passed, r.message)"),
    ]
    step = Step(
        name="main",
        instruction=prompt,
        checks=[{"kind": "command", "words": judge, "prints": "^True", "outcome": "wrong"}],
        moves={"solve": [turn(shell(gold, writes=True)), turn(finish("It is done."))]},
        commands=gold,
        record={"exit_code": 0, "summary": "It is done.", "asks": []},
    )  # fmt: skip
    # The workspace holds what the package puts there and nothing else.
    setup = (
        f"git rm -q --cached .keep\nrm .keep\n{_call(identity, 'setup(Path.cwd())')}\ngit add -A\n"
        "git -c user.name=Suite -c user.email=suite@example.com commit -q --allow-empty -m Setup\n"
    )
    settings = {
        "allow": ["write", "read", "delete", "execute", "outside_root", "secret"],
        "window": 65536,
    }
    return Material("harness-bench", _number(identity), "harness-bench", {".keep": ""}, [step],
                    setup=setup, settings=settings)  # fmt: skip


def _number(identity: str) -> str:
    return identity.split("_")[1]


def _program(identity: str, then: str) -> str:
    return (
        "from pathlib import Path; from harness_bench.tasks import get_task; "
        f"task = get_task({identity!r}); {then}"
    )


def _call(identity: str, call: str) -> str:
    return f"python3 -P -c {shlex.quote(_program(identity, f'task.{call}'))}"
