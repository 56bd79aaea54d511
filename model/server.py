"""The engine as an OpenAI-compatible HTTP server.

    POST /v1/chat/completions    streaming or not, with tools, reasoning and exact usage
    GET  /v1/models              the one model that is served
    GET  /health                 200 while the engine runs

Beyond OpenAI's form: reasoning arrives as `reasoning_content`, `usage` counts cached and reasoning
tokens, and output that left K3's grammar is named in `problems` of the choice. A client that goes
away cancels its request. Needs the `serve` extra.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .chat.parse import (
    ArgumentsDelta,
    CallStarted,
    ContentDelta,
    Event,
    Problem,
    ReasoningDelta,
    new_call_id,
    to_message,
)
from .chat.tokenizer import Tokenizer
from .converse import ChatRequest, ChatUsage, Finish, RequestError, converse
from .engine import Engine, EngineError, Prefill

log = logging.getLogger(__name__)

KEEP_ALIVE = 15.0  # seconds without an event before a comment is sent
MAX_BODY = 64 * 2**20  # bytes; a million tokens of text are a tenth of it


class _Thinking(BaseModel):
    """Kimi's own way to say it; only what K3 can do is accepted."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["enabled", "disabled"] = "enabled"
    keep: Literal["all"] = "all"
    effort: str | None = None


