from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse

from unabridged.model import server as server_module
from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.engine import Engine

THOUGHT = "hm<|close|>think<|sep|>"
DONE = "<|close|>message<|sep|><|end_of_msg|>"
LINES = {
    "hi": f"{THOUGHT}<|open|>response<|sep|>hello, 日本<|close|>response<|sep|>{DONE}",
    "read both": (
        f"{THOUGHT}<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="read" index="1"<|sep|>'
        '<|open|>argument key="path" type="string"<|sep|>a "b".py<|close|>argument<|sep|>'
        "<|close|>call<|sep|>"
        '<|open|>call tool="read" index="2"<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>2<|close|>argument<|sep|>'
        f"<|close|>call<|sep|><|close|>tools<|sep|>{DONE}"
    ),
    "mumble": f"hm<|open|>response<|sep|>oops<|close|>response<|sep|>{DONE}",
    "go on": "on " * 50_000,
    "fail": "",
}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def served(actor: Any, tokenizer: Tokenizer, over_http: Any) -> Iterator[Any]:
    engine = Engine(
        actor(tokenizer, LINES),
        end_token=tokenizer.end_of_msg_id,
        vocab_size=tokenizer.vocab_size,
        window=100_000,
        save_every=1,
    )
    served = over_http(engine, tokenizer)
    yield served
    served.close()


