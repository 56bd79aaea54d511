"""The engine in this process as a provider: no wire, the same request, the same reply."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, assert_never

from ..events import Call, Usage
from .base import (
    CallDelta,
    ContentDelta,
    Delta,
    Notice,
    ProviderError,
    ReasoningDelta,
    Reply,
    Request,
)

if TYPE_CHECKING:
    from ...model.chat.tokenizer import Tokenizer
    from ...model.converse import ChatRequest, Finish
    from ...model.engine import Engine


class EmbeddedProvider:
    """Answers from an engine that somebody loaded. `close` closes it.

    Args:
        engine: where the model runs.
        tokenizer: of the same model.
        name: what the model is called, such as `K3-nano`.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, name: str) -> None:
        self.endpoint = f"embedded {name}"
        self.window = engine.window
        self._engine = engine
        self._tokenizer = tokenizer
        self._name = name

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        """Run the request. Closing the iterator stops the engine's work on it."""
        from ...model.chat import parse
        from ...model.converse import Finish, RequestError, converse
        from ...model.engine import EngineError, Prefill

        ids: list[str] = []
        try:
            items = converse(self._engine, self._tokenizer, _chat_request(request))
            async with aclosing(items):
                async for item in items:
                    match item:
                        case parse.ReasoningDelta(text):
                            yield ReasoningDelta(text)
                        case parse.ContentDelta(text):
                            yield ContentDelta(text)
                        case parse.CallStarted(index, name):
                            ids.append(parse.new_call_id())
                            yield CallDelta(index, id=ids[index], name=name)
                        case parse.ArgumentsDelta(index, text):
                            yield CallDelta(index, arguments=text)
                        case parse.Problem(message):
                            yield Notice(f"the model's output left its format: {message}")
                        case Finish():
                            yield self._reply(item, ids)
                        case Prefill():
                            pass
                        case _:
                            assert_never(item)
        except RequestError as error:
            overflow = error.code == "context_length_exceeded"
            raise ProviderError("context_overflow" if overflow else "bad_request", str(error)) from error  # fmt: skip
        except EngineError as error:
            raise ProviderError("server", str(error)) from error

    async def close(self) -> None:
        """Stop the engine."""
        import asyncio

        await asyncio.to_thread(self._engine.close)

    def _reply(self, finish: Finish, ids: list[str]) -> Reply:
        calls = zip(ids, finish.reply.calls, strict=True)
        usage = finish.usage
        return Reply(
            reasoning=finish.reply.reasoning,
            content=finish.reply.content,
            calls=tuple(Call(id=i, name=c.name, arguments=c.arguments) for i, c in calls),
            finish_reason=finish.reason,
            usage=Usage(
                prompt=usage.prompt,
                cached=usage.cached,
                completion=usage.completion,
                reasoning=usage.reasoning,
            ),
            model=self._name,
        )


def _chat_request(request: Request) -> ChatRequest:
    from ...model.converse import ChatRequest

    return ChatRequest(
        messages=[json.loads(message) for message in request.messages],
        tools=json.loads(request.tools),
        effort=request.effort or None,
        max_tokens=request.max_completion_tokens,
    )
