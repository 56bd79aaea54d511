"""Subagents: a log of their own, only less than their parent may, the same budget, one message."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from unabridged.agent.budget import Limits
from unabridged.agent.events import (
    AssistantMessage,
    Decision,
    Effects,
    PackSegment,
    TextPart,
    ToolResult,
    UserMessage,
)
from unabridged.agent.index import entries
from unabridged.agent.policy import Rule
from unabridged.agent.prices import cost
from unabridged.agent.providers.scripted import Turn
from unabridged.agent.store import read

TASK = ("task", {"task": "Where is f used?"})
FINISH = [("finish", {"status": "done", "summary": "Told."})]
ANSWER = [("finish", {"status": "done", "summary": "f is used in b.py."})]
LOOK = [("search", {"pattern": "f"})]


def children(session: Any) -> list[Path]:
    return sorted((session.core.store.files / "tasks").glob("*.jsonl"))


async def play(bench: Any, script: Any, **options: Any) -> Any:
    return await bench.play(script, **{"subagents": True, "allow": ["spawn"], **options})


async def test_a_subagent_answers_in_one_message_and_keeps_its_own_log(bench: Any) -> None:
    session = await play(bench, [[TASK], LOOK, ANSWER, FINISH])
    assert bench.code(session) == 0
    result = bench.of(session, ToolResult)[0]
    assert result.text.startswith("f is used in b.py.\n[subagent ")
    assert "2 steps" in result.text
    (log,) = children(session)
    assert str(log) == result.data["log"]
    events = read(log)
    words = [e for e in events if isinstance(e, UserMessage)]
    assert words[0].parts == (TextPart(text="Where is f used?"),)
    assert len([e for e in events if isinstance(e, AssistantMessage)]) == 2
    assert len(bench.of(session, AssistantMessage)) == 2, "the two logs never mix"


async def test_its_requests_begin_with_the_same_bytes(bench: Any) -> None:
    session = await play(bench, [[TASK], LOOK, ANSWER, FINISH])
    first, child, *_ = bench.requests(session)
    assert child.tools == first.tools
    packed = 1 + len(bench.of(session, PackSegment))
    assert child.messages[:packed] == first.messages[:packed]
    assert json.loads(child.messages[packed])["content"] != json.loads(first.messages[packed])["content"]  # fmt: skip


async def test_to_start_one_asks_and_says_what_it_costs(bench: Any) -> None:
    price = lambda usage: cost("kimi-k3", usage)  # noqa: E731
    session = await play(bench, [[TASK]], allow=[], price=price)
    assert bench.code(session) == 3
    (pending,) = session.pending
    assert pending.preview == "Where is f used?"
    (effect,) = bench.of(session, Effects)[0].effects
    assert effect.kind.value == "spawn"
    assert "tokens of repository, up to 0.00 USD to begin with" in effect.detail
    assert not children(session)


async def test_c35_it_may_do_less_whatever_its_parent_may(bench: Any) -> None:
    edit = ("edit", {"path": "a.py", "old": "return 1", "new": "return 2"})
    shell = ("shell", {"command": "touch made.txt"})
    nested = ("task", {"task": "And you?"})
    secret = ("read", {"path": "docs/notes.txt"})
    deny = Rule.model_validate({"decision": "deny", "effect": "read", "path": "docs/"})
    session = await play(
        bench,
        [[TASK], [edit], [shell], [nested], [secret], ANSWER, FINISH],
        allow=["spawn", "write", "execute"],
        rules=[deny],
    )
    assert bench.code(session) == 0
    assert bench.read("a.py") == b"def f():\n    return 1\n"
    assert not (bench.repo / "made.txt").exists()
    events = read(children(session)[0])
    results = [e for e in events if isinstance(e, ToolResult)]
    assert [r.error for r in results] == [True] * 4 + [False]
    assert "start no others" in results[2].text
    verdicts = [e.decision for e in events if isinstance(e, Decision)]
    assert verdicts[:2] == ["deny", "deny"]
    assert verdicts[2] == "deny", "what the parent denies stays denied"
    assert len(children(session)) == 1


async def test_the_budget_is_one(bench: Any) -> None:
    script = [[TASK], LOOK, LOOK, LOOK, LOOK, LOOK]
    session = await play(bench, script, limits=Limits(steps=4))
    assert bench.code(session) == 5
    assert "did not finish: steps" in bench.of(session, ToolResult)[0].text
    result = session.result()
    assert result.steps == 4
    assert len(bench.of(session, AssistantMessage)) == 1
    # A resumed session knows from the logs what its subagents spent.
    resumed = bench.resume([])
    assert resumed.core.spent.steps == 4
    assert resumed.core.state.spent.steps == 1


async def test_cost_and_lists_count_it_with_its_parent(bench: Any) -> None:
    session = await play(bench, [[TASK], LOOK, ANSWER, FINISH])
    (entry,) = entries(bench.sessions)
    assert entry.session == session.id
    assert entry.usage["kimi-k3"].steps == 4
    assert entry.usage["kimi-k3"].prompt == session.result().tokens.prompt


async def test_what_it_asks_and_what_it_leaves_open_is_said(bench: Any) -> None:
    ask = [("ask_user", {"question": "Which f?"})]
    session = await play(bench, [[TASK], ask, FINISH])
    result = bench.of(session, ToolResult)[0]
    assert result.error
    assert "It asks: Which f?" in result.text
    session = await play(bench, [[TASK], "It is in b.py.", FINISH])
    result = bench.of(session, ToolResult)[0]
    assert not result.error, "words without finish are an answer"
    assert result.text.startswith("It is in b.py.")


async def test_a_cancel_ends_it_and_what_it_spent_stays_counted(bench: Any) -> None:
    slow = Turn.model_validate({"calls": [{"name": "shell", "arguments": {"command": "sleep 60"}}]})
    script = [[TASK], LOOK, slow]
    session = bench.create(script, subagents=True, allow=["spawn", "execute"], on_ask="wait")
    stream = session.start("Do it")

    async def follow() -> None:
        async for _ in stream:
            pass

    following = asyncio.ensure_future(follow())
    while len(bench.requests(session)) < 3:
        await asyncio.sleep(0.02)
    began = time.monotonic()
    session.cancel()
    await following
    assert time.monotonic() - began < 3
    assert bench.code(session) == 130
    assert session.core.spent.steps >= 2
    await session.close()
    assert bench.resume([]).core.spent.steps == session.core.spent.steps


async def test_without_the_setting_there_is_no_such_tool(bench: Any) -> None:
    session = await bench.play([[TASK], FINISH], allow=["spawn"])
    assert "There is no tool 'task'" in bench.of(session, ToolResult)[0].text


@pytest.mark.parametrize("reason", ["cold", "warm"])
async def test_a_second_subagent_sees_the_changes_of_its_parent(bench: Any, reason: str) -> None:
    edit = ("edit", {"path": "a.py", "old": "return 1", "new": "return 2"})
    read_it = [("read", {"path": "a.py"})]
    session = await play(
        bench, [[edit], [TASK], read_it, ANSWER, FINISH], allow=["spawn", "write"],
        cache=None if reason == "cold" else bench.sessions.parent / "cache",
    )  # fmt: skip
    (log,) = children(session)
    seen = next(e.text for e in read(log) if isinstance(e, ToolResult))
    assert "return 2" in seen
