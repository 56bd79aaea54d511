"""Sessions to train on: generated tasks, solved by the oracle through the real harness.

    python -m unabridged.model.train.data --size small --count 3000 --out sessions.jsonl

Each line of the output is what `model.chat.render` takes (`messages`, `tools`, `thinking`,
`effort`), byte for byte what the model will see in use, with `family`, `seed`, `split`, `size`
and `pack_tokens` beside it. The conversation ends with the oracle's last reply.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from ...agent.events import Question, UserMessage
from ...agent.exits import Exit
from ...agent.policy import parse_allow
from ...agent.providers.scripted import Question as Asked
from ...agent.providers.scripted import ScriptedCall, ScriptedProvider, Turn
from ...agent.session import Session, Settings
from ...evals.tasks.families import make_task
from ...evals.tasks.names import Split
from ...evals.tasks.oracle import next_reply
from ...evals.tasks.repository import Size
from ...evals.tasks.slips import slip
from ...evals.tasks.task import TESTS, Family, Task
from ...tools.base import Context, Result
from ...tools.registry import default_tools
from ...tools.shell import Shell, ShellArguments
from ..nano import profile as nano

SHARES: Mapping[Family, int] = {
    "rename": 24, "value": 18, "fix": 16, "deprecated": 13, "parameter": 13, "ask": 11, "blocked": 5,
}  # fmt: skip
"""How often each family comes, in a hundred."""

ALLOWED = ("write:**", f"execute:{TESTS}")
"""What a run of a generated task may do without asking."""

_CHUNK = 25


class UnsolvedError(RuntimeError):
    """The oracle did not end a task as it should: a mistake of ours in the generator."""


@dataclass(frozen=True)
class Order:
    """Which sessions to make."""

    split: Split
    size: Size
    first: int
    """The first seed."""
    count: int
    slips: float = 0.0
    """Share of sessions in which a name is copied wrongly once, and then put right."""


def family_of(seed: int) -> Family:
    """The family of a seed, so that every range of seeds has them all."""
    rng = random.Random(f"family {seed}")
    return rng.choices(list(SHARES), list(SHARES.values()))[0]


def sessions(order: Order, workers: int = 1) -> Iterator[dict[str, Any]]:
    """Make sessions in the order of their seeds, with several processes."""
    seeds = range(order.first, order.first + order.count)
    parts = [
        replace(order, first=seeds[at], count=min(_CHUNK, len(seeds) - at))
        for at in range(0, len(seeds), _CHUNK)
    ]
    if workers == 1:
        for part in parts:
            yield from _some(part)
        return
    with ProcessPoolExecutor(workers) as pool:
        for made in pool.map(_some, parts):
            yield from made


def _some(order: Order) -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="unabridged-data-", dir=_memory()))
    tests = Tests()
    made: list[dict[str, Any]] = []
    try:
        for seed in range(order.first, order.first + order.count):
            task = make_task(family_of(seed), seed, order.split, order.size)
            try:
                made.append(asyncio.run(session_of(task, folder, tests, order.slips)))
            except UnsolvedError as error:
                # A long run goes on without it; the tests of this repository do not.
                sys.stderr.write(f"left out: {error}\n")
    finally:
        tests.close()
        shutil.rmtree(folder)
    return made


def _memory() -> str | None:
    """A folder in memory where there is one: a session's log is flushed at every step."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - mkdtemp inside


