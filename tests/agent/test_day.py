"""A day's work with a fault at every layer: nothing that was logged is lost, and the code is right.

Real processes, killed, starved of disk, put in a clock that jumps, in a repository that others edit
and lock meanwhile, at an endpoint that fails. `make long` plays 2,000 steps, over 24 hours by the
clock of the log; the everyday suite a short day with each fault once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unabridged.agent.events import AssistantMessage, FilesChanged, ToolResult
from unabridged.agent.store import parse

if TYPE_CHECKING:
    from .conftest import Bench

SCRIPT = Path(__file__).with_name("day.py")
ASSISTANT = b'{"type":"assistant_message"'
KINDS = ("kill", "disk", "endpoint", "lock", "edits", "clock")


class Day:
    """One session, process after process."""

    def __init__(self, bench: Bench, lines: int, seed: int, step_seconds: float) -> None:
        self.bench, self.lines, self.seed, self.step_seconds = bench, lines, seed, step_seconds
        self.dice = random.Random(seed)
        self.launches = 0
        self.peaks: list[int] = []
        self.codes: Counter[int] = Counter()
        self.kept = b""
        """The log as it was when the last process ended, without a torn tail."""
        (bench.repo / "journal.txt").write_text(
            "# The journal.\nstep 0\n".replace("step 0", "step 1")
        )
        git(bench.repo, "add", "-A")
        git(bench.repo, "commit", "-qm", "journal")

    @property
    def log(self) -> Path:
        (path,) = self.bench.sessions.glob("*.jsonl")
        return path

    def part(self, kind: str, seconds: float) -> int:
        """One process, with one kind of fault; its exit code, -9 where it was killed."""
        repo = self.bench.repo
        plan: dict[str, Any] = {
            "repo": str(repo), "sessions": str(self.bench.sessions), "lines": self.lines,
            "seed": self.seed + self.launches, "resume": self.launches > 0, "hours": self._hours(),
            "step_seconds": self.step_seconds, "file_limit": None,
            "faults": 0.2 if kind == "endpoint" else 0.0,
            "steps": self.kept.count(ASSISTANT) + self.dice.randrange(10, 10 + self.lines // 16),
        }  # fmt: skip
        if kind == "disk":
            plan["file_limit"] = (len(self.kept) or 40_000) + self.dice.randrange(2_000, 30_000)
        if kind == "clock":
            plan["hours"] += self.dice.choice((-1.0, 2.0))
        lock = repo / ".git/index.lock"
        if kind == "lock":
            lock.touch()
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(plan)], stdout=subprocess.PIPE
        )
        others = threading.Event()
        editing = threading.Thread(target=self._edit, args=(others,))
        if kind == "edits":
            editing.start()
        try:
            out, _ = process.communicate(timeout=None if kind != "kill" else seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        others.set()
        if kind == "edits":
            editing.join()
        lock.unlink(missing_ok=True)
        self.launches += 1
        if process.returncode == 0:
            said = json.loads(out)
            self.peaks.append(said["kib"])
            code = said["code"]
        else:
            assert process.returncode == -9, out
            code = -9
        self.codes[code] += 1
        self._nothing_lost()
        return code

    def _hours(self) -> float:
        """How far the log's clock is ahead, so that the next process goes on from there."""
        if not self.kept:
            return 0.0
        last = datetime.fromisoformat(json.loads(self.kept.splitlines()[-1])["at"])
        return (last - datetime.now(UTC)).total_seconds() / 3600

    def _edit(self, stop: threading.Event) -> None:
        """Somebody else, in the same repository: another file, and the head of the journal."""
        number = 0
        while not stop.wait(0.3):
            number += 1
            (self.bench.repo / "theirs.txt").write_text(f"{number}\n")

    def _nothing_lost(self) -> None:
        if not list(self.bench.sessions.glob("*.jsonl")):
            return  # killed before the first event
        data = self.log.read_bytes()
        assert data.startswith(self.kept), "what was logged stays as it is"
        _, torn = parse(data, self.log)
        self.kept = data[: len(data) - len(torn)]

    def play(self, kinds: list[str]) -> None:
        """Faults in this order, then again and again, until the session is done."""
        code, turn = 1, 0
        while code != 0:
            kind = kinds[turn % len(kinds)]
            turn += 1
            if not list(self.bench.sessions.glob("*.jsonl")):
                self.launches = 0
            code = self.part(kind, 1.0 + self.dice.random() * 3)
            assert code in (0, 1, 5, 7, -9), f"{kind}: {code}"
            assert turn < 400, "it gets nowhere"


def git(repo: Path, *words: str) -> None:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *identity, *words], cwd=repo, check=True)


def verify(day: Day) -> None:
    """The code is right, every call has its one result, the log is whole."""
    journal = (day.bench.repo / "journal.txt").read_text().splitlines()
    assert journal == ["# The journal.", *(f"step {n + 1}" for n in range(day.lines))]
    events, torn = parse(day.log.read_bytes(), day.log)
    assert torn == b""
    assert [event.seq for event in events] == list(range(len(events)))
    called = Counter(c.id for e in events if isinstance(e, AssistantMessage) for c in e.calls)
    assert called == Counter(e.call_id for e in events if isinstance(e, ToolResult))


def test_a_short_day(bench: Bench) -> None:
    day = Day(bench, lines=60, seed=7, step_seconds=60)
    day.play([*KINDS])
    verify(day)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_24_hours_of_2000_steps_with_faults_at_every_layer(bench: Bench) -> None:
    began = time.monotonic()
    day = Day(bench, lines=2_000, seed=2026, step_seconds=8)
    day.play([*KINDS, "kill", "endpoint", "disk"])
    verify(day)
    events, _ = parse(day.log.read_bytes(), day.log)
    steps = sum(isinstance(event, AssistantMessage) for event in events)
    hours = (datetime.fromisoformat(events[-1].at) - datetime.fromisoformat(events[0].at)).total_seconds() / 3600  # fmt: skip
    print(f"{steps} steps, {len(events)} events, {hours:.1f} h by the log, {day.launches} processes, "
          f"{dict(day.codes)}, peak {max(day.peaks) >> 10} MiB, first {day.peaks[0] >> 10} MiB, "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    assert steps >= 2_000
    assert hours >= 24
    assert any(isinstance(event, FilesChanged) for event in events)
    assert min(day.codes[code] for code in (1, 7, -9)) >= 1, day.codes
    # The log itself is in memory; beyond a few times its size nothing grows.
    assert max(day.peaks) - day.peaks[0] < (64 << 10) + 8 * len(day.kept) // 1024
