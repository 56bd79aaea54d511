"""Circles are seen by what is called and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.events import (
    AnyEvent,
    AssistantMessage,
    Call,
    TextPart,
    ToolResult,
    UserMessage,
)
from unabridged.agent.stuck import REPEATS, SAID_NOT_DONE, circle


def log(steps: Sequence[tuple[str, str]], reasoning: str = "") -> list[AnyEvent]:
    """A log of steps, each a call's arguments and its result; the last is not run yet."""
    events: list[AnyEvent] = [UserMessage(parts=(TextPart(text="go"),))]
    for number, (arguments, result) in enumerate(steps):
        call = Call(id=f"c{number}", name="read", arguments=arguments)
        events.append(AssistantMessage(step=number, seq=number, calls=(call,), reasoning=reasoning))
        if number < len(steps) - 1:
            events.append(ToolResult(call_id=call.id, text=result))
    return events


A, B, C = '{"path":"a"}', '{"path":"b"}', '{"path":"c"}'


@pytest.mark.parametrize("count", range(1, REPEATS))
def test_up_to_the_fourth_time_a_repeated_call_runs(count: int) -> None:
    assert circle(log([(A, "x")] * count)) is None


def test_k10_the_fifth_is_a_circle_and_the_first_stays() -> None:
    found = circle(log([(B, "y")] + [(A, "x")] * REPEATS))
    assert found is not None
    assert found.first.step == 2
    assert "5 times in a row" in found.reason


def test_alternating_steps_are_a_circle_within_ten_steps() -> None:
    steps = [(A, "x"), (B, "y")] * 4 + [(A, "x")]
    assert len(steps) <= 10
    found = circle(log(steps))
    assert found is not None
    assert found.first.step == 2
    assert circle(log(steps[:-1])) is None


def test_spacing_and_order_of_arguments_hide_nothing() -> None:
    one, two = '{"path":"a","x":1}', '{ "x": 1, "path": "a" }'
    assert circle(log([(one, "r"), (two, "r")] * 2 + [(one, "r")])) is not None


def test_a_poll_that_says_something_new_is_no_circle() -> None:
    assert circle(log([(A, f"{i} % done") for i in range(9)])) is None


def test_other_work_in_between_is_no_circle() -> None:
    steps = [(A, "x"), (B, "y"), (A, "x"), (C, "z")] * 3
    assert circle(log(steps)) is None


def test_the_users_words_start_afresh() -> None:
    events = log([(A, "x")] * REPEATS)
    events.insert(-1, UserMessage(parts=(TextPart(text="again, please"),)))
    assert circle(events) is None


def test_saying_edit_and_looking_again_is_a_circle_within_ten_steps() -> None:
    steps = [(f'{{"path":"a","start":{i}}}', str(i)) for i in range(SAID_NOT_DONE)]
    assert SAID_NOT_DONE <= 10
    found = circle(log(steps, reasoning="I have seen enough. Now I'll edit the file."))
    assert found is not None
    assert "only looked" in found.reason
    assert circle(log(steps, reasoning="What does this part do?")) is None
    assert circle(log(steps[:-1], reasoning="Let me apply the change.")) is None


def test_reading_one_new_file_after_another_is_no_circle() -> None:
    steps = [(f'{{"path":"{i}.py"}}', str(i)) for i in range(20)]
    assert circle(log(steps, reasoning="Let me read on before I change it.")) is None


@given(st.lists(st.sampled_from([A, B, C]), max_size=12))
def test_no_circle_without_five_of_the_same(arguments: list[str]) -> None:
    found = circle(log([(a, "r") for a in arguments]))
    if found is not None:
        assert arguments.count(arguments[-1]) >= REPEATS
