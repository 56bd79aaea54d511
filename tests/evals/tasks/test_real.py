"""Hand-written tasks over real modules: clean before, right after, and solvable from what is seen."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from unabridged.evals.suites import materials
from unabridged.evals.suites.generated import material
from unabridged.evals.tasks.real import real_tasks, take
from unabridged.evals.tasks.task import Task
from unabridged.evals.verify.check import Place, judge

TASKS = real_tasks()


def visible(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "unittest", "-q"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_twenty_of_all_kinds() -> None:
    assert len(TASKS) == 20
    assert set(Counter(task.family for task in TASKS)) == {
        "rename", "value", "fix", "deprecated", "parameter", "ask",
    }  # fmt: skip
    assert [one.slug for one in materials("real")] == [task.id for task in TASKS]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_before_and_after(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    made = material("real", task, {})
    folder = made.write(tmp_path / "task")
    checks = [dict(one) for one in made.steps[0].checks if one["kind"] in ("lines", "tests")]
    for name, wanted in (("before", 0), ("after", 1)):
        monkeypatch.setenv("UNABRIDGED_APP", str(tmp_path / name))
        monkeypatch.setenv("UNABRIDGED_TESTS", str(folder / "tests"))
        found = judge(Place(), checks)
        assert not checks or found["reward"] == wanted, found


def test_a_slice_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match="colorsys of this Python has no nothing"):
        take("colorsys", "hls_to_rgb", "nothing")
