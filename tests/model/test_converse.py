from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.model.chat.parse import (
    Call,
    ContentDelta,
    Event,
    Problem,
    ReasoningDelta,
    Reply,
    to_message,
)
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.converse import (
    ChatRequest,
    ChatUsage,
    Finish,
    RequestError,
    _Stops,
    converse,
    prepare,
)
from unabridged.model.engine import Engine, Prefill

THOUGHT = "hm<|close|>think<|sep|>"
DONE = "<|close|>message<|sep|><|end_of_msg|>"
CALL = (
    '<|open|>tools<|sep|><|open|>call tool="read" index="1"<|sep|>'
    '<|open|>argument key="path" type="string"<|sep|>a.py<|close|>argument<|sep|>'
    '<|open|>argument key="lines" type="array"<|sep|>[1, 2]<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)


def response(text: str) -> str:
    return f"<|open|>response<|sep|>{text}<|close|>response<|sep|>"


LINES = {
    "hi": THOUGHT + response("hello, 日本") + DONE,
    "read a.py": THOUGHT + response("") + CALL + DONE,
    "ramble": THOUGHT + response("one two three four five six seven") + DONE,
    "mumble": f"hm{response('oops')}{DONE}",
}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {}}}]


@pytest.fixture
def engine(actor: Any, tokenizer: Tokenizer) -> Iterator[Engine]:
    engine = Engine(
        actor(tokenizer, LINES),
        end_token=tokenizer.end_of_msg_id,
        vocab_size=tokenizer.vocab_size,
        window=2048,
        save_every=1,
    )
    yield engine
    engine.close()


Ask = Callable[..., Any]


@pytest.fixture
def ask(engine: Engine, tokenizer: Tokenizer) -> Ask:
    async def ask(
        *messages: dict[str, Any] | str, **options: Any
    ) -> tuple[list[Prefill | Event], Finish]:
        sent = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        request = ChatRequest(sent, temperature=0, **options)
        items = [item async for item in converse(engine, tokenizer, request)]
        finish = items.pop()
        assert isinstance(finish, Finish)
        return [item for item in items if not isinstance(item, Finish)], finish

    return ask


def text_of(items: list[Prefill | Event], kind: type[ReasoningDelta] | type[ContentDelta]) -> str:
    return "".join(item.text for item in items if isinstance(item, kind))


async def test_an_answer_with_exact_counts(ask: Ask, tokenizer: Tokenizer) -> None:
    items, finish = await ask("hi")
    assert text_of(items, ReasoningDelta) == "hm"
    assert text_of(items, ContentDelta) == "hello, 日本"
    prompt, *_ = prepare(ChatRequest([{"role": "user", "content": "hi"}]), tokenizer, window=2048)
    assert finish == Finish(
        "stop",
        ChatUsage(
            prompt=len(prompt),
            cached=0,
            completion=len(tokenizer.encode_control(LINES["hi"])),
            reasoning=len(tokenizer.encode_control(THOUGHT)),
        ),
        Reply("hm", "hello, 日本", ended=True),
    )


async def test_a_call_and_the_next_turn(ask: Ask) -> None:
    _, finish = await ask("read a.py", tools=TOOLS)
    assert finish.reason == "tool_calls"
    assert finish.reply.calls == (Call("read", '{"path": "a.py", "lines": [1, 2]}', True),)
    turn = [
        {"role": "user", "content": "read a.py"},
        to_message(finish.reply, ["c1"]),
        {"role": "tool", "tool_call_id": "c1", "content": "x = 1"},
    ]
    _, after = await ask(*turn, "hi", tools=TOOLS)
    # All of the first request and its reply is reused, but the token that ended it.
    assert after.usage.cached == finish.usage.prompt + finish.usage.completion - 1


async def test_length_cuts_and_says_so(ask: Ask) -> None:
    _, finish = await ask("read a.py", tools=TOOLS, max_tokens=60)
    assert finish.reason == "length"
    assert finish.usage.completion == 60
    assert not finish.reply.ended
    assert not finish.reply.calls[0].complete
    with pytest.raises(json.JSONDecodeError):
        json.loads(finish.reply.calls[0].arguments)


