"""A run stopped anywhere ends at once, keeps what there was, and goes on with a valid request."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from unabridged.agent.effects import Effect
from unabridged.agent.events import (
    AnyEvent,
    Approval,
    AssistantMessage,
    Interruption,
    RunEnded,
    ToolResult,
    ToolStarted,
    UserMessage,
)
from unabridged.agent.exits import Exit
from unabridged.agent.providers.base import CallDelta, ContentDelta, Delta, Reply, Request, Waiting
from unabridged.agent.providers.scripted import ScriptedCall, Turn
from unabridged.agent.session import INTERRUPTED, Session
from unabridged.agent.store import StoreError, read
from unabridged.tools.base import Arguments, Context, Facts, Result, Tool
from unabridged.tools.finish import Finish

if TYPE_CHECKING:
    from .conftest import Bench

EDIT = ("edit", {"path": "a.py", "old": "return 1", "new": "return 2"})
READ = ("read", {"path": "b.py"})
DONE = [("finish", {"status": "done", "summary": "Did it."})]

Item = AnyEvent | Delta


async def run_until(
    session: Session,
    when: Callable[[Item], bool],
    then: Callable[[], object] | None = None,
    words: str | None = "go",
) -> float:
    """Run; cancel (or do `then`) at the first item for which `when` holds. Seconds it took to end."""
    began = 0.0
    async with asyncio.timeout(20):
        async for item in session.start(words):
            if not began and when(item):
                began = time.monotonic()
                (then or session.cancel)()
    assert began, "it never came so far"
    return time.monotonic() - began


async def gone_on(bench: Bench, **options: Any) -> Session:
    """The log is valid, and the session goes on to its end."""
    session = await bench.play_on([DONE], **options)
    assert bench.code(session) == 0
    assert read(session.core.store.path) == list(session.events)
    return session


# --- C44: cancelled in every state ----------------------------------------------------------------


async def test_c44_c50_while_streaming_what_came_is_kept_but_never_sent(bench: Bench) -> None:
    slow = Turn(
        reasoning="I think.",
        content="I say " * 50,
        calls=(ScriptedCall(name="read", arguments={"path": "a.py"}),),
        wire={"chunk": 4, "delay": 0.005},
    )
    session = bench.create([[READ], slow])
    seen: list[str] = []

    def said(item: Item) -> bool:
        if isinstance(item, ContentDelta):
            seen.append(item.text)
        return len(seen) == 5

    assert await run_until(session, said) < 1
    assert bench.code(session) == 130
    assert session.result().exit_name == "interrupted"
    (kept,) = bench.of(session, Interruption)
    assert kept.during == "request"
    assert kept.reasoning == "I think."
    assert kept.content.startswith("".join(seen))
    await session.close()
    session = await gone_on(bench)
    assert not any(m.get("content", "").startswith("I say") for m in bench.messages(session))


async def test_c44_c50_while_a_call_streams_the_part_is_kept_and_never_run(bench: Bench) -> None:
    text = '{"path": "c.py", "content": "' + "x" * 400 + '"}'
    call = ScriptedCall(name="write", arguments=text)
    session = bench.create(
        [Turn(calls=(call,), wire={"chunk": 8, "delay": 0.005})], allow=["write"]
    )
    await run_until(session, lambda i: isinstance(i, CallDelta) and "xxx" in i.arguments)
    (kept,) = bench.of(session, Interruption)
    assert kept.calls[0].name == "write"
    assert text.startswith(kept.calls[0].arguments)
    assert not (bench.repo / "c.py").exists()
    await session.close()
    await gone_on(bench)


async def test_c44_before_the_first_token(bench: Bench) -> None:
    session = bench.create([Turn(content="x", wire={"first_delay": 60})])
    assert await run_until(session, lambda i: getattr(i, "type", "") == "request_sent") < 1
    assert bench.code(session) == 130
    await session.close()
    await gone_on(bench)


class Retrying:
    """A model behind a server that is never there: it waits, and waits."""

    endpoint = "retrying"
    window = 100_000

    def __init__(self) -> None:
        self.closed = False

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        try:
            yield ContentDelta("half of an ans")
            yield Waiting(2, 10, 60.0, "503")
            await asyncio.sleep(60)
        finally:
            self.closed = True

    async def close(self) -> None:
        """Nothing to release."""


async def test_c44_while_the_provider_waits_to_try_again(bench: Bench) -> None:
    provider = Retrying()
    session = bench.create(provider)
    assert await run_until(session, lambda i: isinstance(i, Waiting)) < 1
    assert provider.closed
    # What a retry made void is not kept as if the model had said it.
    assert bench.of(session, Interruption)[0].content == ""
    await session.close()
    await gone_on(bench)


@pytest.mark.parametrize("sandbox", ["off", "auto"])
@pytest.mark.parametrize("command", ["sleep 61", "trap '' TERM; while :; do sleep 61; done"])
async def test_c44_c49_while_a_command_runs(bench: Bench, command: str, sandbox: str) -> None:
    step = [READ, ("shell", {"command": command})]
    session = bench.create([step], allow=["execute", "write"], sandbox=sandbox)
    started: list[str] = []

    def shell(item: Item) -> bool:
        if isinstance(item, ToolStarted):
            started.append(item.call_id)
        return len(started) == 2

    async def later() -> None:
        await asyncio.sleep(0.3)
        session.cancel()

    waiting: list[Any] = []
    took = await run_until(session, shell, lambda: waiting.append(asyncio.create_task(later())))
    assert took < 0.3 + 1
    assert not any("sleep 61" in " ".join(p.cmdline()) for p in psutil.Process().children(True))
    assert [e.during for e in bench.of(session, Interruption)] == ["tools"]
    await session.close()
    session = await gone_on(bench)
    looked, ran, end = [r.text for r in bench.of(session, ToolResult)]
    assert "import f" in looked
    assert ran == INTERRUPTED
    assert end == "Finished."


async def test_c44_while_it_looks_at_what_a_command_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a very large repository that takes long; nothing stands still meanwhile."""
    session = bench.create([[("shell", {"command": "python3 -c pass"})]], allow=["execute"])
    looked: list[float] = []

    def changes(_before: object, stop: Callable[[], bool]) -> list[object]:
        began = time.monotonic()
        while not stop() and time.monotonic() < began + 20:
            time.sleep(0.01)
        looked.append(time.monotonic() - began)
        return []

    monkeypatch.setattr(session.core.undo, "changes", changes)

    def later() -> None:
        asyncio.get_running_loop().call_later(1.0, session.cancel)

    assert await run_until(session, lambda i: isinstance(i, ToolStarted), later) < 2
    assert looked[0] < 2
    assert bench.code(session) == 130
    await session.close()
    monkeypatch.undo()
    await gone_on(bench)


