"""Whatever ended a run, its log goes on: nothing is lost, and what is, is reported."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unabridged.agent.events import (
    AnyEvent,
    ArgumentsQuoted,
    AssistantMessage,
    CallDropped,
    LogRepaired,
    RunEnded,
    RunStarted,
    SystemMessage,
    ToolResult,
    ToolStarted,
    UserMessage,
)
from unabridged.agent.policy import parse_allow
from unabridged.agent.providers.scripted import Question, ScriptedCall, ScriptedProvider, Turn
from unabridged.agent.session import INTERRUPTED, Session, SessionError, Settings
from unabridged.agent.store import read, to_line

if TYPE_CHECKING:
    from .conftest import Bench

EDIT = ("edit", {"path": "a.py", "old": "return 1", "new": "return 2"})
READ = ("read", {"path": "b.py"})
DONE = [("finish", {"status": "done", "summary": "Did it."})]
ALLOW = ["write", "execute"]


# --- killed ---------------------------------------------------------------------------------------

STEPS = 8


def worker(question: Question) -> dict[str, Any]:
    """A model that writes files and looks again at whatever was interrupted."""
    told = [str(m["content"]) for m in question.messages if m["role"] == "tool"]
    missing = [
        i
        for i in range(STEPS)
        if not any(f"Created n{i}.txt" in text or f"content {i}" in text for text in told)
    ]
    if INTERRUPTED in question.results().values():
        return turn("Look first.", [("read", {"path": f"n{i}.txt"}) for i in missing] or DONE)
    if not missing:
        return turn("All there.", DONE)
    write = [
        ("write", {"path": f"n{i}.txt", "content": f"content {i}\n" * 50}) for i in missing[:2]
    ]
    return turn("On.", [*write, ("shell", {"command": f"sleep 0.0{missing[0] + 1}"})])


def turn(reasoning: str, calls: list[tuple[str, Any]]) -> dict[str, Any]:
    named = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {
        "reasoning": reasoning,
        "calls": named,
        "wire": {"chunk": 40, "delay": 0.001},
    }


def options() -> Settings:
    rules = [parse_allow(text) for text in ALLOW]
    return Settings(model="kimi-k3", on_ask="stop", sandbox="off", session_rules=rules)


def work(repo: str, folder: str, started: Any, resume: bool = False) -> None:
    """What runs in the process that is killed."""

    async def run() -> None:
        provider = ScriptedProvider(worker)
        if resume:
            session = Session.resume("last", provider, options(), Path(folder))
        else:
            session = Session.create(Path(repo), provider, options(), Path(folder))
        async with session:
            started.set()
            async for _ in session.start(None if resume else "Write them all."):
                pass

    asyncio.run(run())


def kill_at(bench: Bench, seconds: float, resume: bool = False) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    arguments = (str(bench.repo), str(bench.sessions), started, resume)
    process = context.Process(target=work, args=arguments)
    process.start()
    assert started.wait(60)
    process.join(seconds)
    process.kill()
    process.join()


def one_result_for_each_call(events: list[AnyEvent]) -> None:
    """Every call of every reply has its one result, and only a started one may be unknown."""
    calls: Counter[str] = Counter()
    for event in events:
        match event:
            case AssistantMessage():
                assert all(count == 0 for count in calls.values())
                calls = Counter(call.id for call in event.calls)
            case ToolResult():
                calls[event.call_id] -= 1
                assert calls[event.call_id] == 0, "a second result"
            case _:
                pass
    assert all(count == 0 for count in calls.values())


async def check_kill(bench: Bench, seed: int, longest: float) -> None:
    moment = random.Random(seed)
    await asyncio.to_thread(kill_at, bench, moment.uniform(0, longest))
    for _ in range(moment.choice([0, 0, 0, 1, 2])):
        log = read(next(bench.sessions.glob("*.jsonl")))
        if any(isinstance(e, UserMessage) for e in log):
            await asyncio.to_thread(kill_at, bench, moment.uniform(0, longest), True)
    path = next(bench.sessions.glob("*.jsonl"))
    before = read(path)
    words = None if any(isinstance(e, UserMessage) for e in before) else "Write them all."
    session = bench.resume(worker, allow=ALLOW)
    await bench.run(session, words)
    assert list(session.events[: len(before)]) == before
    one_result_for_each_call(list(session.events))
    # Requests of the killed process and of this one extend each other.
    for request in bench.requests(session):
        bench.check_form(request)
    for i in range(STEPS):
        assert bench.read(f"n{i}.txt") == f"content {i}\n".encode() * 50
    assert bench.code(session) == 0
    await session.close()


@pytest.mark.parametrize("seed", range(12))
async def test_c45_c49_killed_at_a_random_moment_nothing_is_lost(bench: Bench, seed: int) -> None:
    await check_kill(bench, seed, 0.8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
async def test_c45_c49_killed_at_200_random_moments_nothing_is_lost(
    bench: Bench, seed: int
) -> None:
    await check_kill(bench, seed, 0.8)


async def test_c49_a_dangling_call_gets_its_one_result_once(bench: Bench) -> None:
    command = "python3 -c pass"  # not known to be harmless, so the calls run one by one
    session = await bench.play([[READ, ("shell", {"command": command})], DONE], allow=ALLOW)
    log = session.core.store.path
    lines = log.read_bytes().splitlines(keepends=True)
    started = [e.seq for e in session.events if isinstance(e, ToolStarted)]
    log.write_bytes(b"".join(lines[: started[1] + 1]))
    # Stopped again before anything came of it, twice.
    for _ in range(2):
        again = bench.resume([Turn(content="x", wire={"first_delay": 60})])
        async for item in again.start():
            if getattr(item, "type", "") == "request_sent":
                again.cancel()
        await again.close()
    again = await bench.play_on([DONE])
    assert bench.code(again) == 0
    texts = [r.text for r in bench.of(again, ToolResult)]
    assert "import f" in texts[0]
    assert texts[1:] == [INTERRUPTED, "Finished."]


# --- cut ------------------------------------------------------------------------------------------

ORIGINAL = b"def f():\n    return 1\n"
SCRIPT: list[Any] = [
    [READ, EDIT],
    [("read", "{oops"), ("shell", {"command": "true"})],
    Turn(
        reasoning="Long.",
        calls=(ScriptedCall(name="write", arguments='{"path": "c.py", "cont'),),
        finish="length",
    ),
    Turn(reasoning="Hm."),
    DONE,
]


def moments(log: bytes, inside: int) -> list[int]:
    """Byte positions: the end of every line, and some within each."""
    ends = [0, *(i + 1 for i, byte in enumerate(log) if byte == 0x0A)]
    found: set[int] = set(ends)
    for start, end in pairwise(ends):
        found |= {start + (end - start) * part // (inside + 1) for part in range(1, inside + 1)}
        found |= {start + 1, end - 1}
    return sorted(found)


async def check_cut(bench: Bench, log: bytes, cut: int, words: str | None) -> None:
    (bench.repo / "a.py").write_bytes(ORIGINAL)
    path = bench.sessions / "cut.jsonl"
    path.write_bytes(log[:cut])
    whole = log[:cut].rfind(b"\n") + 1
    kept = read(path)
    task = words or (None if any(isinstance(e, UserMessage) for e in kept) else "Do it")
    session = bench.resume([DONE], session="cut", allow=ALLOW)
    repaired = bench.of(session, LogRepaired)
    assert [r.torn.encode("latin-1") for r in repaired] == ([log[whole:cut]] if whole < cut else [])
    await bench.run(session, task)
    await session.close()
    assert bench.code(session) == 0, cut
    assert list(session.events[: len(kept)]) == kept
    assert len(bench.of(session, SystemMessage)) == 1
    assert len(bench.requests(session)) == 1
    # The repository is there whole, wherever the log was cut.
    told = b"".join(bench.requests(session)[0].messages)
    assert all(text in told for text in (b"return 1", b"import f", b"two"))
    one_result_for_each_call([e for e in session.events if not _dropped(session, e)])


def _dropped(session: Session, event: AnyEvent) -> bool:
    """A reply whose cut call, by the log, has no result."""
    cut = {e.message for e in session.events if isinstance(e, CallDropped)}
    return isinstance(event, AssistantMessage) and event.seq in cut


async def cut_log(bench: Bench) -> bytes:
    session = await bench.play(SCRIPT, allow=ALLOW)
    assert bench.code(session) == 0
    assert bench.of(session, ArgumentsQuoted)
    log = session.core.store.path.read_bytes()
    session.core.store.path.unlink()
    return log


@pytest.mark.parametrize("words", [None, "Go on."])
async def test_c47_cut_after_any_event_and_within_it_resume_works(
    bench: Bench, words: str | None
) -> None:
    log = await cut_log(bench)
    for cut in moments(log, 1 if words is None else 0):
        await check_cut(bench, log, cut, words)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_c47_cut_at_every_byte_after_the_repository_resume_works(bench: Bench) -> None:
    log = await cut_log(bench)
    first = log.index(b'"type":"run_started"')
    for cut in (*moments(log[:first], 40), *range(first, len(log) + 1)):
        await check_cut(bench, log, cut, None)


async def test_without_a_task_there_is_nothing_to_go_on_with(bench: Bench) -> None:
    session = bench.create([DONE])
    await session.close()
    session = bench.resume([DONE])
    with pytest.raises(SessionError, match="no task yet"):
        await bench.run(session)


# --- any script, stopped anywhere -----------------------------------------------------------------

CALLS = st.sampled_from(
    [
        ("read", {"path": "a.py"}),
        ("read", {"path": "none.py"}),
        ("read", "{oops"),
        ("nothing", {}),
        EDIT,
        ("edit", {"path": "a.py", "old": "return 2", "new": "return 1"}),
        ("write", {"path": "c.py", "content": "x"}),
        ("write", {"path": "docs/notes.txt", "content": "x"}),
        ("propose_plan", {"plan": "p", "paths": ["*.py"]}),
        ("ask_user", {"question": "q"}),
        ("finish", {"status": "done", "summary": "s"}),
        ("finish", {"status": "great"}),
    ]
)
TURNS = st.builds(
    lambda reasoning, content, calls, finish: Turn(
        reasoning=reasoning,
        content=content,
        calls=tuple(ScriptedCall(name=n, arguments=a) for n, a in calls),
        finish=finish,
    ),
    st.sampled_from(["", "why"]),
    st.sampled_from(["", "", "", "what"]),
    st.lists(CALLS, max_size=4),
    st.sampled_from([None, None, None, "stop", "length"]),
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), turns=st.lists(TURNS, max_size=6))
async def test_c50_any_run_cut_after_any_event_asks_a_valid_request(
    bench: Bench, data: st.DataObject, turns: list[Turn]
) -> None:
    (bench.repo / "a.py").write_bytes(b"def f():\n    return 1\n")
    (bench.repo / "c.py").unlink(missing_ok=True)
    allow = data.draw(st.sampled_from([[], ["write"], ["write:a.py"]]))
    session = await bench.play([*turns, DONE], allow=allow)
    log = b"".join(map(to_line, session.events))
    assert log == session.core.store.path.read_bytes()
    first = next(e.seq for e in session.events if isinstance(e, RunStarted))
    lines = log.splitlines(keepends=True)
    keep = data.draw(st.integers(first, len(lines)))
    (bench.sessions / "p.jsonl").write_bytes(b"".join(lines[:keep]))
    words = "Stop it." if keep <= first + 1 else data.draw(st.sampled_from([None, "Stop it."]))
    again = await bench.play_on([DONE], words, session="p", allow=allow)
    assert isinstance(again.events[-1], RunEnded)
    assert bench.code(again) in ((0,) if words else (0, 3, 4, 5, 6, 7, 8))
    if words:
        assert len(bench.requests(again)) == 1
        assert bench.messages(again)[-1]["content"] == words
    said = [e for e in session.events[:keep] if isinstance(e, AssistantMessage)]
    assert bench.of(again, AssistantMessage)[: len(said)] == said
