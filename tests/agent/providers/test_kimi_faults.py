"""What goes wrong at a server or on the way, and what a person gets to read."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from typing import Any

import httpx
import pytest

from unabridged.agent.providers import kimi
from unabridged.agent.providers.base import Notice, ProviderError, Reply, Waiting
from unabridged.agent.providers.dialects import DIALECTS
from unabridged.agent.providers.scripted import Script, Turn

CALLS = [{"name": "read", "arguments": {"path": "a"}}]
GOOD = {"reasoning": "r", "content": "fine", "calls": CALLS, "wire": {"chunk": 1}}


def status(code: int, message: str = "", kind: str = "", **headers: str) -> dict[str, Any]:
    body = {"error": {"message": message, "type": kind}}
    return {"kind": "status", "status": code, "body": body, "headers": headers}


async def failing(bench: Any, *faults: Any, **options: Any) -> tuple[ProviderError, Any]:
    """The error that faults lead to, and the server they came from."""
    server = await bench.serve([{**GOOD, "faults": faults}])
    with pytest.raises(ProviderError) as raised:
        await bench.ask(bench.connect(server, **options))
    assert "\n" not in raised.value.message
    return raised.value, server


# --- what passes: tried again -------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        status(429, "rate_limit_reached: max RPM 3, please try again after 1 seconds", "rate"),
        status(429, "The engine is currently overloaded", "engine_overloaded_error"),
        status(429, "Quota exceeded for tokens per minute"),
        status(500),
        status(502),
        status(503),
        status(504),
        status(529),
        status(408),
        {"kind": "status", "status": 502, "body": "<html><h1>Bad gateway</h1></html>"},
        {"kind": "drop", "after": -1},
        {"kind": "drop", "after": 0},
        {"kind": "drop", "after": 4},
        {"kind": "cut", "after": 4},
        {"kind": "garbage", "after": 2},
        {"kind": "garbage", "after": 2, "text": "data: [1, 2]\n\n"},
        {"kind": "garbage", "after": 2, "text": 'data: "\udcff"\n\n'},
        {"kind": "error", "after": 2},
        {"kind": "error", "after": 2, "error": {"message": "upstream", "code": 502}},
        {"kind": "no_calls"},
        {"kind": "leak", "markup": "k3"},
        {"kind": "leak", "markup": "k2"},
        {"kind": "storm", "count": 80},
        {"kind": "page", "body": "", "type": "text/event-stream"},
        {"kind": "page", "body": "data: [DONE]\n\n", "type": "text/event-stream"},
        {"kind": "page", "body": '{"choices": [{"mess', "type": "application/json"},
        {"kind": "page", "body": "", "type": "application/json"},
    ],
    ids=lambda fault: "-".join(str(value)[:18] for value in fault.values()),
)
async def test_passing_faults_are_retried_and_the_partial_reply_is_void(
    bench: Any, fault: Any
) -> None:
    """Among them K15 (leaked markup), K16 (no calls), K17 (empty deltas), K21 (drop mid-call)."""
    server = await bench.serve([{**GOOD, "faults": [fault, fault]}])
    heard = await bench.ask(bench.connect(server, patience={"empty_deltas": 50}))
    assert [w.attempt for w in heard.waits] == [2, 3]
    assert all(w.reason and "\n" not in w.reason for w in heard.waits)
    assert heard.shown == ("r", "fine", '{"path": "a"}')
    assert heard.reply.content == "fine"
    assert [c.arguments for c in heard.reply.calls] == ['{"path": "a"}']
    assert len(server.requests) == 3
    assert len({recorded.json["messages"][0]["content"] for recorded in server.requests}) == 1


async def test_a_call_cut_off_on_its_way_is_never_part_of_a_reply(bench: Any) -> None:
    """K21: a partial call is discarded."""
    fault = {"kind": "drop", "after": 10}
    server = await bench.serve([{**GOOD, "faults": [fault] * 10}])
    heard = bench.heard()
    with pytest.raises(ProviderError, match="Given up after 10 attempts"):
        await bench.ask(bench.connect(server), into=heard)
    assert heard.of(Reply) == []


async def test_at_most_ten_attempts(bench: Any) -> None:
    error, server = await failing(bench, *[status(503)] * 20)
    assert (error.kind, error.status, len(server.requests)) == ("server", 503, 10)
    assert "Given up after 10 attempts" in error.message


async def test_waits_double_up_to_a_limit_and_are_spread(bench: Any) -> None:
    server = await bench.serve([{**GOOD, "faults": [status(503)] * 5}])
    times = {"first_wait": 0.001, "longest_wait": 0.004}
    heard = await bench.ask(bench.connect(server, patience=times, jitter=lambda: 0.5))
    assert [w.seconds for w in heard.waits] == pytest.approx([0.00075, 0.0015, 0.003, 0.003, 0.003])
    assert {w.attempts for w in heard.waits} == {10}


@pytest.mark.parametrize("headers", [{"Retry-After": "0.03"}, {"retry-after-ms": "30"}])
async def test_retry_after_is_honoured(bench: Any, headers: dict[str, str]) -> None:
    fault = {"kind": "status", "status": 429, "headers": headers}
    server = await bench.serve([{**GOOD, "faults": [fault]}])
    began = time.monotonic()
    heard = await bench.ask(bench.connect(server))
    assert heard.waits[0].seconds == pytest.approx(0.03)
    assert time.monotonic() - began >= 0.03


async def test_retry_after_too_long_is_not_waited_for(bench: Any) -> None:
    fault = {"kind": "status", "status": 429, "headers": {"Retry-After": "7200"}}
    error, server = await failing(bench, fault)
    assert error.kind == "rate"
    assert "asks to wait 120 min" in error.message
    assert len(server.requests) == 1


async def test_stalls_are_waited_out_four_times_at_most(bench: Any) -> None:
    error, server = await failing(bench, *[{"kind": "stall"}] * 9, patience={"idle": 0.02})
    assert (error.kind, len(server.requests)) == ("timeout", 4)


@pytest.mark.parametrize("stall", [True, False])
async def test_an_error_counts_though_its_words_do_not_come(bench: Any, stall: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 -\r\nContent-Length: 50\r\n\r\n{")
        await writer.drain()
        if stall:
            await reader.read(1 << 16)
            await reader.read(1 << 16)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        with pytest.raises(ProviderError, match="refused the API key") as raised:
            await bench.ask(bench.connect(url, "sk-some-key", patience={"error_body": 0.05}))
    assert raised.value.status == 401


async def test_replies_wrong_in_themselves_are_paid_for_four_times_at_most(bench: Any) -> None:
    error, server = await failing(bench, *[{"kind": "leak"}] * 10)
    assert (error.kind, len(server.requests)) == ("protocol", 4)
    assert "tool calls as text" in error.message


async def test_k17_two_broken_streams_lead_to_whole_replies_and_say_so(bench: Any) -> None:
    storm = {"kind": "storm", "count": 80}
    server = await bench.serve([{**GOOD, "faults": [storm] * 9}, GOOD])
    provider = bench.connect(server, patience={"empty_deltas": 50})
    heard = await bench.ask(provider)
    assert [bool(r.json["stream"]) for r in server.requests] == [True, True, False]
    assert any("requested whole" in notice for notice in heard.notices)
    assert heard.reply.calls[0].arguments == '{"path": "a"}'
    again = await bench.ask(provider)
    assert server.requests[-1].json["stream"] is False
    assert "stream_options" not in server.requests[-1].json
    assert again.notices == []


async def test_k18_an_empty_delta_for_each_token_of_a_long_call_is_waited_out(bench: Any) -> None:
    chunks = [{"choices": [{"index": 0, "delta": {}}]}] * 3000
    function = {"name": "write", "arguments": "{}"}
    call = {"tool_calls": [{"index": 0, "id": "a", "function": function}]}
    chunks += [{"choices": [{"index": 0, "delta": call, "finish_reason": "tool_calls"}]}]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page = {"kind": "page", "body": body, "type": "text/event-stream"}
    heard = await bench.ask(bench.connect(await bench.serve([{"faults": [page]}])))
    assert heard.waits == []
    assert heard.reply.calls[0].name == "write"


def test_k18_silence_of_ten_minutes_is_no_fault() -> None:
    assert kimi.Patience().idle >= 600
    assert kimi.Patience().whole >= 600


async def test_stall_by_time(bench: Any) -> None:
    """K18, K21: the watchdog on time; a stalled attempt is dropped and made again."""
    for after in (-1, 0, 8):
        server = await bench.serve([{**GOOD, "faults": [{"kind": "stall", "after": after}]}])
        heard = await bench.ask(bench.connect(server, patience={"idle": 0.15}))
        assert "sent nothing for" in heard.waits[0].reason
        assert heard.reply.content == "fine"
        await _until(lambda server=server: server.dropped == 1)


async def test_keep_alives_alone_are_no_progress(bench: Any) -> None:
    stall = {"kind": "stall", "after": 4, "keepalive": 0.005}
    server = await bench.serve([{**GOOD, "faults": [stall]}])
    heard = await bench.ask(bench.connect(server, patience={"progress": 0.15, "idle": 2.0}))
    assert "nothing but keep-alives" in heard.waits[0].reason
    assert heard.reply.content == "fine"


async def test_keep_alives_hold_off_the_idle_timeout(bench: Any) -> None:
    body = ": wait\n\n"
    turn = {**GOOD, "wire": {"chunk": 1, "delay": 0.03}}
    turn["faults"] = [{"kind": "garbage", "after": 1, "text": body}]
    heard = await bench.ask(bench.connect(await bench.serve([turn]), patience={"idle": 0.4}))
    assert len(heard.waits) == 0
    assert heard.reply.content == "fine"


async def test_k21_stall_by_bytes(bench: Any) -> None:
    flood = {"kind": "garbage", "after": 2, "text": ": " + "x" * 200_000 + "\n\n"}
    server = await bench.serve([{**GOOD, "faults": [flood]}])
    heard = await bench.ask(bench.connect(server, patience={"idle_bytes": 100_000}))
    assert "brought the reply no further" in heard.waits[0].reason
    assert heard.reply.content == "fine"


async def test_a_line_that_never_ends_is_cut_off(bench: Any) -> None:
    endless = {"kind": "garbage", "after": 2, "text": "data: " + "x" * 300_000}
    server = await bench.serve([{**GOOD, "faults": [endless]}])
    heard = await bench.ask(bench.connect(server, patience={"idle_bytes": 100_000}))
    assert heard.reply.content == "fine"


async def test_a_server_that_ignores_the_limit_is_stopped(bench: Any) -> None:
    server = await bench.serve([{"content": "x" * 200_000, "wire": {"chunk": 1000}}])
    with pytest.raises(ProviderError, match="ignores the limit") as raised:
        await bench.ask(bench.connect(server), most=10)
    assert raised.value.kind == "protocol"
    assert len(server.requests) == 1


async def test_a_call_without_a_name_is_a_fault_of_the_server(bench: Any) -> None:
    server = await bench.serve([{"calls": [{"name": "", "arguments": "{}"}]}] * 4)
    with pytest.raises(ProviderError, match="without a name"):
        await bench.ask(bench.connect(server))


@pytest.mark.parametrize(
    "text",
    [
        "The parser looks for `<|open|>tools<|sep|>` first.",
        '```\n<|open|>call tool="x" index="1"<|sep|>\n```\nis one call.',
        "A lone <|open|> or <|sep|> in a sentence.",
    ],
)
async def test_an_answer_about_the_markup_is_an_answer(bench: Any, text: str) -> None:
    heard = await bench.ask(bench.connect(await bench.serve([{"content": text}])))
    assert (heard.reply.content, heard.waits) == (text, [])


async def test_k15_markup_leaked_into_the_reasoning_of_an_empty_reply(bench: Any) -> None:
    leaked = 'ok<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="read" index="1"<|sep|>'
    server = await bench.serve([{"reasoning": leaked}, GOOD])
    heard = await bench.ask(bench.connect(server))
    assert len(heard.waits) == 1
    assert heard.reply.content == "fine"


# --- what does not pass -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (status(401, "Invalid Authentication"), "auth", "refused the API key"),
        (status(403, "not allowed"), "auth", "denies this key"),
        (status(429, "You exceeded your current token quota: check your account balance"),
         "quota", "no quota left"),
        (status(429, "x", "exceeded_current_quota_error"), "quota", "no quota left"),
        (status(429, "x", "insufficient_quota"), "quota", "no quota left"),
        (status(403, "You've reached your usage limit for this billing cycle"), "quota", "no quota"),
        (status(402, "Payment required"), "quota", "no quota left"),
        (status(400, "tool name is invalid"), "bad_request", "tool name is invalid"),
        (status(422, "messages.0.role: bad"), "bad_request", "messages.0.role"),
        (status(501), "server", "HTTP 501"),
        ({"kind": "status", "status": 413, "body": "<h1>413 Request Entity Too Large</h1>"},
         "bad_request", "raise the body limit"),
        ({"kind": "status", "status": 302, "headers": {"Location": "https://u:p@n.example/v2?t=1"}},
         "not_found", "https://n.example/v2: set"),
        ({"kind": "page"}, "not_found", "web page.*usually ends in /v1"),
        ({"kind": "page", "type": "application/json", "body": "{}"}, "not_found", "not JSON|not with"),
        ({"kind": "page", "type": "application/json", "body": '{"error": {"message": "no", '
          '"code": 401}}'}, "auth", "refused the API key"),
        ({"kind": "error", "after": 3, "error": {"message": "bad tool", "code": 400}},
         "bad_request", "bad tool"),
    ],
)  # fmt: skip
async def test_lasting_faults_are_not_retried(
    bench: Any, fault: Any, kind: str, words: str
) -> None:
    error, server = await failing(bench, fault, key="sk-some-key")
    assert error.kind == kind
    assert re.search(words, error.message), error.message
    completions = [r for r in server.requests if r.method == "POST"]
    assert len(completions) == 1


async def test_no_key_where_one_is_needed(bench: Any) -> None:
    server = await bench.serve([GOOD], key="sk-right")
    with pytest.raises(ProviderError, match=r"needs an API key .*set UNABRIDGED_API_KEY") as raised:
        await bench.ask(bench.connect(server))
    assert raised.value.kind == "auth"


async def test_unknown_model_names_what_there_is(bench: Any) -> None:
    server = await bench.serve(Script(model="kimi-k3", turns=(Turn.model_validate(GOOD),)))
    with pytest.raises(ProviderError, match=r"no model 'kimi-k33'.*It has kimi-k3\.") as raised:
        await bench.ask(bench.connect(server), model="kimi-k33")
    assert raised.value.kind == "not_found"


async def test_wrong_path(bench: Any) -> None:
    server = await bench.serve([GOOD])
    provider = bench.connect(server.url.removesuffix("/v1"))
    with pytest.raises(ProviderError, match=r"no chat completions at .*usually ends in /v1"):
        await bench.ask(provider)


OVERFLOWS = [
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
    "This model's maximum context length is 262144 tokens. However, you requested 300000 tokens.",
    "'max_tokens' is too large: 1000. This model's maximum context length is 262144 tokens.",
    "The input (300000 tokens) is longer than the model's context length (262144 tokens).",
    "Requested token count exceeds the model's maximum context length of 262,144 tokens.",
]


@pytest.mark.parametrize("message", OVERFLOWS)
async def test_k29_window_is_learned_and_the_same_request_never_sent_twice(
    bench: Any, message: str
) -> None:
    server = await bench.serve([{**GOOD, "faults": [status(400, message)]}])
    provider = bench.connect(server)
    for _ in range(2):
        with pytest.raises(ProviderError) as raised:
            await bench.ask(provider, b'{"role":"user","content":"long"}')
        assert raised.value.kind == "context_overflow"
    assert provider.window == 262_144
    assert len(server.requests) == 1
    assert (await bench.ask(provider)).reply.content == "fine"


async def test_overflow_without_a_number_keeps_the_window(bench: Any) -> None:
    error, _ = await failing(bench, status(400, "too long", "context_length_exceeded"))
    assert error.kind == "context_overflow"


async def test_a_larger_window_is_not_believed(bench: Any) -> None:
    message = "This model's maximum context length is 4194304 tokens."
    server = await bench.serve([{**GOOD, "faults": [status(400, message)]}])
    provider = bench.connect(server, window=100_000)
    with pytest.raises(ProviderError):
        await bench.ask(provider)
    assert provider.window == 100_000


@pytest.mark.parametrize(
    ("field", "message", "instead"),
    [
        ("stream_options", "Unrecognized request argument supplied: stream_options", None),
        ("max_completion_tokens", "max_completion_tokens is not supported by this model",
         "max_tokens"),
        ("max_completion_tokens", "Extra inputs are not permitted: max_completion_tokens",
         "max_tokens"),
    ],
)  # fmt: skip
async def test_fields_a_server_does_not_know_are_learned(
    bench: Any, field: str, message: str, instead: str | None
) -> None:
    """K23: learned once, then pinned, with a notice and without a wait."""
    server = await bench.serve([{**GOOD, "faults": [status(400, message)]}, GOOD])
    provider = bench.connect(server)
    heard = await bench.ask(provider)
    again = await bench.ask(provider)
    assert [field in r.json for r in server.requests] == [True, False, False]
    if instead:
        assert server.requests[1].json[instead] == 1000
    assert (len(heard.notices), heard.waits, again.notices) == (1, [], [])


# --- the way to the server ------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_nothing_listens(bench: Any) -> None:
    """An address that was never reached is given up soon."""
    provider = bench.connect(f"http://127.0.0.1:{free_port()}/v1")
    heard = bench.heard()
    with pytest.raises(ProviderError, match="nothing listens there") as raised:
        await bench.ask(provider, into=heard)
    assert (raised.value.kind, len(heard.waits)) == ("connection", 2)


async def test_server_that_restarts_is_waited_for(bench: Any) -> None:
    server = await bench.serve([GOOD, GOOD])
    provider = bench.connect(server)
    await bench.ask(provider)
    port = int(server.url.rsplit(":", 1)[1].removesuffix("/v1"))
    await server.stop()
    waits = 0
    async for item in provider.stream(bench.request()):
        if isinstance(item, Waiting):
            waits += 1
            if waits == 4:
                await server.start(port=port)
    assert waits >= 4


async def test_unknown_host(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup, raising=False)
    with pytest.raises(ProviderError, match="host name is not known") as raised:
        await bench.ask(bench.connect("http://no-such-host.example/v1"))
    assert raised.value.kind == "connection"


async def test_https_to_a_server_that_speaks_http(bench: Any) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)  # a server that waits for a line may wait for ever
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        provider = bench.connect(f"https://127.0.0.1:{port}/v1")
        with pytest.raises(ProviderError, match="should start with http://"):
            await bench.ask(provider)


def test_untrusted_certificate_says_what_to_set() -> None:
    inner = ssl.SSLCertVerificationError(1, "certificate verify failed")
    inner.verify_message = "self-signed certificate"
    error = httpx.ConnectError("failed")
    error.__cause__ = inner
    failure = kimi._transport_failure(error, "https://h/v1", 1.0, True)
    assert "self-signed certificate" in failure.message
    assert "SSL_CERT_FILE" in failure.message
    assert not failure.retry


async def test_loopback_is_reached_without_the_proxy(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert (await bench.ask(bench.connect(await bench.serve([GOOD])))).reply.content == "fine"


async def test_proxy_that_refuses(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://joe:hush-hush@127.0.0.1:{port}")
    async with proxy:
        with pytest.raises(ProviderError, match="check HTTPS_PROXY") as raised:
            await bench.ask(bench.connect("https://h.example/v1"))
    assert "hush" not in raised.value.message


async def test_proxy_setting_that_is_none(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "nonsense://joe:hush-hush@x")
    with pytest.raises(ProviderError) as raised:
        await bench.ask(bench.connect("https://h.example/v1"))
    assert raised.value.kind == "connection"
    assert "hush" not in raised.value.message


# --- leaving ----------------------------------------------------------------------------------------


async def _until(condition: Any) -> None:
    async with asyncio.timeout(1):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "stall", "after": -1},
        {"kind": "stall", "after": 0},
        {"kind": "stall", "after": 6},
        {"kind": "stall", "after": 6, "keepalive": 0.01},
        status(503, **{"Retry-After": "300"}),
    ],
    ids=["head", "first event", "mid-stream", "keep-alives", "retry wait"],
)
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_c44_leaving_takes_less_than_a_second(bench: Any, fault: Any, how: str) -> None:
    """Cancelled or closed in every state, and the connection is gone."""
    server = await bench.serve([{**GOOD, "faults": [fault]}])
    stream = bench.connect(server).stream(bench.request())

    async def listen() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(listen())
    await _until(lambda: server.requests)
    await asyncio.sleep(0.03)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if how == "close":
        await stream.aclose()
    assert time.monotonic() - began < 0.5
    if fault["kind"] == "stall":
        await _until(lambda: server.dropped == 1 and server.open == 0)


async def test_closing_between_items_drops_the_connection(bench: Any) -> None:
    server = await bench.serve(
        [{**GOOD, "content": "x" * 500, "wire": {"chunk": 1, "delay": 0.01}}]
    )
    stream = bench.connect(server).stream(bench.request())
    await anext(stream)
    await stream.aclose()
    await _until(lambda: server.dropped == 1 and server.open == 0)


async def test_c44_cancel_while_connecting(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup, raising=False)
    provider = bench.connect("http://slow.example/v1")
    task = asyncio.create_task(bench.ask(provider))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 0.5


async def test_after_leaving_the_provider_goes_on(bench: Any) -> None:
    server = await bench.serve([{**GOOD, "faults": [{"kind": "stall", "after": 5}]}])
    provider = bench.connect(server)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.ask(provider), 0.05)
    assert (await bench.ask(provider)).reply.content == "fine"


# --- no word of the key -----------------------------------------------------------------------------

KEY = "sk-Zq9/secret+key"


@pytest.mark.parametrize(
    "fault",
    [
        status(401, f"Incorrect API key provided: {KEY}"),
        status(401, "Incorrect API key provided: sk-Zq9%2Fsecret%2Bkey"),
        status(403, f"Bearer {KEY} may not"),
        status(400, f"bad header Authorization: Bearer {KEY}"),
        status(402, f"key {KEY} has no credit"),
        status(429, f"{KEY} exceeded your current quota"),
        status(404, f"model not found for {KEY}"),
        status(503, f"no upstream for {KEY}"),
        status(400, f"{KEY}: context_length_exceeded"),
        {"kind": "status", "status": 400, "body": f"plain text with {KEY}"},
        {"kind": "status", "status": 302, "headers": {"Location": f"http://x/{KEY}?k={KEY}"}},
        {"kind": "page", "type": "text/plain", "body": f"<p>{KEY}</p>"},
        {"kind": "page", "type": "application/json", "body": f"oops {KEY}"},
        {"kind": "error", "after": 1, "error": {"message": f"bad {KEY}"}},
        {"kind": "garbage", "after": 1, "text": f"data: {KEY}\n\n"},
        {"kind": "drop", "after": 1},
    ],
    ids=str,
)
async def test_no_error_path_shows_the_key(bench: Any, fault: Any) -> None:
    server = await bench.serve([{**GOOD, "faults": [fault] * 2}])
    provider = bench.connect(server, KEY, patience={"attempts": 2})
    heard = bench.heard()
    with pytest.raises(ProviderError) as raised:
        await bench.ask(provider, into=heard)
    text = f"{heard.of(Waiting)} {heard.of(Notice)} {raised.value} {raised.value.args}"
    assert "secret" not in text
    assert repr(KEY)[1:-1] not in text


async def test_secrets_of_the_url_are_not_shown(bench: Any) -> None:
    fault = status(400, "cannot use token=hush1 of joe:s/word or s%2Fword")
    server = await bench.serve([{**GOOD, "faults": [fault]}])
    url = server.url.replace("//", "//joe:s%2Fword@") + "?token=hush1"
    with pytest.raises(ProviderError) as raised:
        await bench.ask(bench.connect(url))
    for secret in ("hush1", "s/word", "s%2Fword"):
        assert secret not in raised.value.message


async def test_error_text_cannot_steer_the_terminal(bench: Any) -> None:
    error, _ = await failing(bench, status(400, "bad \x1b[31mred\x07\r\nline \u202e" + "x" * 2000))
    assert error.message.isprintable()
    assert len(error.message) < 500


# --- the list of models -----------------------------------------------------------------------------


async def test_models(bench: Any) -> None:
    server = await bench.serve(Script(model="kimi-k3", window=1000))
    assert await bench.connect(server).models() == (kimi.Model("kimi-k3", 1000, "script"),)


async def test_models_where_there_is_no_list(bench: Any) -> None:
    server = await bench.serve([GOOD])
    with pytest.raises(ProviderError):
        await bench.connect(server.url.removesuffix("/v1")).models()


def test_every_dialect_replays_reasoning() -> None:
    """K8: a dialect has no field that could say otherwise."""
    assert not [f for d in DIALECTS.values() for f in d.__slots__ if "replay" in f or "keep" in f]