class _TemplateSettings(BaseModel):
    """The way of other self-hosted servers."""

    model_config = ConfigDict(extra="forbid")

    thinking: bool = True
    preserve_thinking: Literal[True] = True
    thinking_effort: str | None = None


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """The body of a request. A field that is not here is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking: _Thinking = _Thinking()
    chat_template_kwargs: _TemplateSettings = _TemplateSettings()
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None

    # Accepted with the one meaning that this server has.
    n: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logprobs: Literal[False] | None = None
    parallel_tool_calls: Literal[True] | None = None

    # Accepted without effect.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None

    def chat_request(self, effort: str | None) -> ChatRequest:
        """`effort` is the model's default. Raises `RequestError` for what K3's format has no words for."""
        if isinstance(self.tool_choice, dict):
            raise RequestError(
                "K3 cannot be told to call a certain tool; use auto, none or required",
                param="tool_choice",
            )
        for number, tool in enumerate(self.tools):
            function = tool.get("function")
            named = isinstance(function, dict) and isinstance(function.get("name"), str)
            if tool.get("type") != "function" or not named:
                raise RequestError(
                    "a tool needs the type `function` and a name", param=f"tools.{number}"
                )
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        template = self.chat_template_kwargs
        return ChatRequest(
            messages=self.messages,
            tools=self.tools,
            tool_choice=self.tool_choice,
            response_format=self.response_format,
            effort=self.reasoning_effort
            or self.thinking.effort
            or template.thinking_effort
            or effort,
            thinking=self.thinking.type == "enabled" and template.thinking,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stop=tuple(stop),
        )


def application(
    engine: Engine, tokenizer: Tokenizer, model: str, *, api_key: str | None = None
) -> Starlette:
    """The ASGI application. `model` is the name it serves under; `api_key` is asked for if set."""
    started = int(time.time())

    def authorise(request: Request) -> None:
        if api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), api_key.encode()):
            raise HTTPException(401, "the API key is missing or wrong")

    async def models(request: Request) -> Response:
        authorise(request)
        card = {
            "id": model,
            "object": "model",
            "created": started,
            "owned_by": "unabridged",
            "context_length": engine.window,
            "max_model_len": engine.window,
            "unabridged": {"state_store": engine.stores_states},
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def health(request: Request) -> Response:
        running, waiting = engine.load
        return JSONResponse({"status": "ok", "running": running, "waiting": waiting})

    async def completions(request: Request) -> Response:
        authorise(request)
        body = await _read_body(request)
        if body.model != model:
            message = f"the model {body.model!r} is not served here; {model!r} is"
            return _error(404, message, param="model", code="model_not_found")
        return _Completion(
            converse(engine, tokenizer, body.chat_request(engine.defaults.effort)), body
        )

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/health", health),
            Route("/v1/chat/completions", completions, methods=["POST"]),
        ],
        exception_handlers={
            HTTPException: _on_http_error,
            RequestError: _on_request_error,
            Exception: _on_failure,
        },
    )


def serve(
    engine: Engine,
    tokenizer: Tokenizer,
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
) -> None:
    """Serve until interrupted. Raises `ValueError` as `check_address` does."""
    import uvicorn

    check_address(host, api_key)
    app = application(engine, tokenizer, model, api_key=api_key)
    uvicorn.run(app, host=host, port=port, log_level="warning", lifespan="off")


def check_address(host: str, api_key: str | None) -> None:
    """Raises `ValueError` for an address that others can reach without an API key."""
    if api_key is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError(f"others can reach {host}: ask for an API key, or serve on 127.0.0.1")


async def _read_body(request: Request) -> CompletionRequest:
    # A browser can post other types to a local server without asking it first.
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPException(415, "send the request as application/json")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY:
            raise HTTPException(413, f"the request is larger than {MAX_BODY:,} bytes")
    try:
        return CompletionRequest.model_validate_json(bytes(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise RequestError(message, param=where or None) from None


class _Completion(Response):
    """Sends the reply, and stops the engine's work on it when the client goes away."""

    def __init__(
        self, items: AsyncGenerator[Prefill | Event | Finish], body: CompletionRequest
    ) -> None:
        super().__init__()
        self._items = items
        self._body = body
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": body.model,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send_reply = self._send_events if self._body.stream else self._send_whole
        work = asyncio.ensure_future(send_reply(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            await self._items.aclose()
        if not work.cancelled():
            work.result()

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        finish = None
        async for item in self._items:
            if isinstance(item, Finish):
                finish = item
        assert finish is not None
        message = to_message(finish.reply, [new_call_id() for _ in finish.reply.calls])
        document = {
            **self._head,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, **_ending(finish)}],
            "usage": _usage(finish.usage),
        }
        await JSONResponse(document)(scope, receive, send)

    async def _send_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        async for item in _with_pauses(self._items, KEEP_ALIVE):
            if not started:  # only now is it certain that the request can be answered
                headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await _send_part(send, self._chunk({"role": "assistant", "content": ""}))
                started = True
            if item is None:
                await _send_part(send, b": working\n\n")
            elif isinstance(item, Prefill):
                await _send_part(send, b": read %d of %d tokens\n\n" % (item.read, item.total))
            elif isinstance(item, EngineError):
                await _send_part(send, _event({"error": _error_body(str(item), "server_error")}))
            elif isinstance(item, Finish):
                await _send_part(send, self._chunk({}, **_ending(item)))
                options = self._body.stream_options
                if options is not None and options.include_usage:
                    await _send_part(send, self._chunk(None, usage=_usage(item.usage)))
                await _send_part(send, b"data: [DONE]\n\n")
            elif (delta := _delta(item)) is not None:
                await _send_part(send, self._chunk(delta))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _chunk(self, delta: dict[str, Any] | None, **more: Any) -> bytes:
        usage = {"usage": more.pop("usage")} if "usage" in more else {}
        choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
        choices = [] if delta is None else [choice]
        return _event(
            {**self._head, "object": "chat.completion.chunk", "choices": choices, **usage}
        )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _with_pauses(
    items: AsyncGenerator[Prefill | Event | Finish], seconds: float
) -> AsyncGenerator[Prefill | Event | Finish | EngineError | None]:
    """The items, None whenever none came for so long, and a failure after the first as an item."""
    started = False
    while True:
        upcoming = asyncio.ensure_future(anext(items))
        try:
            while not (await asyncio.wait({upcoming}, timeout=seconds))[0]:
                if started:
                    yield None
            item = upcoming.result()
        except StopAsyncIteration:
            return
        except EngineError as error:
            if not started:
                raise
            yield error
            return
        finally:
            upcoming.cancel()
        started = True
        yield item


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def _delta(event: Event) -> dict[str, Any] | None:
    """The event in OpenAI's form; None for a problem, which is told at the end."""
    match event:
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ContentDelta(text):
            return {"content": text}
        case CallStarted(index, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": new_call_id(), "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case Problem():
            return None


def _ending(finish: Finish) -> dict[str, Any]:
    problems = [{"message": p.message, "call": p.call} for p in finish.reply.problems]
    return {"finish_reason": finish.reason} | ({"problems": problems} if problems else {})


def _usage(usage: ChatUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "cached_tokens": usage.cached,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def _error(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> Response:
    kind = {401: "authentication_error", 500: "server_error"}.get(status, "invalid_request_error")
    return JSONResponse({"error": _error_body(message, kind, param, code)}, status_code=status)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail)


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error(400, str(error), param=error.param, code=error.code)


async def _on_failure(request: Request, error: Exception) -> Response:
    message = str(error) if isinstance(error, EngineError) else "the server failed; see its log"
    return _error(500, message)
