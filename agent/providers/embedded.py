"""The engine in this process as a provider: no wire, the same request, the same reply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
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


MISSING = "running a model in this program needs torch: pip install 'unabridged[model]'"
_NEEDED = ("torch", "safetensors", "tiktoken", "numpy")
SUMS = "SHA256SUMS"
"""In a checkpoint's folder, as `sha256sum` writes it: what the files must be."""


class CheckpointProblem(Exception):  # noqa: N818 - one line for a person
    """The checkpoint cannot be opened; the text names the file."""


def missing() -> bool:
    """Whether something is not installed that a model in this process needs."""
    return any(find_spec(name) is None for name in _NEEDED)


def open_checkpoint(folder: Path, name: str, *, endpoint: str) -> EmbeddedProvider:
    """Load a checkpoint, with its states kept on disk. Raises CheckpointProblem."""
    if not folder.is_dir():
        raise CheckpointProblem(f"{folder}: no such folder: give one that holds a checkpoint.")
    _check_sums(folder)
    import torch

    from ...model.checkpoint import CheckpointError
    from ...model.engine import open_engine
    from ...model.state_store import default_root

    try:
        # The arithmetic of a CPU in bfloat16 is a hundred times slower on many machines.
        engine, tokenizer = open_engine(folder, dtype=torch.float32, states=default_root())
    except (CheckpointError, ValueError, OSError) as error:
        raise CheckpointProblem(str(error)) from error
    return EmbeddedProvider(engine, tokenizer, name, endpoint=endpoint)


def _check_sums(folder: Path) -> None:
    """Raises CheckpointProblem for a file that is not what SHA256SUMS says."""
    try:
        lines = (folder / SUMS).read_bytes().decode().splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointProblem(f"{folder / SUMS} cannot be read: {error}") from error
    for line in lines:
        wanted, _, file = line.partition(" ")
        path = folder / file.lstrip(" *")
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointProblem(f"{path}: {error.strerror}: install it again.") from error
        if found != wanted:
            raise CheckpointProblem(
                f"{path} was altered: its SHA-256 is {found}, and {SUMS} says {wanted}. Install it "
                "again."
            )


class EmbeddedProvider:
    """Answers from an engine that somebody loaded. `close` closes it.

    Args:
        engine: where the model runs.
        tokenizer: of the same model.
        name: what the model is called, such as `K3-nano`.
        endpoint: how the settings name it.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, name: str, *, endpoint: str = ""
    ) -> None:
        self.endpoint = endpoint or f"embedded {name}"
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
