"""Runs a suite: each task in a fresh repository, by a real headless run, judged afterwards.

out/run.json        what is being run; going on with something else is refused
out/outcomes.jsonl  one line a trial, as they end: what is there is not run again
out/report.json     the rates
out/trials/ID/      the repository as it was left, the session's log, the result
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import judge
from .agents import Agent
from .sandbox import HIDDEN, confined
from .spec import Outcome
from .tasks.task import TESTS, Task

ALLOWED = ("write:**", f"execute:{TESTS}")
"""What a run may do without asking: change files, run the tests."""
SECONDS = 240
"""After which an agent is stopped, should it not end by itself."""
LIMITS = ("--max-steps", "30", "--max-minutes", "3")
"""Of a run; the longest solution takes seven steps."""

_NEEDS_ANSWER = 4
_GIT = ("git", "-c", "user.name=Suite", "-c", "user.email=suite@example.com",
        "-c", "init.defaultBranch=main")  # fmt: skip


class RunError(Exception):
    """The run cannot begin or go on; one line for a person."""


@dataclass(frozen=True)
class Run:
    """One run of a suite."""

    out: Path
    settings: Mapping[str, Any]
    """What the outcomes depend on: suite, seed, agent, model."""
    sandbox: bool = True

    def open(self) -> dict[str, Outcome]:
        """Begin, or go on: the outcomes that are there, by id.

        Raises RunError when the folder holds another run, or what cannot be read.
        """
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            told = self.out / "run.json"
            if told.exists():
                there: Any = json.loads(told.read_bytes())
                different = [key for key, value in self.settings.items() if there.get(key) != value]
                if different:
                    raise RunError(
                        f"{self.out} holds another run (its {', '.join(different)} differ): give "
                        "another --out, or remove it"
                    )
            else:
                told.write_bytes(json.dumps(dict(self.settings), indent=2).encode() + b"\n")
            return {outcome.id: outcome for outcome in self._read()}
        except OSError as error:
            raise RunError(f"{error.filename or self.out}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{self.out}: the run in it cannot be read: {error}") from error

    @property
    def _outcomes(self) -> Path:
        return self.out / "outcomes.jsonl"

    def _read(self) -> Iterator[Outcome]:
        """Whole lines only: a run that was killed may have left a part of one."""
        data = self._outcomes.read_bytes() if self._outcomes.exists() else b""
        whole, _, torn = data.rpartition(b"\n")
        if torn:
            self._outcomes.write_bytes(whole + b"\n" if whole else b"")
        for line in whole.splitlines():
            yield Outcome.of_json(json.loads(line))

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome."""
        with self._outcomes.open("ab") as file:
            file.write(json.dumps(outcome.to_json()).encode() + b"\n")


def run_tasks(
    run: Run,
    tasks: Sequence[Task],
    agent: Agent,
    *,
    workers: int = 1,
    told: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Run what is not there yet; returns the outcomes in the order of the tasks."""
    done = run.open()
    todo = [task for task in tasks if task.id not in done]
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(trial, run, task, agent) for task in todo]
        try:
            for finished in as_completed(waiting):
                outcome = finished.result()
                run.add(outcome)
                done[outcome.id] = outcome
                told(outcome)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [done[task.id] for task in tasks]


def trial(run: Run, task: Task, agent: Agent) -> Outcome:
    """One task, from the fresh repository to the judgement."""
    place = (run.out / "trials" / task.id).resolve()
    if place.exists():
        shutil.rmtree(place)  # of a run that was stopped in it
    repo = make_repository(place / "repo", task)
    began = time.monotonic()
    with agent(task) as options:
        exit_code, result = _run_agent(run, place, repo, task, options)
    seconds = time.monotonic() - began
    after = judge.contents(repo)
    asked = exit_code == _NEEDS_ANSWER
    problems = _problems(run, task, after, exit_code, place)
    context: Mapping[str, Any] = result.get("context") or {}
    tokens: Mapping[str, int] = result.get("tokens") or {}
    return Outcome(
        id=task.id,
        family=task.family,
        size=task.size,
        injected=task.injected,
        success=not problems,
        asked=asked,
        exit_code=exit_code,
        problems=tuple(problems),
        pack_tokens=context.get("tokens"),
        steps=result.get("steps"),
        tokens=tokens["prompt"] + tokens["completion"] if tokens else None,
        seconds=round(seconds, 3),
    )


def make_repository(repo: Path, task: Task) -> Path:
    """The task's files in a git repository with one commit."""
    for name, text in task.files.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "As it was"]):
        subprocess.run([*_GIT, *words], cwd=repo, env=env, check=True, capture_output=True)
    return repo


def _run_agent(
    run: Run, place: Path, repo: Path, task: Task, options: Sequence[str]
) -> tuple[int | None, dict[str, Any]]:
    """Exit code and result of the agent."""
    for name in ("home", "tmp"):
        (place / name).mkdir()
    command = [
        sys.executable, "-m", "unabridged", "run", task.words, "--repo", str(repo), "--json",
        "--quiet", "--sessions-dir", str(place / "sessions"), *LIMITS,
        *(word for rule in ALLOWED for word in ("--allow", rule)), *options,
    ]  # fmt: skip
    if run.sandbox:
        command = confined(
            command, writable=[place], network=True, hidden=[HIDDEN, run.out.resolve()]
        )
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        try:
            done = subprocess.run(
                command, cwd=repo, env=_environment(place), stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, {}
    try:
        return done.returncode, json.loads((place / "stdout").read_bytes())
    except ValueError:
        return done.returncode, {}


def _environment(place: Path) -> dict[str, str]:
    """The user's, without settings or sessions of theirs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    here = str(Path(sys.executable).parent)
    return {
        **kept,
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _problems(
    run: Run, task: Task, after: Mapping[str, bytes], exit_code: int | None, place: Path
) -> list[str]:
    """Why it is no success."""
    if exit_code is None:
        return [f"still running after {SECONDS} s"]
    asked = exit_code == _NEEDS_ANSWER
    changed = judge.changes(task, after)
    if task.wants_question:
        problems = [f"{path} was changed" for path in changed]
        return problems if asked else ["the user was not asked", *problems]
    if task.family == "blocked":
        problems = [f"{path} was changed" for path in changed]
        return ["the run says that it is done", *problems] if exit_code == 0 else problems
    problems = judge.outside_scope(task, after)
    if changed:
        failed = judge.hidden_tests(task, after, place / "judged", sandbox=run.sandbox)
        problems += [f"hidden tests: {failed}"] if failed else []
    else:
        problems.append("the user was asked" if asked else "nothing was changed")
    return problems
