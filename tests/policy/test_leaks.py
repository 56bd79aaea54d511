"""No process outlives a run that is killed at a random moment, whatever it had started."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

MARK = "UNABRIDGED_TEST_MARK"
ENDED = 6.0
"""Seconds after the harness until nothing of it may be left."""

# Each starts a handful of processes; nothing here multiplies.
ESCAPES = (
    "sleep 300 &",
    "(bash -c 'sleep 300; true' &)",
    "nohup sleep 300 >/dev/null 2>&1 &",
    "setsid sleep 300 >/dev/null 2>&1 &",
    "(trap '' TERM HUP INT; exec sleep 300) &",
    "sleep 300 & kill -STOP $!",
    """python3 -c '
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 3)
os.execvp("sleep", ["sleep", "300"])'""",
)
MOMENTS = 5
"""Calls of a run; it is killed during a random one, or while the harness is still starting."""


def script(rng: random.Random) -> dict[str, object]:
    """Background jobs, commands that leave others behind, and one that does not want to end."""

    def call(command: str, **options: object) -> dict[str, object]:
        arguments = {"command": command, **options}
        return {"calls": [{"name": "shell", "arguments": arguments}]}

    def some() -> str:
        return "\n".join(rng.sample(ESCAPES, rng.randint(1, 4)))

    turns = [
        call(some() + "\nsleep 300", background=True),
        call(some() + "\nsleep 0.1"),
        call(some(), background=True),
        call(f"{some()}\n{some()}\ntrue"),
        call(f"trap '' TERM HUP INT\n{some()}\nsleep 300; sleep 300"),
    ]
    assert len(turns) == MOMENTS
    return {"turns": turns}


class Run:
    """One run of the program, whose every process can be told by its environment."""

    def __init__(self, folder: Path, sandbox: str, rng: random.Random) -> None:
        self.mark = uuid.uuid4().hex
        self.trace = folder / "trace"
        self.seen: dict[int, psutil.Process] = {}
        repo = folder / "repo"
        repo.mkdir()
        (repo / "README.md").write_bytes(b"# A tool\n")
        (folder / "script.json").write_bytes(json.dumps(script(rng)).encode())
        kinds = ("execute", "spawn", "read", "write", "outside_root", "network", "secret")
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "unabridged", "run", "Begin", "--repo", str(repo),
                "--script", str(folder / "script.json"), "--sessions-dir", str(folder / "sessions"),
                "--trace", str(self.trace), "--sandbox", sandbox, "--json",
                *(word for kind in kinds for word in ("--allow", kind)),
            ],
            # Also where the tests themselves run under nohup.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            env=os.environ | {MARK: self.mark}, cwd=folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def started(self) -> int:
        """Calls that have begun."""
        with contextlib.suppress(FileNotFoundError):
            return self.trace.read_bytes().count(b'"type":"tool_started"')
        return 0

    def look(self) -> None:
        """Remember whom it has started by now: supervisors and sandboxes carry no mark."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                self.seen[each.pid] = each

    def left(self) -> list[psutil.Process]:
        """What is left of it besides the harness itself."""
        found = [each for each in self.seen.values() if each.is_running()]
        for each in psutil.process_iter():
            if each.pid in (os.getpid(), self.process.pid):
                continue
            with contextlib.suppress(psutil.Error, OSError):
                if each.environ().get(MARK) == self.mark:
                    found.append(each)
        return [each for each in found if _lives(each)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check(folder: Path, seed: int, sandbox: str) -> tuple[str, int]:
    """One run, killed; (by which signal, how many processes it had)."""
    rng = random.Random(seed)
    way = rng.choice(["SIGKILL", "SIGTERM", "SIGHUP"])
    folder.mkdir()
    run = Run(folder, sandbox, rng)
    try:
        moment = rng.randint(0, MOMENTS)
        deadline = time.monotonic() + 60
        while run.started() < moment:
            run.look()
            assert run.process.poll() is None, run.process.stderr and run.process.stderr.read()
            assert time.monotonic() < deadline, f"seed {seed}: call {moment} did not begin"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.6))
        run.look()
        had = len(run.left())
        run.process.send_signal(signal.Signals[way])
        run.process.wait(20)
        until = time.monotonic() + ENDED
        while (left := run.left()) and time.monotonic() < until:
            time.sleep(0.05)
        assert left == [], f"seed {seed}, {way} in call {moment}: {left}"
        return way, had
    finally:
        run.process.kill()
        for each in run.left():
            each.kill()
        run.process.communicate()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return iter(tmp_path / f"run-{number}" for number in range(1_000))


SANDBOX = pytest.mark.parametrize(
    "sandbox", ["off", pytest.param("required", marks=pytest.mark.needs("bwrap"))]
)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL is survived elsewhere, as said")


def kill_some(folders: Iterator[Path], seeds: range, sandbox: str) -> None:
    ended = [check(next(folders), seed, sandbox) for seed in seeds]
    assert len({way for way, _ in ended}) > 1, "more than one signal was tried"
    assert sum(had for _, had in ended) > 3 * len(ended), "there was something to end"


@LINUX
@SANDBOX
def test_c39_nothing_survives_a_run_killed_at_random(folders: Iterator[Path], sandbox: str) -> None:
    kill_some(folders, range(5), sandbox)


@LINUX
@SANDBOX
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_c39_nothing_survives_any_of_100_runs(folders: Iterator[Path], sandbox: str) -> None:
    kill_some(folders, range(100, 150), sandbox)
