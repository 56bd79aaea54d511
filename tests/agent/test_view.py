"""The view: exact replay, one prefix, four exceptions and no other."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.agent.calls import missing_exceptions
from unabridged.agent.events import (
    AnyEvent,
    AssistantMessage,
    Call,
    Elided,
    ImagePart,
    PackSegment,
    RequestSent,
    SystemMessage,
    TextPart,
    ToolResult,
    UserMessage,
)
from unabridged.agent.view import ReplayError, View, check_replay, quote

TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


class Log:
    """A log in memory with the numbering of a store."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.chain = ""

    def add(self, event: AnyEvent) -> AnyEvent:
        if isinstance(event, AssistantMessage):
            event = event.chained(self.chain)
            self.chain = event.hash
        event = event.model_copy(update={"seq": len(self.events)})
        self.events.append(event)
        if isinstance(event, AssistantMessage):
            for exception in missing_exceptions(event, self.events):
                self.add(exception)
        return event

    def sent(self) -> list[bytes]:
        """Send a request, as the loop does."""
        view = View(self.events)
        messages = view.request()
        self.add(
            RequestSent(
                step=1,
                messages=len(messages),
                size=view.size,
                prefix_hash=view.prefix_hash,
                estimated_tokens=0,
                max_completion_tokens=1,
            )
        )
        return messages


def opened() -> Log:
    log = Log()
    log.add(SystemMessage(text="be good", tools=({"type": "function"},)))
    log.add(PackSegment(text="files"))
    log.add(UserMessage(parts=(TextPart(text="do it"),)))
    return log


ARGUMENTS = st.one_of(
    st.dictionaries(TEXT, TEXT, max_size=3).map(json.dumps), TEXT, st.just("{}"), st.just("[1]")
)
REPLIES = st.builds(
    dict[str, Any],
    reasoning=TEXT,
    content=TEXT,
    arguments=st.lists(ARGUMENTS, max_size=4),
    field=st.sampled_from(["reasoning_content", "reasoning", "reasoning_details"]),
    finish=st.sampled_from([None, "stop", "tool_calls", "length"]),
)


def reply_of(step: int, drawn: dict[str, Any]) -> AssistantMessage:
    details = None
    if drawn["field"] == "reasoning_details":
        details = ({"type": "reasoning.text", "text": drawn["reasoning"], "index": 0},)
    return AssistantMessage(
        step=step,
        reasoning=drawn["reasoning"],
        reasoning_field=drawn["field"],
        reasoning_details=details,
        content=drawn["content"],
        calls=tuple(
            Call(id=f"c{step}.{i}", name="read", arguments=text)
            for i, text in enumerate(drawn["arguments"])
        ),
        finish_reason=drawn["finish"],
    )


@given(st.lists(REPLIES, max_size=5), st.randoms())
def test_k1_k2_every_reply_goes_back_as_it_came_and_requests_extend_each_other(
    drawn: list[dict[str, Any]], random: Any
) -> None:
    log = opened()
    before = log.sent()
    for step, values in enumerate(drawn):
        reply = log.add(reply_of(step, values))
        assert isinstance(reply, AssistantMessage)
        open_calls = list(View(log.events).open_calls)
        results = {call.id: f"result of {call.id}" for call in open_calls}
        random.shuffle(open_calls)
        for call in open_calls:  # whatever order they end in
            log.add(ToolResult(call_id=call.id, text=results[call.id]))
        log.add(UserMessage(parts=(TextPart(text="go on"),)))
        after = log.sent()
        assert after[: len(before)] == before
        new = [json.loads(data) for data in after[len(before) :]]
        before = after
        dropped = reply.calls[-1:] if reply.finish_reason == "length" else ()
        kept = [call for call in reply.calls if call not in dropped]
        if not (reply.reasoning or reply.content or kept or reply.reasoning_details):
            assert [message["role"] for message in new] == ["user"]
            continue
        message, *rest = new
        assert message["content"] == reply.content
        if reply.reasoning_details is not None:
            assert message["reasoning_details"] == list(reply.reasoning_details)
        else:
            assert message[reply.reasoning_field] == reply.reasoning
        sent = message.get("tool_calls", [])
        assert [c["id"] for c in sent] == [c.id for c in kept]
        for got, call in zip(sent, kept, strict=True):
            arguments = got["function"]["arguments"]
            assert isinstance(json.loads(arguments), dict)
            assert arguments == call.arguments or json.loads(arguments) == {
                "malformed_arguments": call.arguments
            }
        assert [m["tool_call_id"] for m in rest[:-1]] == [c.id for c in kept]
        assert [m["content"] for m in rest[:-1]] == [results[c.id] for c in kept]


