"""A part of the simulated day, as a process: works on a session until it ends or something ends it.

`python day.py '{"repo": ..., "sessions": ..., "lines": N, "seed": N, "resume": bool, "hours": H,
"step_seconds": S, "file_limit": BYTES or null, "faults": P, "steps": N}'` prints one line of JSON at its end.
"""

from __future__ import annotations

import asyncio
import datetime as real
import json
import random
import resource
import sys
from pathlib import Path
from typing import Any

from unabridged.agent import store
from unabridged.agent.budget import Limits
from unabridged.agent.policy import parse_allow
from unabridged.agent.providers.scripted import Question, ScriptedProvider
from unabridged.agent.session import Session, Settings
from unabridged.agent.store import StoreError

FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "status": 401},
    {"kind": "status", "status": 503},
    {"kind": "drop"},
    {"kind": "cut", "after": 3},
    {"kind": "garbage"},
    {"kind": "error"},
)


def shifted(hours: float, step_seconds: float) -> type[real.datetime]:
    """A clock that starts `hours` off and goes on by `step_seconds` whenever it is read."""
    state = {"offset": hours * 3600}

    class Clock(real.datetime):
        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> real.datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
            state["offset"] += step_seconds
            return real.datetime.now(tz) + real.timedelta(seconds=state["offset"])

    return Clock


class Worker:
    """A model that writes a journal line by line, looks again after any trouble, and commits."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.journal = Path(plan["repo"]) / "journal.txt"
        self.lines, self.faults = plan["lines"], plan["faults"]
        self.dice = random.Random(plan["seed"])

    def __call__(self, question: Question) -> dict[str, Any]:
        calls: list[tuple[str, dict[str, Any]]]
        done = self.journal.read_text().count("step ")
        last = self.last_calls(question)
        # After a look nothing is in doubt; a commit that found the lock is tried at the next turn.
        doubt = "read" not in last and any(
            text.startswith(("Interrupted", "Not run")) or "was not changed" in text
            for text in question.results().values()
        )
        if done >= self.lines:
            check = f"test $(grep -c step journal.txt) = {self.lines}"
            # A check that was cut off has shown nothing: it is run again before it is named.
            passed = any(t.startswith("exit code 0") for t in question.results().values())
            if last.keys() == {"shell"} and passed:
                calls = [("finish", {"status": "done", "summary": "Written.", "verified": [check]})]
            else:
                calls = [("shell", {"command": check})]
        elif doubt:
            calls = [("read", {"path": "journal.txt", "start": max(done - 3, 1)})]
        else:
            new = f"step {done}\nstep {done + 1}\n"
            calls = [("edit", {"path": "journal.txt", "old": f"step {done}\n", "new": new})]
            if done % 40 == 39:
                calls.append(("git", {"action": "commit", "message": f"Up to {done}", "paths": ["journal.txt"]}))  # fmt: skip
            if done % 25 == 24:
                calls.append(("shell", {"command": f"grep -n 'step {done}$' journal.txt"}))
        broken = self.dice.random() < self.faults
        return {
            "reasoning": f"{done} lines are there. " + "I go on with the next. " * 4,
            "calls": [{"name": name, "arguments": arguments} for name, arguments in calls],
            "faults": [self.dice.choice(FAULTS)] if broken else [],
        }

    @staticmethod
    def last_calls(question: Question) -> dict[str, str]:
        """Of the last reply: name -> arguments."""
        for message in reversed(question.messages):
            if message.get("role") == "assistant":
                calls = [call["function"] for call in message.get("tool_calls", [])]
                return {call["name"]: call["arguments"] for call in calls}
        return {}


async def work(plan: dict[str, Any]) -> dict[str, Any]:
    settings = Settings(
        model="kimi-k3", on_ask="stop", sandbox="off",
        limits=Limits(steps=plan["steps"]),
        session_rules=[parse_allow(text) for text in ("write", "delete", "execute")],
    )  # fmt: skip
    provider, folder = ScriptedProvider(Worker(plan)), Path(plan["sessions"])
    if plan["file_limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (plan["file_limit"], resource.RLIM_INFINITY))
    try:
        if plan["resume"]:
            session = Session.resume("last", provider, settings, folder)
        else:
            session = Session.create(Path(plan["repo"]), provider, settings, folder)
        async with session:
            async for _ in session.start(None if plan["resume"] else "Write the journal."):
                pass
            assert session.ended is not None
            code, reason = session.ended.exit_code, session.ended.reason
    except StoreError as error:
        code, reason = 1, str(error)
    return {"code": code, "reason": reason}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    store.datetime = shifted(arguments["hours"], arguments["step_seconds"])  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue] - the clock of the log
    outcome = asyncio.run(work(arguments))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({**outcome, "kib": peak if sys.platform == "linux" else peak // 1024}))
