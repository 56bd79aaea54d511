"""The agent's side of a trial: a session of the harness that takes orders line by line.

It runs inside the sandbox, where nothing else of the evals can be seen, and keeps one process for
all turns of a task. Each order is a line of JSON on standard input, each reply one on standard
output:

    {"do": "say", "words": ...}     a turn of the user; null goes on from where the log stands
    {"do": "answer", "text": ...}   answer the oldest open question (then `say` null)
    {"do": "approve"}               let what waits for approval run (then `say` null)
    {"do": "deny", "reason": ...}   refuse what waits for approval (then `say` null)

A reply tells how the run ended, and what waits. The model is reached through a UNIX socket that
was bound into the sandbox; `forwarded` gives it an address on the loopback of this network
namespace, which has no other way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORWARD = "--forward"


@dataclass(frozen=True)
class Job:
    """What the agent's process is told."""

    repo: str
    sessions: str
    model: str
    url: str = ""
    """Of the model; empty where it is behind `socket`."""
    socket: str = ""
    dialect: str | None = None
    window: int | None = None
    effort: str = "max"
    allow: tuple[str, ...] = ()
    max_steps: int = 50
    minutes: float = 3.0
    instructions: str | None = None
    """An AGENTS.md that is the user's own, not the repository's."""
    vocabulary: str | None = None
    """tiktoken.model to count with; None: tokens are estimated."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: dict[str, Any]) -> Job:
        """Read it back."""
        return cls(**{**stored, "allow": tuple(stored["allow"])})


class Driver:
    """One session, turn by turn. A log in the folder of sessions is gone on with."""

    def __init__(self, job: Job, url: str) -> None:
        from ..agent.config import Flags, load_config
        from ..agent.context_options import counter
        from ..agent.policy import parse_allow
        from ..agent.prices import cost
        from ..agent.providers.dialects import DIALECTS
        from ..agent.providers.kimi import KimiProvider
        from ..agent.session import Settings
        from ..agent.store import SUFFIX

        flags = Flags(steps=job.max_steps, minutes=job.minutes, effort=job.effort, model=job.model)
        config = load_config(flags, user=Path("/nonexistent"), env={})
        self._job = job
        self._settings = Settings(
            model=job.model,
            effort=config.effort,
            on_ask="stop",
            session_rules=tuple(parse_allow(rule) for rule in job.allow),
            limits=config.limits,
            load_limit=None,
            preload="off",
            price=lambda usage: cost(job.model, usage, config.prices),
            instructions=job.instructions,
            counter=counter(Path(job.vocabulary) if job.vocabulary else None),
        )
        dialect = DIALECTS[job.dialect] if job.dialect else None
        self._provider = KimiProvider(url, job.model, None, dialect=dialect, window=job.window)
        self._folder = Path(job.sessions)
        there = sorted(self._folder.glob("*" + SUFFIX)) if self._folder.is_dir() else []
        self._resumed = there[-1].name.removesuffix(SUFFIX) if there else None
        self._session: Any = None

    async def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order."""
        match order["do"]:
            case "say":
                return await self._say(order["words"])
            case "answer":
                self._session.answer(order["text"])
            case "approve":
                self._session.approve()
            case "deny":
                self._session.deny(reason=order["reason"])
            case other:
                raise ValueError(f"no such order: {other}")
        return {}

    async def _say(self, words: str | None) -> dict[str, Any]:
        session = self._session or self._open(words or "")
        self._session = session
        async for _item in session.start(words):
            pass
        result = session.result()
        return {
            "session": session.id,
            "exit_code": result.exit_code,
            "reason": result.reason,
            "status": result.status,
            "summary": result.summary,
            "questions": [one.model_dump() for one in result.questions],
            "pending": [one.model_dump(mode="json") for one in result.pending],
            "changed": [one.path for one in result.files_changed],
            "context": result.context.model_dump() if result.context else None,
        }

    def _open(self, words: str) -> Any:
        from dataclasses import replace

        from ..agent.context_options import mentioned
        from ..agent.session import Session

        if self._resumed is not None:
            return Session.resume(self._resumed, self._provider, self._settings, self._folder)
        root = Path(self._job.repo)
        context = replace(self._settings.context, named=mentioned(words, root))
        settings = replace(self._settings, context=context)
        return Session.create(root, self._provider, settings, self._folder)

    async def close(self) -> None:
        """Let go of the session and of the model."""
        if self._session is not None:
            await self._session.close()
        else:
            await self._provider.close()


# --- as a process --------------------------------------------------------------------------------


@asynccontextmanager
async def forwarded(path: str) -> AsyncGenerator[str]:
    """An address on the loopback that leads to a UNIX socket; gives a base URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(ConnectionError, RuntimeError):
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(path)
        for one in (copy(reader, back), copy(there, writer)):
            task = asyncio.create_task(one)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()


async def _serve(job: Job) -> None:
    """Take orders until standard input ends."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        url = job.url or await stack.enter_async_context(forwarded(job.socket))
        driver = Driver(job, url)
        stack.push_async_callback(driver.close)
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            reply = await driver.do(json.loads(line))
            sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
            sys.stdout.buffer.flush()


async def _forward(socket: str, command: Sequence[str]) -> int:
    """Run another agent's command with the model's address in its environment."""
    import os

    async with forwarded(socket) as url:
        names = ("UNABRIDGED_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE")
        env = {**os.environ, **dict.fromkeys(names, url), "OPENAI_API_KEY": "behind-the-gateway"}
        process = await asyncio.create_subprocess_exec(*command, env=env)
        return await process.wait()


def main(arguments: Sequence[str]) -> int:
    """`drive JOB.json`, or `drive --forward SOCKET COMMAND...`."""
    if arguments[0] == FORWARD:
        return asyncio.run(_forward(arguments[1], arguments[2:]))
    asyncio.run(_serve(Job.of_json(json.loads(Path(arguments[0]).read_bytes()))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
