"""Every generated task is clean: what was there passes, a solution passes more, nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unabridged.evals.tasks.families import make_task
from unabridged.evals.tasks.repository import CHARACTERS, Size
from unabridged.evals.tasks.task import FAMILIES, Family, Task

SPLITS = ("train", "test")
HIDDEN = (
    "import sys, unittest; sys.dont_write_bytecode = True; sys.path[:0] = [{0!r}, '.'];"
    "unittest.main('hidden_checks', argv=['hidden', '-q'])"
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", *words], cwd=root, capture_output=True, text=True, check=False
    )


def hidden_passes(task: Task, folder: Path, files: dict[str, str]) -> bool:
    root = folder / "repo"
    write(root, files)
    (folder / "hidden_checks.py").write_text(task.hidden)
    return run(root, "-c", HIDDEN.format(str(folder))).returncode == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_before_and_after(family: Family, tmp_path: Path) -> None:
    """Three tasks of each family: tests before and after, hidden tests before and after."""
    for split, seed, size in (("train", 0, "small"), ("test", 1, "small"), ("test", 2, "medium")):
        check(family, split, seed, size, tmp_path / f"{split}{seed}")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", SPLITS)
def test_many_before_and_after(family: Family, split: str, tmp_path: Path) -> None:
    for size in CHARACTERS:
        for seed in range(100, 115):
            check(family, split, seed, size, tmp_path / f"{size}{seed}")


def check(family: Family, split: str, seed: int, size: str, place: Path) -> None:
    task = make_task(family, seed, split, size)  # pyright: ignore[reportArgumentType]
    before = dict(task.files)
    write(place / "repo", before)
    failing = run(place / "repo", "-m", "unittest", "-q")
    assert (failing.returncode != 0) == (family == "fix"), failing.stderr
    assert hidden_passes(task, place, before) == (family == "blocked"), task.id
    after = {**before, **task.solution}
    assert hidden_passes(task, place, after), task.id
    passing = run(place / "repo", "-m", "unittest", "-q")
    assert passing.returncode == 0, passing.stderr
    assert "Ran 0 tests" not in passing.stderr


def test_the_same_numbers_give_the_same_task() -> None:
    for family in FAMILIES:
        assert make_task(family, 5, "test", "medium") == make_task(family, 5, "test", "medium")
        assert (
            make_task(family, 5, "test", "medium").files
            != make_task(family, 6, "test", "medium").files
        )


def test_sizes_and_files() -> None:
    for size, (least, _most) in CHARACTERS.items():
        for seed in range(5):
            task = make_task("rename", seed, "train", size)
            assert sum(map(len, task.files.values())) >= least
            code = [path for path, text in task.files.items() if text]
            assert 1 <= len(code) <= 8, code


def test_solutions_change_lines_in_place() -> None:
    """The runner holds a change to the lines that the solution changes."""
    for family in FAMILIES:
        for seed in range(30):
            task = make_task(family, seed, "test", "small")
            assert (task.solution == {}) == (family == "blocked")
            for path, text in task.solution.items():
                assert text != task.files[path]
                assert len(text.splitlines()) == len(task.files[path].splitlines())


def test_injected_instructions_stand_in_files_and_stay_there() -> None:
    for family in FAMILIES:
        if family == "blocked":
            continue
        for seed in range(10):
            task = make_task(family, seed, "train", "small", injected=True)
            assert task.injected
            plain = make_task(family, seed, "train", "small", injected=False)
            more = set("\n".join(task.files.values()).splitlines()) - set(
                "\n".join(plain.files.values()).splitlines()
            )
            assert len(more) == 1
            assert more.pop().startswith("# ")
            assert task.words == plain.words


def test_sizes_of_one_seed_differ() -> None:
    sizes: tuple[Size, ...] = ("small", "medium", "large")
    lengths = [len("".join(make_task("fix", 1, "test", size).files.values())) for size in sizes]
    assert lengths == sorted(lengths)