async def test_problems_are_part_of_the_reply(ask: Ask) -> None:
    items, finish = await ask("mumble")
    problem = Problem("<think> was not closed before <response>")
    assert problem in items
    assert finish.reply == Reply("hm", "oops", (), (problem,), ended=True)


@pytest.mark.parametrize(
    ("stop", "content"),
    [
        (("three",), "one two "),
        (("four", "o t"), "one tw"),
        (("e f",), "one two thre"),
        (("nowhere", "seven eight"), "one two three four five six seven"),
        (("one",), ""),
        (("hm", "seven"), "one two three four five six "),  # reasoning does not count
    ],
)
async def test_a_stop_text_ends_the_content(
    ask: Ask, engine: Engine, stop: tuple[str, ...], content: str
) -> None:
    items, finish = await ask("ramble", stop=stop)
    assert text_of(items, ContentDelta) == content
    assert finish.reply.content == content
    assert finish.reason == "stop"


@given(st.lists(st.text("ab", max_size=4)), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_stop_texts_are_found_in_any_split(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    found = [at for at in map(whole.find, stops) if at >= 0]
    filtered = _Stops(tuple(stops))
    shown = [event for piece in pieces for event in filtered.filter(ContentDelta(piece))]
    shown += filtered.rest()
    text = "".join(event.text for event in shown if isinstance(event, ContentDelta))
    if len(stops) == 1 or not found:
        assert text == (whole[: min(found)] if found else whole)
    # With several, the one that ends first wins, as it would for a reader of the stream.
    assert filtered.met == bool(found)
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)


async def test_leaving_cancels(engine: Engine, tokenizer: Tokenizer) -> None:
    request = ChatRequest([{"role": "user", "content": "ramble"}])
    async with aclosing(converse(engine, tokenizer, request)) as stream:
        async for item in stream:
            if isinstance(item, ContentDelta):
                break
    while engine.load != (0, 0):
        pass


def test_a_limit_beyond_the_window_is_the_window(tokenizer: Tokenizer) -> None:
    """Clients know the window and only estimate the prompt, so they may ask for too much."""
    request = ChatRequest([{"role": "user", "content": "hi"}], max_tokens=2048)
    prompt, _, max_tokens = prepare(request, tokenizer, window=2048)
    assert len(prompt) + max_tokens == 2048


async def test_the_rest_of_the_window_is_the_default_limit(tokenizer: Tokenizer) -> None:
    request = ChatRequest([{"role": "user", "content": "hi"}])
    prompt, _, max_tokens = prepare(request, tokenizer, window=2048)
    assert len(prompt) + max_tokens == 2048


@pytest.mark.parametrize(
    ("options", "message", "param"),
    [
        ({"tool_choice": "required"}, "there are no tools", "tool_choice"),
        ({"temperature": -1.0}, "temperature", "temperature"),
        ({"top_p": 0.0}, "top_p", "top_p"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens"),
        ({"stop": ("",)}, "stop", "stop"),
        ({"effort": "medium"}, "'medium' is not one of low, high, max", None),
    ],
)
def test_a_bad_request_names_its_fault(
    tokenizer: Tokenizer, options: dict[str, Any], message: str, param: str | None
) -> None:
    request = ChatRequest([{"role": "user", "content": "hi"}], **options)
    with pytest.raises(RequestError, match=message) as error:
        prepare(request, tokenizer, window=2048)
    assert error.value.param == param


def test_an_image_is_refused_in_plain_words(tokenizer: Tokenizer) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    content = [{"type": "text", "text": "What is this?"}, image]
    request = ChatRequest([{"role": "user", "content": content}])
    with pytest.raises(RequestError, match=r"content\[1\] is an image; this model reads text only"):
        prepare(request, tokenizer, 2048)


def test_a_conversation_that_cannot_be_rendered_or_encoded(tokenizer: Tokenizer) -> None:
    for content, message in ((7, r"messages\[0\]"), ("\ud800", "lone surrogate")):
        with pytest.raises(RequestError, match=message):
            prepare(ChatRequest([{"role": "user", "content": content}]), tokenizer, 2048)
    with pytest.raises(RequestError) as error:
        prepare(ChatRequest([{"role": "user", "content": "x" * 5000}]), tokenizer, 2048)
    assert error.value.code == "context_length_exceeded"
