"""Runs a suite: every task so many times, going on where an earlier run was stopped.

out/run.json                what is being run; going on with something else is refused
out/tasks/SUITE-SEED/SLUG/  the tasks, in Harbor's format
out/trials/SLUG__KEY/       one trial: result.json, app/ as it was left, logs/ with the session
out/report.json             the rates

A trial's folder is named by the content of the trial, and its result appears with one rename: what
is there is whole and is not run again, and what was cut off leaves nothing that counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .executors import Executor
from .spec import TaskSpec, TrialSpec
from .trial import result_of

Result = dict[str, Any]


class RunError(Exception):
    """The run cannot begin or go on; one line for a person."""


@dataclass(frozen=True)
class Run:
    """One run of a suite."""

    out: Path
    settings: Mapping[str, Any]
    """What the results depend on: suite, seed, agent, model, isolation."""

    def open(self, *, resume: bool) -> None:
        """Begin, or go on.

        Raises RunError when the folder holds another run, when it holds this one and `resume` was
        not said, or when there is nothing to go on with.
        """
        told = self.out / "run.json"
        try:
            if not told.exists():
                if resume:
                    raise RunError(f"{self.out}: there is no run to go on with: leave --resume out")
                self.out.mkdir(parents=True, exist_ok=True)
                told.write_text(json.dumps(dict(self.settings), indent=2) + "\n")
                return
            there: Any = json.loads(told.read_bytes())
        except OSError as error:
            raise RunError(f"{error.filename or self.out}: {error.strerror}") from error
        except ValueError as error:
            raise RunError(f"{told}: the run in it cannot be read: {error}") from error
        different = [key for key, value in self.settings.items() if there.get(key) != value]
        if different:
            raise RunError(
                f"{self.out} holds another run (its {', '.join(different)} differ): give another "
                "--out, or remove it"
            )
        if not resume:
            raise RunError(f"{self.out} holds this run already: go on with --resume")


def trials_of(
    tasks: Sequence[TaskSpec],
    agent: Mapping[str, Any],
    out: Path,
    *,
    isolation: str,
    k: int = 1,
    seed: int = 0,
    isolated_steps: bool = False,
    kill_at: tuple[int, ...] = (),
) -> list[TrialSpec]:
    """The trials of a run: all tasks once, then all once more."""
    return [
        TrialSpec(
            str(task.folder), task.checksum, agent, attempt, seed, str(out.resolve()), isolation,
            kill_at if len(task.steps) > 1 else (), isolated_steps and len(task.steps) > 1,
        )
        for attempt in range(k)
        for task in tasks
    ]  # fmt: skip


def run_trials(
    trials: Sequence[TrialSpec],
    executor: Executor,
    told: Callable[[Result], None] = lambda _result: None,
) -> list[Result]:
    """Run what has no result yet; returns all results in the order of the trials.

    Raises LostError when a worker died; what had ended is kept.
    """
    done = {spec.key: found for spec in trials if (found := result_of(spec)) is not None}
    for spec in trials:
        if spec.key not in done:
            executor.submit(spec.to_json())
    for result in executor.as_completed():
        done[result["unabridged"]["key"]] = result
        told(result)
    return [done[spec.key] for spec in trials]


def results_in(out: Path) -> list[Result]:
    """The results that a run's folder holds, in order of their names. Raises RunError."""
    if not (out / "run.json").is_file():
        raise RunError(f"{out}: there is no run in this folder (no run.json)")
    found: list[Result] = []
    for path in sorted(out.glob("trials/*/result.json")):
        try:
            found.append(json.loads(path.read_bytes()))
        except ValueError as error:
            raise RunError(f"{path}: {error}") from error
    return found
