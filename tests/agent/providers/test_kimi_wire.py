"""What goes over the wire: the exact request, each dialect's reply, and what is refused here."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unabridged.agent.events import Usage
from unabridged.agent.providers.base import CallDelta, ProviderError
from unabridged.agent.providers.dialects import DIALECTS
from unabridged.agent.providers.kimi import KimiProvider
from unabridged.agent.providers.scripted import Script, Turn

STREAMS = Path(__file__).resolve().parents[2] / "fakes" / "streams"
CALLS = [{"name": "read", "arguments": {"path": "a"}}, {"name": "list", "arguments": {"p": "é"}}]
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def assistant(**fields: Any) -> bytes:
    return json.dumps({"role": "assistant", **fields}, separators=(",", ":")).encode()


# --- the request --------------------------------------------------------------------------------

BODIES = {
    "moonshot": '{"model":"k","reasoning_effort":"high","stream":true,',
    "openai": '{"model":"k","reasoning_effort":"high","stream":true,',
    "kimi-code": '{"model":"k","thinking":{"type":"enabled","keep":"all","effort":"high"},'
    '"stream":true,',
    "openrouter": '{"model":"k","reasoning":{"effort":"high"},"stream":true,',
    "vllm": '{"model":"k","chat_template_kwargs":{"thinking":true,"preserve_thinking":true,'
    '"thinking_effort":"high"},"stream":true,',
    "sglang": '{"model":"k","chat_template_kwargs":{"thinking":true,"preserve_thinking":true,'
    '"thinking_effort":"high"},"stream":true,',
}


@pytest.mark.parametrize("name", DIALECTS)
async def test_request_body_of_each_dialect(bench: Any, name: str) -> None:
    """Also K22: the budget is always there; sampling never is."""
    server = await bench.serve([{"content": "x"}])
    provider = bench.connect(server, dialect=DIALECTS[name])
    await bench.ask(provider, b'{"role":"user","content":"\xc3\xa9"}', effort="high", most=77)
    assert server.requests[0].body.decode() == (
        BODIES[name] + '"stream_options":{"include_usage":true},'
        '"messages":[{"role":"user","content":"é"}],"max_completion_tokens":77}'
    )


async def test_tools_are_sent_as_given(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}])
    tools = b'[ {"type":"function","function":{"name":"read","parameters":{}}} ]'
    await bench.ask(bench.connect(server), tools=tools)
    assert b'"tools":' + tools + b',"messages":' in server.requests[0].body


async def test_k1_history_bytes_are_sent_exactly_and_only_grow(bench: Any) -> None:
    """Odd but valid JSON stays as it is: nothing is parsed or written anew."""
    history = [
        b'{"role":"user" , "content":"\\u00e9 \xc3\xa9 \xe2\x80\xa8"}',
        b'{"role":"assistant","content":"","reasoning_content":"1.0e5","unknown":1.0e5}',
        b'{"role":"user","content":"go on"}',
    ]
    server = await bench.serve([{"content": "x"}] * 2)
    provider = bench.connect(server)
    await bench.ask(provider, history[0], most=100)
    await bench.ask(provider, *history, most=90)
    first, second = (recorded.body for recorded in server.requests)
    assert b"[" + b",".join(history) + b"]" in second
    assert second.startswith(first.rpartition(b"]")[0])


async def test_extra_fields_are_sent(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}])
    await bench.ask(bench.connect(server, extra={"provider": {"order": ["a"]}}))
    assert server.requests[0].json["provider"] == {"order": ["a"]}


async def test_key_travels_in_the_header_only(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}], key="sk-secret-1")
    await bench.ask(bench.connect(server, "sk-secret-1"))
    assert server.requests[0].headers["authorization"] == "Bearer sk-secret-1"
    assert b"secret" not in server.requests[0].body


async def test_basic_auth_and_query_of_the_url_are_used_and_not_shown(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}])
    provider = bench.connect(server.url.replace("//", "//joe:s%2Fword@") + "?token=hush1")
    await bench.ask(provider)
    assert provider.endpoint == server.url
    assert server.requests[0].path == "/v1/chat/completions?token=hush1"
    assert server.requests[0].headers["authorization"] == "Basic am9lOnMvd29yZA=="


async def test_one_connection_for_all_requests(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}] * 3)
    provider = bench.connect(server)
    for _ in range(3):
        await bench.ask(provider)
    assert server.connections == 1


# --- the reply ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("moonshot", "reasoning_content"),
        ("kimi-code", "reasoning_content"),
        ("openrouter", "reasoning"),
        ("vllm", "reasoning"),
        ("sglang", "reasoning_content"),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_k23_reply_of_each_dialect(bench: Any, name: str, field: str, end: bytes) -> None:
    stream = (STREAMS / f"{name}.sse").read_bytes().replace(b"\n", end)
    page = {"kind": "page", "body": stream.decode(), "type": "text/event-stream"}
    server = await bench.serve([{"content": "unused", "faults": [page]}])
    reply = (await bench.ask(bench.connect(server, dialect=DIALECTS[name]))).reply
    assert (reply.reasoning, reply.reasoning_field) == ("Look first.", field)
    assert reply.content == "Reading."
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [
        ("read:0", "read", '{"path":"a"}')
    ]
    assert reply.finish_reason == "tool_calls"
    assert reply.usage is not None
    assert (reply.usage.prompt, reply.usage.cached, reply.usage.completion) == (100, 64, 20)
    if name == "openrouter":
        assert reply.reasoning_details == (
            {"type": "reasoning.text", "text": "Look first.", "format": "unknown", "index": 0},
        )


async def test_what_streams_is_what_the_reply_holds(bench: Any) -> None:
    turn = {"reasoning": "r" * 50, "content": "c" * 50, "calls": CALLS,
            "wire": {"chunk": 7, "interleave": 5}}  # fmt: skip
    heard = await bench.ask(bench.connect(await bench.serve([turn])))
    assert heard.shown[:2] == ("r" * 50, "c" * 50)
    assert [c.arguments for c in heard.reply.calls] == ['{"path": "a"}', '{"p": "é"}']
    parts = ["".join(d.arguments for d in heard.of(CallDelta) if d.index == i) for i in (0, 1)]
    assert parts == ['{"path": "a"}', '{"p": "é"}']


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(reasoning=TEXT, content=TEXT, arguments=st.lists(TEXT, max_size=8), seed=st.integers(0, 9))
async def test_k4_streamed_and_whole_replies_are_equal_over_http(
    bench: Any, reasoning: str, content: str, arguments: list[str], seed: int
) -> None:
    turn = Turn(
        reasoning=reasoning,
        content=content,
        calls=tuple({"name": "read", "arguments": text} for text in arguments),  # type: ignore[arg-type] # pydantic reads dicts
        wire={"chunk": 3, "interleave": seed},
    )
    server = await bench.serve(Script(turns=(turn, turn), order="history"))
    provider = bench.connect(server)
    streamed = (await bench.ask(provider)).reply
    provider._streaming = False
    whole = (await bench.ask(provider)).reply
    # The count of cached tokens differs: the second request repeats the first.
    assert (streamed.reasoning, streamed.content, streamed.calls) == (
        reasoning,
        content,
        whole.calls,
    )
    assert (whole.reasoning, whole.content, whole.finish_reason) == (
        reasoning, content, streamed.finish_reason,
    )  # fmt: skip
    assert [call.arguments for call in whole.calls] == arguments


async def test_line_separators_in_text_do_not_break_the_stream(bench: Any) -> None:
    odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\r\nh"
    turn = {"reasoning": odd, "content": odd, "wire": {"chunk": 2, "line_end": "\r\n"}}
    reply = (await bench.ask(bench.connect(await bench.serve([turn])))).reply
    assert (reply.reasoning, reply.content) == (odd, odd)


async def test_fields_that_nobody_knows_are_passed_over(bench: Any) -> None:
    extra = {"frobnicate": {"a": [1, {"b": None}]}, "logprobs": None}
    turn = {"reasoning": "r", "content": "c", "calls": CALLS, "wire": {"extra": extra}}
    reply = (await bench.ask(bench.connect(await bench.serve([turn])))).reply
    assert (reply.reasoning, reply.content, len(reply.calls)) == ("r", "c", 2)


async def test_k24_the_name_of_the_reasoning_is_learned_and_kept(bench: Any) -> None:
    server = await bench.serve([
        {"reasoning": "r", "content": "c", "wire": {"reasoning_field": "reasoning"}},
        {"content": "no thoughts", "wire": {"reasoning_field": "reasoning"}},
    ])  # fmt: skip
    provider = bench.connect(server, dialect=DIALECTS["moonshot"])
    assert (await bench.ask(provider)).reply.reasoning_field == "reasoning"
    assert (await bench.ask(provider)).reply.reasoning_field == "reasoning"


async def test_missing_call_ids_are_made_and_the_same_on_replay(bench: Any) -> None:
    turn = {"calls": [{"name": "read", "id": ""}, {"name": "read", "id": ""}]}
    server = await bench.serve([turn, turn])
    provider = bench.connect(server)
    first, second = [(await bench.ask(provider)).reply.calls for _ in range(2)]
    assert [c.id for c in first] != ["", ""]
    assert len({c.id for c in first}) == 2
    assert [c.id[:5] for c in first] == ["call_", "call_"]
    assert second[0].id != first[0].id  # another response


async def test_a_server_that_does_not_stream_is_understood(bench: Any) -> None:
    body = {"id": "1", "choices": [{"message": {"content": "c", "reasoning": "r"},
            "finish_reason": "stop"}]}  # fmt: skip
    page = {"kind": "page", "body": json.dumps(body), "type": "application/json"}
    reply = (await bench.ask(bench.connect(await bench.serve([{"faults": [page]}])))).reply
    assert (reply.reasoning, reply.content, reply.reasoning_field) == ("r", "c", "reasoning")


async def test_malformed_arguments_and_length_are_passed_on_as_received(bench: Any) -> None:
    turn = {"calls": [{"name": "write", "arguments": '{"path": "a", "text": "ab'}],
            "finish": "length"}  # fmt: skip
    reply = (await bench.ask(bench.connect(await bench.serve([turn])))).reply
    assert reply.calls[0].arguments == '{"path": "a", "text": "ab'
    assert reply.finish_reason == "length"


async def test_k7_calls_with_finish_reason_stop_are_kept(bench: Any) -> None:
    turn = {"calls": CALLS, "finish": "stop"}
    reply = (await bench.ask(bench.connect(await bench.serve([turn])))).reply
    assert len(reply.calls) == 2


async def test_k6_empty_reply_is_passed_on(bench: Any) -> None:
    reply = (await bench.ask(bench.connect(await bench.serve([{"finish": "stop"}])))).reply
    assert (reply.reasoning, reply.content, reply.calls) == ("", "", ())


async def test_end_without_done_marker(bench: Any) -> None:
    turn = {"content": "c", "wire": {"done": False}}
    assert (await bench.ask(bench.connect(await bench.serve([turn])))).reply.content == "c"


@pytest.mark.parametrize("fault", [{"kind": "drop", "after": 3}, {"kind": "stall", "after": 3}])
async def test_complete_reply_whose_end_is_missing_is_kept(bench: Any, fault: Any) -> None:
    """After the finish reason only usage and the end marker are lost: no second bill."""
    server = await bench.serve([{"content": "c", "faults": [fault]}])
    heard = await bench.ask(bench.connect(server))
    assert (heard.reply.content, heard.reply.usage, heard.waits) == ("c", None, [])


async def test_a_response_that_stays_open_after_its_end_is_not_waited_for(bench: Any) -> None:
    stall = {"kind": "stall", "after": 99, "keepalive": 0.01}
    server = await bench.serve([{"content": "c", "faults": [stall]}])
    began = time.monotonic()
    heard = await bench.ask(bench.connect(server, patience={"tail": 60}))
    assert (heard.reply.content, heard.waits) == ("c", [])
    assert time.monotonic() - began < 2


async def test_usage_is_counted_from_the_shared_prefix(bench: Any) -> None:
    server = await bench.serve([{"content": "c"}] * 2)
    provider = bench.connect(server)
    cold = (await bench.ask(provider, b'{"role":"user","content":"' + b"x" * 4000 + b'"}')).reply
    warm = (await bench.ask(provider, b'{"role":"user","content":"' + b"x" * 4000 + b'"}')).reply
    assert isinstance(cold.usage, Usage)
    assert isinstance(warm.usage, Usage)
    assert cold.usage.cached == 0
    assert warm.usage.cached >= 1000


# --- refused before anything is sent -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"effort": "medium"}, "low, high, max"),
        ({"most": 0}, "no room"),
        ({"tools": json.dumps([TOOL] * 2).encode()}, "declared twice: read"),
        ({"tools": b"{"}, "not a JSON array"),
    ],
)
async def test_bad_requests_are_not_sent(bench: Any, change: dict[str, Any], words: str) -> None:
    server = await bench.serve([{"content": "x"}])
    provider = bench.connect(server)
    for _ in range(2):
        with pytest.raises(ProviderError, match=words) as raised:
            await bench.ask(provider, **change)
        assert raised.value.kind == "bad_request"
    assert server.requests == []


async def test_k27_more_than_128_tools_are_refused_by_name(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}])
    tools = [{"function": {"name": f"tool_{i}"}} for i in range(130)]
    with pytest.raises(ProviderError, match=r"130 tools.*leave out tool_128, tool_129"):
        await bench.ask(bench.connect(server), tools=json.dumps(tools).encode())
    assert server.requests == []


async def test_k28_no_prefill(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}])
    with pytest.raises(ProviderError, match="start of"):
        await bench.ask(bench.connect(server), assistant(content="Sure", reasoning_content=""))
    assert server.requests == []


async def test_k2_assistant_message_without_reasoning_field_is_refused(bench: Any) -> None:
    server = await bench.serve([{"content": "x"}] * 4)
    provider = bench.connect(server)
    user = b'{"role":"user","content":"\\"reasoning\\":"}'
    for field in ("reasoning_content", "reasoning", "reasoning_details"):
        await bench.ask(provider, user, assistant(content="", **{field: ""}), user)
    with pytest.raises(ProviderError, match="without its reasoning field"):
        await bench.ask(provider, user, assistant(content='"reasoning":'), user)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "url",
    ["", "api.moonshot.ai/v1", "ftp://x/v1", "https://", "http://[::1/v1", "http://x:99999/v1",
     "https://a b/v1", "file:///etc/passwd"],
)  # fmt: skip
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="base URL") as raised:
        KimiProvider(url, "k")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["sk-é", "sk-a\nb", "sk-\x00x"])
def test_keys_that_are_none_are_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="copy it again") as raised:
        KimiProvider("https://api.moonshot.ai/v1", "k", key)
    assert "sk-" not in str(raised.value)


def test_key_and_user_in_url_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="leave one out") as raised:
        KimiProvider("https://joe:word@host.example/v1", "k", "sk-secret")
    assert "word" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["https://h.example/v1", "https://h.example/v1/", "https://h.example/v1/chat/completions"],
)
def test_endpoint_is_the_base_url(url: str) -> None:
    assert KimiProvider(url, "k").endpoint == "https://h.example/v1"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("thinking", "needs all of its reasoning back"),
        ("chat_template_kwargs", "needs all of its reasoning back"),
        ("include_reasoning", "needs all of its reasoning back"),
        ("temperature", "fixes its sampling"),
        ("top_p", "fixes its sampling"),
        ("messages", "harness sets it"),
        ("max_tokens", "harness sets it"),
    ],
)
def test_k8_no_extra_field_can_turn_reasoning_off_or_change_sampling(
    field: str, words: str
) -> None:
    with pytest.raises(ValueError, match=f"{field}.*{words}"):
        KimiProvider("https://h.example/v1", "k", extra={field: 1})


@pytest.mark.parametrize(
    ("url", "key", "warned"),
    [
        ("http://gpu.example/v1", "sk-1", True),
        ("http://gpu.example/v1", None, False),
        ("https://gpu.example/v1", "sk-1", False),
        ("http://127.0.0.1:1/v1", "sk-1", False),
        ("http://localhost:1/v1", "sk-1", False),
    ],
)
def test_key_over_plain_http_is_remarked(url: str, key: str | None, warned: bool) -> None:
    notices = KimiProvider(url, "k", key)._notices
    assert bool(notices) == warned
    assert not any("sk-1" in notice for notice in notices)