def test_the_fold_and_one_by_one_agree_and_the_hash_is_the_bytes() -> None:
    log = opened()
    log.sent()
    log.add(AssistantMessage(step=1, reasoning="r", content="c"))
    log.add(UserMessage(parts=(TextPart(text="more"),)))
    view = View()
    for event in log.events:
        view.add(event)
    assert view.messages == View(log.events).messages
    joined = b"".join(message + b"\n" for message in view.request())
    assert view.prefix_hash == hashlib.sha256(joined).hexdigest()
    assert view.size == sum(map(len, view.request()))
    assert view.tools == b'[{"type":"function"}]'


def test_reasoning_field_is_there_even_when_empty() -> None:
    log = opened()
    log.add(AssistantMessage(step=1, content="hello"))
    log.add(UserMessage(parts=(TextPart(text="x"),)))
    assert b'"reasoning_content":""' in log.sent()[-2]


def test_k6_an_empty_reply_is_skipped_and_the_session_goes_on() -> None:
    log = opened()
    first = log.sent()
    log.add(AssistantMessage(step=1))
    assert log.events[-1].type == "empty_skipped"
    assert View(log.events).request() == first


def test_c22_malformed_arguments_go_out_quoted() -> None:
    log = opened()
    log.add(AssistantMessage(step=1, calls=(Call(id="a", name="edit", arguments='{"path": "x'),)))
    log.add(ToolResult(call_id="a", text="not valid JSON", error=True))
    call = json.loads(log.sent()[-2])["tool_calls"][0]["function"]
    assert (
        call["arguments"] == quote('{"path": "x') == '{"malformed_arguments": "{\\"path\\": \\"x"}'
    )


def test_c19_a_cut_call_is_dropped_and_its_words_stay() -> None:
    log = opened()
    calls = (
        Call(id="a", name="read", arguments='{"path":"x"}'),
        Call(id="b", name="write", arguments='{"path":"y"}'),
    )
    log.add(
        AssistantMessage(step=1, reasoning="r", content="c", calls=calls, finish_reason="length")
    )
    assert [call.id for call in View(log.events).open_calls] == ["a"]
    log.add(ToolResult(call_id="a", text="ok"))
    message = json.loads(log.sent()[-2])
    assert (message["reasoning_content"], message["content"]) == ("r", "c")
    assert [call["id"] for call in message["tool_calls"]] == ["a"]


def test_an_elided_tail_is_left_out_and_what_came_before_is_the_same_bytes() -> None:
    log = opened()
    before = log.sent()
    tail = log.add(AssistantMessage(step=1, calls=(Call(id="a", name="read", arguments="{}"),)))
    assert isinstance(tail, AssistantMessage)
    last = log.add(ToolResult(call_id="a", text="again"))
    log.sent()
    log.add(Elided(message=tail.seq, hash=tail.hash, reason="repeats", through=last.seq))
    log.add(UserMessage(parts=(TextPart(text="you repeat yourself"),)))
    after = log.sent()
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1


def test_an_open_call_makes_no_request() -> None:
    log = opened()
    log.add(AssistantMessage(step=1, calls=(Call(id="a", name="read", arguments="{}"),)))
    with pytest.raises(ReplayError, match="without a result: a"):
        View(log.events).request()


def test_a_log_that_would_not_give_its_own_requests_is_refused() -> None:
    log = opened()
    log.sent()
    segment = log.events[1]
    assert isinstance(segment, PackSegment)
    log.events[1] = segment.model_copy(update={"text": "other files"})
    with pytest.raises(ReplayError, match="event 3"):
        View(log.events)


@pytest.mark.parametrize(
    "change",
    [
        {"content": "changed"},
        {"reasoning_content": ""},
        {"tool_calls": []},
        {"reasoning_content": None},
    ],
)
def test_the_check_refuses_what_differs(change: dict[str, Any]) -> None:
    call = Call(id="a", name="read", arguments="{}")
    reply = AssistantMessage(step=1, reasoning="r", content="c", calls=(call,)).chained("")
    log = opened()
    log.add(reply)
    log.add(ToolResult(call_id="a", text="x"))
    message = json.loads(log.sent()[-2])
    check_replay(json.dumps(message).encode(), reply, [call], set())
    with pytest.raises(ReplayError):
        check_replay(json.dumps({**message, **change}).encode(), reply, [call], set())


def test_images_travel_as_parts() -> None:
    log = opened()
    image = ImagePart(url="data:image/png;base64,AA==")
    log.add(UserMessage(parts=(TextPart(text="look"), image)))
    assert json.loads(log.sent()[-1])["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": image.url}},
    ]
