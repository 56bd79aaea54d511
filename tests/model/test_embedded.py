"""The engine under the agent's own provider, and the same request over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from unabridged.agent.events import Call
from unabridged.agent.providers.base import (
    CallDelta,
    ContentDelta,
    Notice,
    Provider,
    ProviderError,
    ReasoningDelta,
    Reply,
    Request,
)
from unabridged.agent.providers.embedded import EmbeddedProvider
from unabridged.agent.providers.kimi import KimiProvider
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.engine import Engine

THOUGHT = "hm<|close|>think<|sep|>"
DONE = "<|close|>message<|sep|><|end_of_msg|>"
LINES = {
    "hi": f"{THOUGHT}<|open|>response<|sep|>hello, 日本<|close|>response<|sep|>{DONE}",
    "read": (
        f"{THOUGHT}<|open|>response<|sep|>so:<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="read" index="1"<|sep|>'
        '<|open|>argument key="path" type="string"<|sep|>a "b".py<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="finish" index="2"<|sep|><|close|>call<|sep|>'
        f"<|close|>tools<|sep|>{DONE}"
    ),
    "mumble": f"hm<|open|>response<|sep|>oops<|close|>response<|sep|>{DONE}",
    "go on": "on " * 10_000,
}
TOOLS = b'[{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]'


def make_engine(actor: Any, tokenizer: Tokenizer) -> Engine:
    return Engine(
        actor(tokenizer, LINES),
        end_token=tokenizer.end_of_msg_id,
        vocab_size=tokenizer.vocab_size,
        window=20_000,
    )


@pytest.fixture
async def embedded(actor: Any, tokenizer: Tokenizer) -> AsyncIterator[EmbeddedProvider]:
    provider = EmbeddedProvider(make_engine(actor, tokenizer), tokenizer, "test")
    yield provider
    await provider.close()


def request(*messages: str | dict[str, Any], most: int = 1000) -> Request:
    sent = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return Request("k3-test", [json.dumps(m).encode() for m in sent], TOOLS, "max", most)


async def collect(provider: Provider, asked: Request) -> tuple[list[Any], Reply]:
    *deltas, reply = [item async for item in provider.stream(asked)]
    assert isinstance(reply, Reply)
    return deltas, reply


def shown(deltas: list[Any], kind: type) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


async def test_a_reply_and_what_streams_of_it(embedded: EmbeddedProvider) -> None:
    deltas, reply = await collect(embedded, request("read"))
    assert shown(deltas, ReasoningDelta) == reply.reasoning == "hm"
    assert shown(deltas, ContentDelta) == reply.content == "so:"
    first, second = reply.calls
    assert (first.name, first.arguments) == ("read", '{"path": "a \\"b\\".py"}')
    assert (second.name, second.arguments) == ("finish", "{}")
    calls = [delta for delta in deltas if isinstance(delta, CallDelta)]
    for index, call in enumerate(reply.calls):
        own = [delta for delta in calls if delta.index == index]
        assert "".join(delta.id for delta in own) == call.id
        assert "".join(delta.name for delta in own) == call.name
        assert "".join(delta.arguments for delta in own) == call.arguments
    assert reply.finish_reason == "tool_calls"


async def test_the_wire_adds_nothing_and_loses_nothing(
    embedded: EmbeddedProvider, actor: Any, tokenizer: Tokenizer, over_http: Any
) -> None:
    served = over_http(make_engine(actor, tokenizer), tokenizer)
    remote = KimiProvider(f"{served.url}/v1", "k3-test")

    def plain(reply: Reply) -> Reply:
        calls = tuple(Call(id="", name=c.name, arguments=c.arguments) for c in reply.calls)
        return replace(reply, calls=calls, model=None, response_id=None)

    history: list[Any] = []
    for ask in ("hi", "read", "mumble"):
        history.append(ask)
        _, here = await collect(embedded, request(*history))
        _, there = await collect(remote, request(*history))
        assert plain(here) == plain(there)
        history.append(
            {
                "role": "assistant",
                "content": here.content,
                "reasoning_content": here.reasoning,
                "tool_calls": [
                    {"id": c.id, "function": {"name": c.name, "arguments": c.arguments}}
                    for c in here.calls
                ],
            }
        )
        history += [
            {"role": "tool", "tool_call_id": c.id, "content": "done"} for c in reversed(here.calls)
        ]
    assert here.usage is not None
    assert here.usage.cached > 0
    await remote.close()
    served.close()


async def test_output_that_leaves_the_format_is_told(embedded: EmbeddedProvider) -> None:
    deltas, reply = await collect(embedded, request("mumble"))
    (notice,) = [delta for delta in deltas if isinstance(delta, Notice)]
    assert "<think> was not closed" in notice.text
    assert reply.content == "oops"


async def test_faults_have_their_kind(embedded: EmbeddedProvider) -> None:
    for asked, kind in (
        (request("x" * 50_000), "context_overflow"),
        (request({"role": "owl"}), "bad_request"),
    ):
        with pytest.raises(ProviderError) as error:
            await collect(embedded, asked)
        assert error.value.kind == kind
    await embedded.close()
    with pytest.raises(ProviderError, match="closed") as closed:
        await collect(embedded, request("hi"))
    assert closed.value.kind == "server"


async def test_an_overflow_over_http_teaches_the_window(
    actor: Any, tokenizer: Tokenizer, over_http: Any
) -> None:
    served = over_http(make_engine(actor, tokenizer), tokenizer)
    remote = KimiProvider(f"{served.url}/v1", "k3-test")
    with pytest.raises(ProviderError) as error:
        await collect(remote, request("x" * 50_000))
    assert error.value.kind == "context_overflow"
    assert remote.window == 20_000
    await remote.close()
    served.close()


async def test_leaving_stops_the_engine(actor: Any, tokenizer: Tokenizer) -> None:
    engine = make_engine(actor, tokenizer)
    provider = EmbeddedProvider(engine, tokenizer, "test")
    async with aclosing(provider.stream(request("go on", most=15_000))) as stream:
        await anext(stream)
        assert engine.load == (1, 0)
    async with asyncio.timeout(10):
        while engine.load != (0, 0):
            await asyncio.sleep(0.005)
    await provider.close()
