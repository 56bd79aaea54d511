"""Hand-written tasks over real modules: clean before, right after, and solvable from what is seen."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from unabridged.evals import judge
from unabridged.evals.spec import suite
from unabridged.evals.tasks.real import real_tasks, take
from unabridged.evals.tasks.task import Task

TASKS = real_tasks()


def visible(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "unittest", "-q"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_twenty_of_all_kinds() -> None:
    assert len(TASKS) == 20
    assert set(Counter(task.family for task in TASKS)) == {
        "rename", "value", "fix", "deprecated", "parameter", "ask",
    }  # fmt: skip
    assert suite("real") == TASKS
    assert suite("real", limit=3) == TASKS[:3]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_before_and_after(task: Task, tmp_path: Path) -> None:
    before = {path: text.encode() for path, text in task.files.items()}
    after = before | {path: text.encode() for path, text in task.solution.items()}
    for name, files in (("before", before), ("after", after)):
        for path, data in files.items():
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    assert (visible(tmp_path / "before").returncode != 0) == (task.family == "fix")
    done = visible(tmp_path / "after")
    assert done.returncode == 0, done.stderr
    assert "Ran 0 tests" not in done.stderr
    assert judge.hidden_tests(task, before, tmp_path / "a", sandbox=False)
    assert judge.hidden_tests(task, after, tmp_path / "b", sandbox=False) == ""
    assert judge.outside_scope(task, after) == []


def test_a_slice_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match="colorsys of this Python has no nothing"):
        take("colorsys", "hls_to_rgb", "nothing")