async def test_c44_while_it_waits_for_a_person(bench: Bench) -> None:
    session = bench.create([[READ, EDIT]], on_ask="wait")
    assert await run_until(session, lambda i: getattr(i, "decision", "") == "ask") < 1
    assert [e.during for e in bench.of(session, Interruption)] == ["waiting"]
    await session.close()
    session = await bench.play_on([DONE], words="Something else.")
    assert bench.code(session) == 0


async def test_c44_before_its_first_step(bench: Bench) -> None:
    session = bench.create([DONE])
    running = asyncio.create_task(bench.run(session, "go"))
    # From here on `start` has made its task, which has not run yet.
    asyncio.get_running_loop().call_soon(session.cancel)
    async with asyncio.timeout(5):
        await running
    assert bench.code(session) == 130
    assert session.events[-1].type == "run_ended"


@pytest.mark.parametrize("code", [Exit.INTERRUPTED, Exit.TERMINATED, Exit.HANGUP])
async def test_c44_twice_and_the_code_says_by_what(bench: Bench, code: Exit) -> None:
    session = bench.create([[("shell", {"command": "sleep 62"})]], allow=["execute"])

    def twice() -> None:
        session.cancel(code)
        session.cancel(code)

    assert await run_until(session, lambda i: isinstance(i, ToolStarted), twice) < 1
    assert bench.code(session) == code
    assert len(bench.of(session, RunEnded)) == 1
    await session.close()
    await gone_on(bench)


@pytest.mark.parametrize("on_ask", ["stop", "wait"])
async def test_c44_again_while_it_is_being_stopped(bench: Bench, on_ask: str) -> None:
    stubborn = "trap '' TERM; touch started; while :; do sleep 64; done"
    step = [[("shell", {"command": stubborn}), READ]]
    # After a trap the classifier does not know where `started` lies.
    session = bench.create(step, allow=["execute", "write", "outside_root"], on_ask=on_ask)
    running = asyncio.create_task(bench.run(session, "go"))
    async with asyncio.timeout(10):
        while not (bench.repo / "started").exists():
            await asyncio.sleep(0.01)
        for _ in range(8):
            session.cancel()
            await asyncio.sleep(0.1)
        await running
    assert bench.code(session) == 130
    assert len(bench.of(session, RunEnded)) == 1
    await session.close()
    assert not any("sleep 64" in " ".join(p.cmdline()) for p in psutil.Process().children(True))
    await gone_on(bench)


async def test_c44_closing_ends_a_run(bench: Bench) -> None:
    session = bench.create([[("shell", {"command": "sleep 63"})]], allow=["execute"])
    running = asyncio.create_task(bench.run(session, "go"))
    async with asyncio.timeout(5):
        while not bench.of(session, ToolStarted):
            await asyncio.sleep(0.01)
    async with asyncio.timeout(2):
        await session.close()
        await running
    assert read(session.core.store.path)[-1].type == "run_ended"


