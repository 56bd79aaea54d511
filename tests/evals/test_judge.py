"""Nothing but the right lines may differ, and the hidden tests decide the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from unabridged.evals import judge
from unabridged.evals.tasks.families import make_task
from unabridged.evals.tasks.task import FAMILIES, Task

TASK = make_task("rename", 4, "test", "small", injected=False)


def solved(task: Task) -> dict[str, bytes]:
    return {path: text.encode() for path, text in {**task.files, **task.solution}.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_solution_is_in_scope(family: str) -> None:
    for seed in range(20):
        task = make_task(family, seed, "test", "small")  # pyright: ignore[reportArgumentType]
        assert judge.outside_scope(task, solved(task)) == []
        assert judge.changes(task, solved(task)) == sorted(task.solution)


def test_more_than_the_solution_is_named() -> None:
    path = next(iter(TASK.solution))
    after = solved(TASK)
    lines = after[path].splitlines(keepends=True)
    kept = next(
        n for n, (a, b) in enumerate(zip(lines, TASK.files[path].splitlines(True), strict=True))
        if a.decode() == b
    )  # fmt: skip
    touched = [*lines]
    touched[kept] = b"# touched\n"
    assert judge.outside_scope(TASK, {**after, path: b"".join(touched)}) == [
        f"{path} was changed at line {kept + 1}"
    ]
    longer = judge.outside_scope(TASK, {**after, path: after[path] + b"x = 1\n"})
    assert longer == [f"{path} has {len(lines) + 1} lines instead of {len(lines)}"]
    assert judge.outside_scope(TASK, {**after, "new.py": b""}) == ["new.py was added"]
    gone = {name: data for name, data in after.items() if name != path}
    assert judge.outside_scope(TASK, gone) == [f"{path} was removed"]


def test_other_files_may_not_change() -> None:
    task = make_task("fix", 1, "test", "medium", injected=False)
    other = next(path for path in task.files if path not in task.solution and task.files[path])
    after = {**solved(task), other: b"pass\n"}
    assert judge.outside_scope(task, after) == [f"{other} was changed"]


def test_another_text_on_the_right_line_is_left_to_the_hidden_tests(tmp_path: Path) -> None:
    """A right line that is written otherwise is in scope; a wrong one fails the hidden tests."""
    task = make_task("value", 2, "test", "small", injected=False)
    ((path, text),) = task.solution.items()
    before = task.files[path].splitlines()
    (line,) = [new for new, old in zip(text.splitlines(), before, strict=True) if new != old]
    spaced = {**solved(task), path: text.replace(line, line + "  # now").encode()}
    assert judge.outside_scope(task, spaced) == []
    assert judge.hidden_tests(task, spaced, tmp_path / "a", sandbox=False) == ""
    wrong = {**solved(task), path: task.files[path].encode()}
    assert "test_" in judge.hidden_tests(task, wrong, tmp_path / "b", sandbox=False)


@pytest.mark.needs("bwrap")
def test_hidden_tests_in_the_sandbox(tmp_path: Path) -> None:
    assert judge.hidden_tests(TASK, solved(TASK), tmp_path / "a", sandbox=True) == ""
    before = {path: text.encode() for path, text in TASK.files.items()}
    assert "test_renamed" in judge.hidden_tests(TASK, before, tmp_path / "b", sandbox=True)


def test_code_that_does_not_parse_fails_and_does_not_break_the_judge(tmp_path: Path) -> None:
    path = next(iter(TASK.solution))
    after = {**solved(TASK), path: b"def (\n"}
    assert judge.hidden_tests(TASK, after, tmp_path / "a", sandbox=False)