class Tests(Shell):
    """`shell` for one command, the tests: what it gives is what the real one gives, sooner.

    Starting Python and importing unittest takes longer than all the rest of a session. Here both
    are done once, in a process that is forked for each run.
    """

    def __init__(self) -> None:
        super().__init__()
        server = Path(__file__).with_name("unittest_server.py")
        self._server = subprocess.Popen(
            [sys.executable, "-I", str(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    async def run(self, args: ShellArguments, context: Context) -> Result:
        """Run the tests of the repository."""
        if args.command != TESTS:
            raise UnsolvedError(f"the oracle runs {args.command!r}")
        root = context.facts.root
        out = root.with_name("output")
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{root}\n{out}\n".encode())
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Result(f"exit code {code}\n{out.read_bytes().decode()}", exit_code=code)

    def close(self) -> None:
        """End the server."""
        self._server.communicate()


async def session_of(task: Task, folder: Path, shell: Shell, slips: float = 0.0) -> dict[str, Any]:
    """Solve one task in a folder below `folder`, with `shell` as the session's shell.

    `slips` of the record are the places of messages that are not to be learnt: a call in them
    names something wrongly, and the harness says so.

    Raises UnsolvedError when the run or the files do not end as the task says.
    """
    place = Path(tempfile.mkdtemp(dir=folder))
    repo = place / "repo"
    write_files(repo, task.files)

    rng = random.Random(f"slips {task.id}")
    left_to_slip = int(rng.random() < slips)
    slipped: list[int] = []

    def policy(asked: Asked) -> Turn:
        reply = next_reply(task.goal, asked.messages)
        wrong = None
        if left_to_slip > len(slipped) and rng.random() < 0.5:
            seen = "\n".join(str(message["content"]) for message in asked.messages)
            wrong = slip(rng, reply, seen)
        if wrong is not None:
            slipped.append(len(asked.messages))
            reply = wrong
        calls = tuple(ScriptedCall(name=name, arguments=given) for name, given in reply.calls)
        return Turn(reasoning=reply.reasoning, calls=calls)

    settings = Settings(
        model=nano.MODEL,
        session_rules=tuple(map(parse_allow, ALLOWED)),
        sandbox="off",  # the commands are the oracle's own
        tools=[shell if isinstance(tool, Shell) else tool for tool in default_tools()],
    )
    provider = ScriptedProvider(policy, window=nano.WINDOW)
    async with Session.create(repo, provider, settings, place / "sessions") as session:
        async for item in session.start(task.words):
            if isinstance(item, Question):
                session.answer(task.answer)
        _check(task, session, repo)
        messages = [json.loads(message) for message in session.core.view.request()]
        tools = json.loads(session.core.view.tools)
        assert session.loaded is not None
        tokens = session.loaded.tokens
    shutil.rmtree(place)
    # Half of the questions are the end: an answer may come later, or never.
    last = len(messages)
    if task.wants_question and task.seed % 2:
        last = _place_of_call(messages, "ask_user") + 1
    while messages[last - 1]["role"] != "assistant":
        last -= 1
    return {
        "family": task.family,
        "seed": task.seed,
        "split": task.split,
        "size": task.size,
        "injected": task.injected,
        "pack_tokens": tokens,
        "slips": [place for place in slipped if place < last],
        "messages": messages[:last],
        "tools": tools,
        "thinking": True,
        "effort": nano.EFFORT or None,
    }


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Make the files of a repository."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def _check(task: Task, session: Session, repo: Path) -> None:
    ended = session.ended
    wanted = Exit.UNFINISHED if task.family == "blocked" else Exit.DONE
    if ended is None or ended.exit_code != wanted:
        raise UnsolvedError(f"{task.id}: {ended}")
    if task.wants_question != any(isinstance(e, Question) for e in session.events):
        raise UnsolvedError(f"{task.id}: asked when it should not, or the other way round")
    if any(isinstance(e, UserMessage) and e.origin == "harness" for e in session.events):
        raise UnsolvedError(f"{task.id}: the harness had to speak")
    for path, text in {**task.files, **task.solution}.items():
        if (repo / path).read_bytes() != text.encode():
            raise UnsolvedError(f"{task.id}: {path} is not as the solution has it")


def _place_of_call(messages: Sequence[Mapping[str, Any]], tool: str) -> int:
    return next(
        n
        for n, message in enumerate(messages)
        if any(call["function"]["name"] == tool for call in message.get("tool_calls", ()))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make sessions from the command line; appends to the output."""
    parser = argparse.ArgumentParser(
        prog="data", description="Make training sessions, one JSON object a line."
    )
    parser.add_argument("--split", choices=get_args(Split), default="train")
    parser.add_argument("--size", choices=get_args(Size), default="small")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--slips", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    order = Order(
        cast("Split", options.split),
        cast("Size", options.size),
        options.first,
        options.count,
        options.slips,
    )
    with options.out.open("ab") as out:
        for session in sessions(order, options.workers):
            out.write(json.dumps(session, separators=(",", ":")).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
