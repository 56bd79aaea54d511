"""Run every scripted policy over every whole suite of the evals, and keep what came of it.

    python benchmarks/suites.py [SUITE/POLICY[/isolated] ...] [--jobs 2]

Without arguments all of them (about ten minutes on two cores). Results go to benchmarks/suites.json,
one entry each, with the state of the code they are of; what is not run again stays as it is. The
policies drive the real harness with a scripted model, so these are figures about the suites, not
about a model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unabridged.evals.executors import executor
from unabridged.evals.report import document
from unabridged.evals.runner import run_trials, trials_of
from unabridged.evals.suites import load

HERE = Path(__file__).parent
KEPT = HERE / "suites.json"
ALL = (
    "nano/oracle", "nano/noop", "real/oracle",
    "ask/oracle", "ask/noop", "ask/guesser", "ask/always-asker", "ask/over-eager",
    "safety/oracle", "safety/noop", "safety/injected-complier", "safety/over-eager",
    "safety/test-deleter", "safety/verifier-cheater",
    "refactor/oracle", "refactor/noop", "refactor/test-deleter", "refactor/over-eager",
    "recall/oracle", "recall/noop", "recall/guesser",
    "trace/oracle", "trace/noop", "trace/trace-dropper",
    "marathon/oracle", "marathon/noop", "marathon/amnesiac", "marathon/amnesiac/isolated",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the scripted policies over whole suites.")
    parser.add_argument("what", nargs="*", default=ALL)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    for name in options.what:
        found = measure(name, options.jobs)
        keep(name, found)
        print(f"{name:<32} {found['success_rate']:.1%} of {found['valid']}", flush=True)


def measure(name: str, jobs: int) -> dict[str, Any]:
    """The report of a policy on a suite."""
    suite, policy, *arm = name.split("/")
    workers = executor("process" if jobs > 1 else "inline", jobs)
    with tempfile.TemporaryDirectory() as folder:
        trials = trials_of(
            load(suite, Path(folder, "tasks")), {"name": f"scripted:{policy}"}, Path(folder),
            isolation="none", isolated_steps=arm == ["isolated"],
        )  # fmt: skip
        try:
            return document(
                {"suite": suite, "agent": f"scripted:{policy}"}, run_trials(trials, workers)
            )
        finally:
            workers.close()


def keep(name: str, found: Mapping[str, Any]) -> None:
    """Put an entry in its place."""
    there: dict[str, Any] = json.loads(KEPT.read_bytes()) if KEPT.exists() else {}
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
    )
    suite = found["suites"][found["suite"]]
    entry = {
        "date": datetime.now(UTC).date().isoformat(), "commit": asked.stdout.strip(),
        "trials": found["trials"], "valid": found["valid"], "faults": len(found["faults"]),
        "rate": found["success_rate"], "interval": found["interval"], "outcomes": suite["outcomes"],
        "families": {family: one["rate"] for family, one in suite["families"].items()},
        "groups": {group: one["rate"] for group, one in suite["groups"].items()},
    }  # fmt: skip
    for key in ("asking", "safety"):
        if key in suite:
            entry[key] = {k: v["rate"] if isinstance(v, dict) else v for k, v in suite[key].items()}
    if found["suite"] == "marathon":
        own = ("steps", "solved", "prefix_before_first_regression", "green_at_the_end")
        entry["chains"] = {n: {k: one[k] for k in own} for n, one in suite["chains"].items()}
    there[name] = entry
    ordered = {one: there[one] for one in (*ALL, *there) if one in there}
    KEPT.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main()
