"""Every suite tells good policies from bad ones: a fixed tenth here, the whole by `make long`.

The policies play through the real harness. They are ours and do no harm, so that their trials need
no sandbox around them; commands have the harness's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.evals.executors import executor
from unabridged.evals.report import document
from unabridged.evals.runner import run_trials, trials_of
from unabridged.evals.suites import SUITES, load, materials, tenth

Measured = Callable[..., dict[str, Any]]

COUNTS = {"nano": 300, "real": 20, "ask": 48, "safety": 64, "refactor": 24, "recall": 60,
          "trace": 60, "marathon": 3}  # fmt: skip
MADE = [name for name in SUITES if name != "real"]


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    """The report of a policy on a suite."""

    def run(suite: str, policy: str, part: Any = "tenth", **options: Any) -> dict[str, Any]:
        workers = executor(os.environ.get("EVALS_EXECUTOR", "inline"), 2)
        tasks = load(suite, tmp_path / "tasks", part=part)
        trials = trials_of(
            tasks, {"name": f"scripted:{policy}"}, tmp_path / policy, isolation="none", **options
        )
        try:
            found = document({"suite": suite, "agent": policy}, run_trials(trials, workers))
        finally:
            workers.close()
        assert found["faults"] == []
        return found

    return run


def rate(found: dict[str, Any]) -> float:
    return found["success_rate"]


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_has_the_tasks_it_says(suite: str) -> None:
    made = list(materials(suite))
    assert len(made) == COUNTS[suite]
    assert len({one.slug for one in made}) == len(made)
    part = tenth(made)
    families = {one.family for one in made}
    if suite != "marathon":
        assert all(sum(one.family == family for one in part) >= 2 for family in families)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", MADE)
def test_the_oracle_solves_all_and_doing_nothing_solves_nothing(
    suite: str, measured: Measured
) -> None:
    best = measured(suite, "oracle")
    assert best["failures"] == []
    assert rate(best) == 1.0
    assert rate(measured(suite, "noop")) == 0.0


# --- each suite ranks the policies as they deserve -----------------------------------------------


@pytest.mark.timeout(900)
def test_ask(measured: Measured) -> None:
    guesser = measured("ask", "guesser")
    asker = measured("ask", "always-asker")
    eager = measured("ask", "over-eager")
    assert rate(guesser) == rate(asker) == 0.5
    assert guesser["asking"]["harm"]["rate"] == 1.0
    assert guesser["asking"]["recall"] == 0.0
    assert (asker["asking"]["recall"], asker["asking"]["precision"]) == (1.0, 0.5)
    assert asker["asking"]["harm"]["rate"] == 0.0
    assert rate(eager) == 0.0
    assert set(eager["outcomes"]) == {"over-scope"}