def body(*asked: str | dict[str, Any], **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": a} if isinstance(a, str) else a for a in asked]
    return {"model": "k3-test", "messages": messages, "temperature": 0, **options}


async def stream(served: Any, request: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """All chunks, and the data of events that are no chunks."""
    chunks: list[dict[str, Any]] = []
    others: list[str] = []
    async with (
        httpx.AsyncClient(timeout=30) as client,
        aconnect_sse(
            client, "POST", f"{served.url}/v1/chat/completions", json={**request, "stream": True}
        ) as source,
    ):
        assert source.response.status_code == 200
        async for event in source.aiter_sse():
            if event.data == "[DONE]":
                others.append(event.data)
            else:
                chunks.append(json.loads(event.data))
    return chunks, others


def assemble(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of the deltas."""
    message: dict[str, Any] = {"role": None, "content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["role"] = delta.get("role", message["role"])
            message["content"] += delta.get("content", "")
            message["reasoning_content"] += delta.get("reasoning_content", "")
            for part in delta.get("tool_calls", []):
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})  # fmt: skip
                else:
                    function = calls[part["index"]]["function"]
                    function["arguments"] += part["function"]["arguments"]
    return {**message, **({"tool_calls": calls} if calls else {})}


async def test_a_whole_reply_and_a_streamed_one_say_the_same(served: Any) -> None:
    for asked in ("hi", "read both", "mumble"):
        response = served.post(body(asked, tools=TOOLS))
        assert response.status_code == 200
        whole = response.json()
        assert whole["object"] == "chat.completion"
        assert whole["model"] == "k3-test"
        (choice,) = whole["choices"]
        request = body(asked, tools=TOOLS, stream_options={"include_usage": True})
        chunks, others = await stream(served, request)
        assert others == ["[DONE]"]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        *parts, last, usage = chunks
        assert all(part["choices"][0]["finish_reason"] is None for part in parts)
        assert last["choices"][0]["finish_reason"] == choice["finish_reason"]
        assert last["choices"][0].get("problems") == choice.get("problems")
        assert usage["choices"] == []
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage["usage"][key] == whole["usage"][key]
        streamed, message = assemble(chunks), choice["message"]
        for call in [*streamed.get("tool_calls", []), *message.get("tool_calls", [])]:
            assert call.pop("id").startswith("call_")
        assert streamed == {**message, "content": message["content"] or ""}


def test_the_form_of_a_reply(served: Any) -> None:
    answer = served.post(body("hi")).json()
    assert answer["choices"][0] == {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "hello, 日本", "reasoning_content": "hm"},
    }
    call = served.post(body("read both", tools=TOOLS)).json()["choices"][0]
    assert call["finish_reason"] == "tool_calls"
    assert call["message"]["content"] is None
    functions = [call["function"] for call in call["message"]["tool_calls"]]
    assert functions == [
        {"name": "read", "arguments": '{"path": "a \\"b\\".py"}'},
        {"name": "read", "arguments": '{"n": 2}'},
    ]
    assert len({call["id"] for call in call["message"]["tool_calls"]}) == 2
    mumbled = served.post(body("mumble")).json()["choices"][0]
    assert mumbled["problems"] == [
        {"message": "<think> was not closed before <response>", "call": None}
    ]


def test_usage_counts_what_was_cached(served: Any, tokenizer: Tokenizer) -> None:
    # The effort is told first, and no other test asks for a high one.
    first = served.post(body("hi", reasoning_effort="high")).json()
    usage = first["usage"]
    assert usage["completion_tokens"] == len(tokenizer.encode_control(LINES["hi"]))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(
        tokenizer.encode_control(THOUGHT)
    )
    turns = ["hi", first["choices"][0]["message"], "hi"]
    second = served.post(body(*turns, reasoning_effort="high")).json()["usage"]
    cached = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert second["prompt_tokens_details"]["cached_tokens"] == cached
    assert second["cached_tokens"] == cached


async def test_a_streamed_request_without_usage_has_no_usage_chunk(served: Any) -> None:
    chunks, _ = await stream(served, body("hi"))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_requests_run_side_by_side(served: Any) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        url = f"{served.url}/v1/chat/completions"
        asked = ["hi", "read both", "mumble", "hi", "hi", "read both"]
        answers = await asyncio.gather(
            *(client.post(url, json=body(a, tools=TOOLS)) for a in asked)
        )
    said = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert said == ["hello, 日本", None, "oops", "hello, 日本", "hello, 日本", None]


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_goes_away_cancels(served: Any, streamed: bool) -> None:
    request = body("go on", stream=streamed)
    async with httpx.AsyncClient(timeout=30) as client:
        task = asyncio.ensure_future(client.post(f"{served.url}/v1/chat/completions", json=request))
        await until(lambda: served.engine.load == (1, 0))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: served.engine.load == (0, 0))
    assert served.post(body("hi")).status_code == 200


async def test_a_quiet_stream_is_kept_alive(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KEEP_ALIVE", 0.01)
    slow = served.engine._model.step

    def step(states: Any, tokens: Any) -> Any:
        time.sleep(0.05)
        return slow(states, tokens)

    monkeypatch.setattr(served.engine._model, "step", step)
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream(
            "POST",
            f"{served.url}/v1/chat/completions",
            json=body("hi", stream=True, max_tokens=3),
        ) as response,
    ):
        lines = [line async for line in response.aiter_lines()]
    assert ": working" in lines
    assert any(line.startswith(": read ") for line in lines)


@pytest.mark.parametrize(
    ("request_body", "status", "message", "param"),
    [
        (body("hi", n=2), 400, "n: ", "n"),
        (body("hi", logit_bias={}), 400, "logit_bias: Extra inputs", "logit_bias"),
        (body("hi", max_tokens=0), 400, "max_tokens: ", "max_tokens"),
        ({"model": "k3-test", "messages": []}, 400, "messages: ", "messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, 400, "model: ", "model"),
        (body("hi", reasoning_effort="medium"), 400, "'medium' is not one of", None),
        (body("hi", thinking={"keep": "none"}), 400, "thinking.keep: ", "thinking.keep"),
        (body("hi", tool_choice="required"), 400, "there are no tools", "tool_choice"),
        (
            body("hi", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}}),
            400,
            "cannot be told to call a certain tool",
            "tool_choice",
        ),
        (body("hi", tools=[{"type": "function"}]), 400, "a name", "tools.0"),
        (body({"role": "owl", "content": "hoo"}), 400, "messages[0]: role 'owl'", None),
        ({**body("hi"), "model": "gpt-4"}, 404, "'k3-test' is", "model"),
        (body("x" * 200_000), 400, "the context window is 100,000 tokens", "messages"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_errors_have_openai_form(
    served: Any,
    request_body: dict[str, Any],
    status: int,
    message: str,
    param: str | None,
    streamed: bool,
) -> None:
    response = served.post({**request_body, "stream": streamed})
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if "window" in message:
        assert error["code"] == "context_length_exceeded"


def test_errors_below_the_request(served: Any) -> None:
    url = f"{served.url}/v1/chat/completions"
    json_type = {"content-type": "application/json"}
    for response, status, message in (
        (httpx.post(url, content=b"{", headers=json_type), 400, "EOF while parsing"),
        (httpx.post(url, content=b"{}", headers={"content-type": "text/plain"}), 415, "json"),
        (httpx.get(url), 405, "Method Not Allowed"),
        (httpx.get(f"{served.url}/v1/nothing"), 404, "Not Found"),
    ):
        assert response.status_code == status
        assert message in response.json()["error"]["message"]


def test_a_body_without_end_is_cut_off(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_BODY", 1000)
    response = served.post(body("x" * 2000))
    assert response.status_code == 413


async def test_a_failing_model_is_an_error_and_not_the_end(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served.engine._model

    def fail(*_: Any) -> Any:
        raise ArithmeticError("out of numbers")

    with monkeypatch.context() as patch:
        patch.setattr(model, "step", fail)
        response = served.post(body("hi"))
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        chunks, others = await stream(served, body("hi"))
        assert "out of numbers" in chunks[-1]["error"]["message"]
        assert others == []  # no [DONE]: the stream did not end well
    assert served.post(body("hi")).status_code == 200


def test_kimi_and_self_hosted_dialects(served: Any) -> None:
    def prompt_tokens(**options: Any) -> int:
        return served.post(body("hi", max_tokens=1, **options)).json()["usage"]["prompt_tokens"]

    low = prompt_tokens(reasoning_effort="low")
    assert low == prompt_tokens(thinking={"type": "enabled", "keep": "all", "effort": "low"})
    assert low == prompt_tokens(
        chat_template_kwargs={"thinking": True, "preserve_thinking": True, "thinking_effort": "low"}
    )
    assert prompt_tokens() == prompt_tokens(reasoning_effort="max")


def test_models_and_health(served: Any) -> None:
    (model,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert model["id"] == "k3-test"
    assert model["context_length"] == 100_000
    assert model["unabridged"] == {"state_store": False}
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok", "running": 0, "waiting": 0}


def test_an_api_key_is_asked_for_when_set(actor: Any, tokenizer: Tokenizer, over_http: Any) -> None:
    engine = Engine(
        actor(tokenizer, LINES),
        end_token=tokenizer.end_of_msg_id,
        vocab_size=tokenizer.vocab_size,
        window=4096,
    )
    served = over_http(engine, tokenizer, api_key="secret")
    for key, status in ((None, 401), ("wrong", 401), ("secret", 200)):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        assert served.post(body("hi"), headers=headers).status_code == status
        models = httpx.get(f"{served.url}/v1/models", headers=headers)
        assert models.status_code == status
    assert httpx.get(f"{served.url}/v1/models").json()["error"]["type"] == "authentication_error"
    served.close()
