"""Sessions as ATIF trajectories: the format's rules, and nothing of the reasoning lost."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from unabridged.agent.atif import SCHEMA, trajectory
from unabridged.agent.events import (
    Answer,
    AnyEvent,
    Approval,
    AssistantMessage,
    Call,
    Decision,
    PackSegment,
    Question,
    RunEnded,
    RunStarted,
    SessionStarted,
    SystemMessage,
    TextPart,
    ToolResult,
    Usage,
    UserMessage,
)

AT = "2026-11-30T12:00:00.000Z"
THOUGHT = "First line.\nThen a very long thought. " * 200
EVENTS: tuple[AnyEvent, ...] = (
    SessionStarted(at=AT, session="s1", repo="/r", version="1.2", model="kimi-k3", endpoint="http://x/v1"),
    RunStarted(model="kimi-k3", endpoint="http://x/v1", effort="max", mode="ask", on_ask="stop", window=9),
    SystemMessage(at=AT, text="You are careful.", tools=({"type": "function", "function": {"name": "edit"}},)),
    PackSegment(at=AT, text="a.py: x = 1", files={"a.py": "abc"}),
    UserMessage(at=AT, parts=(TextPart(text="change x"),)),
    AssistantMessage(
        at=AT, step=1, reasoning=THOUGHT, content="I will.", model="kimi-k3", finish_reason="tool_calls",
        calls=(Call(id="c1", name="edit", arguments='{"path": "a.py"}'), Call(id="c2", name="shell", arguments="{oops")),
        usage=Usage(prompt=1000, cached=900, completion=50, reasoning=40),
    ),
    Decision(call_id="c1", decision="ask", reason="a write"),
    Approval(call_id="c1", approved=True, by="user"),
    ToolResult(at=AT, call_id="c1", text="Replaced 1 occurrence."),
    ToolResult(at=AT, call_id="c2", text="not JSON", error=True, exit_code=None),
    AssistantMessage(at=AT, step=2, content="Which one?", calls=(Call(id="c3", name="ask_user", arguments="{}"),)),
    Question(call_id="c3", text="Which?"),
    Answer(call_id="c3", text="the first"),
    RunEnded(exit_code=8, name="unfinished", reason="no finish"),
)  # fmt: skip


def test_a_session_as_a_trajectory() -> None:
    made = trajectory("s1", EVENTS)
    assert (made["schema_version"], made["session_id"]) == (SCHEMA, "s1")
    assert made["agent"]["tool_definitions"][0]["function"]["name"] == "edit"
    assert [step["step_id"] for step in made["steps"]] == [1, 2, 3, 4, 5]
    assert [step["source"] for step in made["steps"]] == [
        "system",
        "user",
        "user",
        "agent",
        "agent",
    ]
    agent = made["steps"][3]
    assert agent["reasoning_content"] == THOUGHT
    assert agent["tool_calls"][1]["arguments"] == {"malformed_arguments": "{oops"}
    assert [one["source_call_id"] for one in agent["observation"]["results"]] == ["c1", "c2"]
    assert agent["metrics"]["cost_usd"] == pytest.approx((100 * 3 + 900 * 0.3 + 50 * 15) / 1e6)
    asked = agent["extra"]["permissions"]
    assert [(one["decision"], one["by"]) for one in asked] == [
        ("ask", "policy"),
        ("approved", "user"),
    ]
    assert made["steps"][4]["extra"]["permissions"][0]["reason"] == "the first"
    assert made["extra"]["exit"] == [{"exit_code": 8, "name": "unfinished", "reason": "no finish"}]
    # One reply has no usage, so what is known is summed and the cost of the rest is not made up.
    assert made["final_metrics"]["total_prompt_tokens"] == 1000


def test_only_agents_have_what_only_agents_may_have() -> None:
    own = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}
    for step in trajectory("s1", EVENTS)["steps"]:
        datetime.fromisoformat(step["timestamp"])
        assert step["source"] == "agent" or not own & step.keys()
        assert None not in step.values()
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        results: list[dict[str, Any]] = step.get("observation", {}).get("results", [])
        assert all(one["source_call_id"] in calls for one in results)


def test_an_empty_session_is_an_error_for_people() -> None:
    with pytest.raises(ValueError, match="no message yet"):
        trajectory("s1", EVENTS[:2])