async def test_an_edit_is_done_or_not_when_it_is_interrupted(bench: Bench) -> None:
    data = b"def f():\n    return 1\n" + b"# x\n" * 2_000_000
    (bench.repo / "a.py").write_bytes(data)
    session = bench.create([[EDIT]], allow=["write"])
    assert await run_until(session, lambda i: isinstance(i, ToolStarted)) < 1
    await session.close()
    left = bench.read("a.py")
    assert left in (data, data.replace(b"return 1", b"return 2"))
    assert sorted(p.name for p in bench.repo.iterdir()) == [".git", "a.py", "b.py", "docs"]


# --- C50: after every event -----------------------------------------------------------------------

LONG: list[Any] = [
    [READ, ("read", {"path": "a.py"})],
    [EDIT],
    Turn(reasoning="Only thinking."),
    [("nonsense", {}), ("read", "{oops")],
    Turn(
        reasoning="Too long.",
        calls=(
            ScriptedCall(name="read", arguments={"path": "docs/notes.txt"}),
            ScriptedCall(name="write", arguments='{"path'),
        ),
        finish="length",
    ),
    Turn(),
    [("propose_plan", {"plan": "p", "paths": ["a.py"]})],
    [("shell", {"command": "true"}), ("write", {"path": "c.py", "content": "x"})],
    DONE,
]
ALLOW = ["write", "execute"]


async def test_c50_interrupted_after_any_event_the_next_request_is_valid(bench: Bench) -> None:
    whole = await bench.play(LONG, allow=ALLOW)
    assert bench.code(whole) == 0
    first = next(e.seq for e in whole.events if e.type == "run_started")
    for number in range(first, len(whole.events) - 1):
        (bench.repo / "a.py").write_bytes(b"def f():\n    return 1\n")
        (bench.repo / "c.py").unlink(missing_ok=True)
        session = bench.create(LONG, allow=ALLOW)
        await run_until(session, lambda i, n=number: getattr(i, "seq", -1) == n)
        await session.close()
        assert session.events[-1].type == "run_ended"
        said = bench.of(session, AssistantMessage)
        for name, words in (("without", None), ("with", "Go on.")):
            log = session.core.store.path
            shutil.copy(log, log.with_stem(f"{name}-{number}"))
            again = await bench.play_on([DONE], words, session=f"{name}-{number}", allow=ALLOW)
            assert bench.code(again) == 0, (number, words)
            assert bench.of(again, AssistantMessage)[: len(said)] == said
            assert bench.requests(again)


# --- the disk, and ourselves ----------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, 150, 700, 1500, 4000])
async def test_a_full_disk_in_the_middle_of_a_run_leaves_the_log_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    session = bench.create([[READ, ("read", {"path": "a.py"})], [EDIT], DONE], allow=ALLOW)
    real, left, log = os.write, [room], session.core.store._fd

    def write(fd: int, data: bytes) -> int:
        if fd != log:
            return real(fd, data)
        if left[0] <= 0:
            raise OSError(28, "No space left on device")
        taken = real(fd, bytes(data)[: left[0]])
        left[0] -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(StoreError, match=r"No space left on device; free some space"):
            await bench.run(session, "go")
        result = session.result(failure="no space")
        assert result.exit_code == 1
        assert read(session.core.store.path) == list(session.events)
        await session.close()
    words = None if bench.of(session, UserMessage) else "go"
    session = await bench.play_on([DONE], words=words, allow=ALLOW)
    assert bench.code(session) == 0


class FullArguments(Arguments):
    pass


class Full(Tool[FullArguments]):
    """Finds no room on the disk."""

    name = "full"
    description = "Write."
    arguments = FullArguments

    def effects(self, args: FullArguments, facts: Facts) -> tuple[Effect, ...]:
        return ()

    async def run(self, args: FullArguments, context: Context) -> Result:
        raise OSError(28, "No space left on device", "c.py")


async def test_a_tool_without_room_fails_like_any_other(bench: Bench) -> None:
    session = await bench.play([[("full", {})], DONE], tools=[Full(), Finish()])
    assert bench.code(session) == 0
    assert bench.of(session, ToolResult)[0].text == "c.py: No space left on device."
    assert bench.of(session, ToolResult)[0].error


async def test_a_model_that_breaks_our_code_is_logged_and_lost_for_nothing(bench: Bench) -> None:
    def broken(_question: Any) -> Turn:
        raise ZeroDivisionError("in the provider")

    session = await bench.play(broken)
    assert bench.code(session) == 1
    assert "ZeroDivisionError: in the provider" in session.result().reason
    await gone_on(bench)


async def test_approvals_are_on_disk_when_they_return(bench: Bench) -> None:
    await bench.play([[EDIT]])
    session = bench.resume()
    session.approve()
    assert isinstance(read(session.core.store.path)[-1], Approval)
