"""The vocabulary: any content is one line, comes back equal, and is chained by hash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from unabridged.agent.effects import Effect, EffectKind
from unabridged.agent.events import (
    AssistantMessage,
    Call,
    Effects,
    Interruption,
    ToolCall,
    ToolResult,
    UserMessage,
    from_line,
    to_line,
)

# Every code point, lone surrogates and line separators included.
TEXT = st.text(st.characters(codec=None, exclude_categories=())).map(str)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.builds(Call, id=TEXT, name=TEXT, arguments=TEXT), max_size=4).map(tuple)


@given(TEXT, TEXT, CALLS)
def test_c46_any_reply_is_one_line_and_comes_back_equal(
    reasoning: str, content: str, calls: tuple[Call, ...]
) -> None:
    event = AssistantMessage(
        seq=3, at="t", step=1, reasoning=reasoning, content=content, calls=calls
    )
    line = to_line(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert from_line(line) == event


@given(TEXT, st.dictionaries(TEXT, JSON, max_size=3))
def test_c46_any_result_and_any_arguments_come_back_equal(
    text: str, values: dict[str, Any]
) -> None:
    for event in (
        ToolResult(call_id="c", text=text, data=values),
        ToolCall(call_id="c", name="x", arguments=values),
        Interruption(during="request", reasoning=text),
    ):
        line = to_line(event)
        assert line.count(b"\n") == 1
        assert from_line(line) == event


def test_nested_records_come_back_typed() -> None:
    event = Effects(call_id="c", effects=(Effect(kind=EffectKind.WRITE, path="a", before="x"),))
    again = from_line(to_line(event))
    assert isinstance(again, Effects)
    assert again.effects[0].kind is EffectKind.WRITE


def test_events_are_frozen_and_refuse_unknown_fields() -> None:
    event = UserMessage(parts=())
    with pytest.raises(ValidationError):
        event.origin = "harness"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError):
        from_line(b'{"type":"user_message","parts":[],"surprise":1}')


@given(TEXT, TEXT)
def test_the_hash_covers_everything_received(reasoning: str, content: str) -> None:
    message = AssistantMessage(step=1, reasoning=reasoning, content=content).chained("before")
    assert message.hash == message.compute_hash()
    for change in (
        {"reasoning": reasoning + "x"},
        {"content": content + "x"},
        {"finish_reason": "length"},
        {"calls": (Call(id="a", name="b", arguments="c"),)},
        {"previous": "other"},
        {"reasoning_field": "reasoning"},
    ):
        assert message.model_copy(update=change).compute_hash() != message.hash
    # Where and when it was stored says nothing about what was received.
    assert message.model_copy(update={"seq": 9, "at": "later"}).compute_hash() == message.hash
