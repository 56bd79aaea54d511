"""The executor on Ray: the trials of the process pool, with the same ends.

Ray is an extra of its own: `pip install 'unabridged[ray]'`, then `pytest -m long` of this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from unabridged.evals.executors import Executor, ProcessExecutor, executor
from unabridged.evals.report import problems
from unabridged.evals.runner import run_trials, trials_of
from unabridged.evals.spec import TaskSpec
from unabridged.evals.suites import load

End = tuple[str, float, str, list[str]]


def ends(tasks: list[TaskSpec], workers: Executor, out: Path, seed: int) -> list[End]:
    """How each trial ended: some solved, some not."""
    try:
        found = run_trials(
            [
                spec
                for agent in ("scripted:oracle", "scripted:guesser")
                for spec in trials_of(tasks, {"name": agent}, out, isolation="none", seed=seed)
            ],
            workers,
        )
    finally:
        workers.close()
    assert [one["exception_info"] for one in found] == [None] * len(found)
    return [
        (one["unabridged"]["key"], one["unabridged"]["reward"], one["unabridged"]["outcome"],
         problems(one["unabridged"]))
        for one in found
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ray_gives_the_rewards_of_the_pool(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    tasks = load("ask", tmp_path / "tasks", seed=3, limit=2)
    pool = ends(tasks, ProcessExecutor(1), tmp_path / "pool", seed=3)
    ray = ends(tasks, executor("ray", 1), tmp_path / "ray", seed=3)
    assert ray == pool
    # The oracle solves all, the guesser half: equal because alike, not because empty.
    assert [reward for _, reward, _, _ in pool[:2]] == [1.0] * 2
    assert {reward for _, reward, _, _ in pool[2:]} == {0.0, 1.0}


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
def test_a_cluster_that_is_not_there_is_one_line(
    address: str,
    evals: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Ray itself would try for many minutes, so it is not asked.
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    words = ["--suite", "ask", "--limit", "1", "--agent", "scripted:oracle"]
    assert evals(*words, "--executor", f"ray:{address}") == 2
    err = capsys.readouterr().err
    assert f"there is no Ray at {address}: " in err
    assert err.count("\n") == 1


def test_without_ray_it_says_what_to_install(
    evals: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["--suite", "ask", "--limit", "1", "--agent", "scripted:oracle"]
    assert evals(*words, "--executor", "ray") == 2
    assert "pip install 'unabridged[ray]'" in capsys.readouterr().err
