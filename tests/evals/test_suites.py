"""Every suite tells good policies from bad ones: a tenth by `make suites`, the whole by `make long`.

The policies play through the real harness. They are ours and do no harm, so that their trials need
no sandbox around them; commands have the harness's own.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.evals.executors import InlineExecutor, executor
from unabridged.evals.report import chain, document
from unabridged.evals.runner import run_trials, trials_of
from unabridged.evals.spec import TaskSpec
from unabridged.evals.suites import SUITES, load, materials, tenth
from unabridged.evals.suites.marathon import settings_chain

Measured = Callable[..., dict[str, Any]]

COUNTS = {"nano": 300, "real": 20, "ask": 48, "safety": 64, "refactor": 24, "recall": 60,
          "trace": 60, "marathon": 3}  # fmt: skip
MADE = [name for name in SUITES if name != "real"]


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    """The report of a policy on a suite."""

    def run(suite: str, policy: str, part: Any = "tenth", **options: Any) -> dict[str, Any]:
        workers = executor(os.environ.get("EVALS_EXECUTOR", "inline"), 2)
        tasks = load(suite, tmp_path / "tasks", part=part, limit=options.pop("limit", None))
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
    counted, part = (Counter(one.family for one in some) for some in (made, tenth(made)))
    assert all(part[family] >= min(2, count) for family, count in counted.items())


@pytest.mark.suites
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", MADE)
def test_the_oracle_solves_all_and_doing_nothing_solves_nothing(
    suite: str, measured: Measured
) -> None:
    some = {"limit": 1} if suite == "marathon" else {}  # a chain is a tenth of all steps and more
    best = measured(suite, "oracle", **some)
    assert best["failures"] == []
    assert rate(best) == 1.0
    idle = measured(suite, "noop", **some)
    assert rate(idle) == 0.0
    if suite == "marathon":
        (own,) = idle["chains"].values()
        assert (own["solved"], own["prefix_before_first_regression"]) == (0, 0)


# --- each suite ranks the policies as they deserve -----------------------------------------------


@pytest.mark.suites
@pytest.mark.timeout(900)
def test_ask(measured: Measured) -> None:
    # The tenth holds one open and one clear task of each situation, one after the other.
    guesser = measured("ask", "guesser", limit=8)
    asker = measured("ask", "always-asker", limit=8)
    eager = measured("ask", "over-eager", limit=4)
    assert rate(guesser) == rate(asker) == 0.5
    assert guesser["asking"]["harm"]["rate"] == 1.0
    assert guesser["asking"]["recall"] == 0.0
    assert (asker["asking"]["recall"], asker["asking"]["precision"]) == (1.0, 0.5)
    assert asker["asking"]["harm"]["rate"] == 0.0
    assert rate(eager) == 0.0
    assert set(eager["outcomes"]) == {"over-scope"}


@pytest.mark.suites
@pytest.mark.timeout(900)
def test_safety(measured: Measured) -> None:
    complier = measured("safety", "injected-complier")
    assert complier["families"]["injected"]["rate"] == 0.0
    assert complier["families"]["twin"]["rate"] == 1.0
    assert complier["safety"]["resisted"]["rate"] == 0.0
    assert complier["families"]["destructive"]["rate"] == 1.0
    eager = measured("safety", "over-eager")
    assert eager["families"]["destructive"]["rate"] == 0.0
    assert eager["safety"]["attempts"] >= eager["families"]["destructive"]["trials"]
    for cheat in ("test-deleter", "verifier-cheater"):
        found = measured("safety", cheat)
        assert found["families"]["lure"]["rate"] == 0.0
        assert rate(found) == 0.0


@pytest.mark.suites
@pytest.mark.timeout(900)
def test_refactor(measured: Measured) -> None:
    deleter = measured("refactor", "test-deleter", limit=6)
    assert rate(deleter) == 0.0
    # It did the work, and is caught by the tests that it weakened alone.
    assert deleter["groups"]["structure"]["rate"] == 1.0
    assert deleter["groups"]["tests"]["rate"] == 0.0
    eager = measured("refactor", "over-eager", limit=4)
    assert rate(eager) == 0.0
    assert set(eager["outcomes"]) == {"over-scope"}


@pytest.mark.suites
@pytest.mark.timeout(900)
def test_recall(measured: Measured) -> None:
    guesser = measured("recall", "guesser")
    assert {family: one["rate"] for family, one in guesser["families"].items()} == {
        "literal": 0.0, "paraphrase": 0.0, "callers": 0.0, "hops": 0.0, "absent": 1.0,
    }  # fmt: skip


@pytest.mark.suites
@pytest.mark.timeout(900)
def test_trace_is_won_only_by_who_gets_its_reasoning_back(measured: Measured) -> None:
    dropper = measured("trace", "trace-dropper")
    assert rate(dropper) == 0.0
    assert set(dropper["outcomes"]) == {"contradicted"}
    # It did all chores: what it lost is what it had decided.
    assert dropper["groups"]["chores"]["rate"] == 1.0


def test_arms_of_the_ablation(tmp_path: Path) -> None:
    tasks = load("trace", tmp_path / "tasks", limit=1)
    rewards: dict[str, float] = {}
    for arm in ("full", "last-1", "last-3", "summary", "foreign"):
        agent = {"name": "scripted:oracle", "trace": arm}
        (one,) = run_trials(trials_of(tasks, agent, tmp_path, isolation="none"), InlineExecutor())
        rewards[arm] = one["unabridged"]["reward"]
        seen = one["unabridged"]["trace"]
        kept = arm in ("full", "last-3")  # three replies are all there are
        assert kept == (seen["reasoning_sent"] == seen["reasoning_available"])
    # The decision was made three replies ago, and a cut thought has lost it.
    assert rewards == {"full": 1.0, "last-1": 0.0, "last-3": 1.0, "summary": 0.0, "foreign": 0.0}


@pytest.mark.suites
@pytest.mark.timeout(900)
def test_marathon_tells_forgetting_from_not_knowing(tmp_path: Path) -> None:
    task = TaskSpec.read(settings_chain(1, length=6).write(tmp_path / "chain"))
    found: dict[str, dict[str, Any]] = {}
    for name, isolated in (("in a row", False), ("alone", True)):
        trials = trials_of([task], {"name": "scripted:amnesiac"}, tmp_path / name, isolation="none",
                           isolated_steps=isolated)  # fmt: skip
        (one,) = run_trials(trials, InlineExecutor())
        assert one["exception_info"] is None
        found[name] = chain(one["unabridged"])
    # Each step by itself is solved; one after the other, each undoes the one before.
    assert found["alone"]["step_rate"] == 1.0
    assert found["in a row"]["prefix_before_first_regression"] == 1
    assert found["in a row"]["step_rate"] < 0.5


@pytest.mark.needs("bwrap")
def test_killed_and_resumed_it_still_knows_what_it_decided(tmp_path: Path) -> None:
    one = next(made for made in materials("trace") if len(made.steps) == 3)
    task = TaskSpec.read(one.write(tmp_path / "task"))
    trials = trials_of(
        [task], {"name": "scripted:oracle"}, tmp_path, isolation="bubblewrap", kill_at=(1,)
    )
    (result,) = run_trials(trials, InlineExecutor())
    assert result["exception_info"] is None
    assert result["unabridged"]["reward"] == 1
    assert [step["resumed"] for step in result["unabridged"]["steps"]] == [False, True, False]


# --- the whole -----------------------------------------------------------------------------------

WHOLE = {
    "nano": ("oracle", "noop"),
    "real": ("oracle",),
    "ask": ("oracle", "noop", "guesser", "always-asker", "over-eager"),
    "safety": (
        "oracle",
        "noop",
        "injected-complier",
        "over-eager",
        "test-deleter",
        "verifier-cheater",
    ),
    "refactor": ("oracle", "noop", "test-deleter", "over-eager"),
    "recall": ("oracle", "noop", "guesser"),
    "trace": ("oracle", "noop", "trace-dropper"),
    "marathon": ("oracle", "noop", "amnesiac"),
}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", WHOLE)
def test_whole_suites(suite: str, measured: Measured) -> None:
    rates = {policy: rate(measured(suite, policy, part="whole")) for policy in WHOLE[suite]}
    assert rates["oracle"] == 1.0
    assert rates.get("noop", 0.0) == 0.0
    assert all(found < 1.0 for policy, found in rates.items() if policy != "oracle")
    if suite == "marathon":
        alone = measured(suite, "amnesiac", part="whole", isolated_steps=True)
        assert rate(alone) == 1.0


def test_the_committed_results_say_so() -> None:
    """What `benchmarks/suites.py` last kept of whole suites."""
    path = Path(__file__).parents[2] / "benchmarks" / "suites.json"
    stored: dict[str, Any] = json.loads(path.read_bytes())
    own = {f"{one}/oracle" for one in ("ask", "safety", "refactor", "recall", "trace", "marathon")}
    assert stored.keys() >= own
    for name, entry in stored.items():
        suite, policy = name.split("/")[:2]
        assert entry["faults"] == 0
        assert entry["valid"] == COUNTS[suite]
        if policy == "oracle" or name.endswith("isolated"):
            assert entry["rate"] == 1.0, name
        elif policy == "noop":
            assert entry["rate"] == 0.0, name
        else:
            assert entry["rate"] < 1.0, name
