from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from unabridged.agent.providers.base import (
    CallDelta,
    ContentDelta,
    Notice,
    Provider,
    ReasoningDelta,
    Reply,
    Request,
    Waiting,
)
from unabridged.agent.providers.kimi import KimiProvider, Patience
from unabridged.agent.providers.scripted import Policy, Script, Turn
from unabridged.agent.providers.scripted_server import ScriptedServer, serving

USER = b'{"role":"user","content":"hi"}'


@dataclass
class Heard:
    """All that a stream gave."""

    items: list[Any] = field(default_factory=list)

    @property
    def reply(self) -> Reply:
        assert isinstance(self.items[-1], Reply)
        return self.items[-1]

    def of(self, kind: type) -> list[Any]:
        return [item for item in self.items if isinstance(item, kind)]

    @property
    def waits(self) -> list[Waiting]:
        return self.of(Waiting)

    @property
    def notices(self) -> list[str]:
        return [notice.text for notice in self.of(Notice)]

    @property
    def shown(self) -> tuple[str, str, str]:
        """Reasoning, content and arguments shown since the last `Waiting`."""
        last = max((i for i, x in enumerate(self.items) if isinstance(x, Waiting)), default=-1)
        since = self.items[last + 1 :]
        return (
            "".join(x.text for x in since if isinstance(x, ReasoningDelta)),
            "".join(x.text for x in since if isinstance(x, ContentDelta)),
            "".join(x.arguments for x in since if isinstance(x, CallDelta)),
        )


def request(
    *messages: bytes, tools: bytes = b"[]", effort: str = "max", most: int = 1000, model: str = "k"
) -> Request:
    return Request(model, list(messages or (USER,)), tools, effort, most)


class Bench:
    """Servers and providers of one test."""

    request = staticmethod(request)

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def serve(
        self, script: Script | Policy | Sequence[Any], **options: Any
    ) -> ScriptedServer:
        """Serve a script, or turns given as models or dicts."""
        if not isinstance(script, Script) and not callable(script):
            script = Script(turns=tuple(Turn.model_validate(turn) for turn in script))
        return await self._stack.enter_async_context(serving(script, **options))

    def connect(
        self, server: ScriptedServer | str, key: str | None = None, **more: Any
    ) -> KimiProvider:
        """A provider that waits milliseconds where others wait seconds."""
        url = server if isinstance(server, str) else server.url
        times = {"first_wait": 0.004, "longest_wait": 0.02, "idle": 5.0, "tail": 0.2}
        patience = Patience(**{**times, **more.pop("patience", {})})
        provider = KimiProvider(url, "k", key, patience=patience, **more)
        self._stack.push_async_callback(provider.close)
        return provider

    async def ask(
        self, provider: Provider, *messages: bytes, into: Heard | None = None, **more: Any
    ) -> Heard:
        """Send a request; all that comes back, kept in `into` also when it ends in an error."""
        heard = into if into is not None else Heard()
        async for item in provider.stream(request(*messages, **more)):
            heard.items.append(item)
        return heard

    heard = Heard


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack)
