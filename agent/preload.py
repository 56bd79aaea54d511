"""The repository sent ahead: a request of its own, to an endpoint that keeps states on disk.

Such an endpoint saves the model's state at the end of a prompt. One that ends with the repository is
the beginning of every session in it, so the next one resumes there, in another process too.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from .core import Core
from .events import Interruption, Preload, Usage
from .providers.base import KeepsStates, Notice, Provider, ProviderError, Reply, Request, Waiting

MIN_TOKENS = 1024
"""Of a repository that is worth a request."""


async def preload(core: Core, provider: Provider) -> bool:
    """Send it, once in a session and before all else; whether it was sent and answered.

    A failure is told in one line, logged, and stops nothing.
    """
    state, run = core.state, core.state.run
    if not core.preload or state.opened or state.loaded < MIN_TOKENS or run is None:
        return False
    if not isinstance(provider, KeepsStates) or not await provider.keeps_states(run.model):
        return False
    core.announce()
    core.emit(Notice(f"the repository goes ahead, about {state.loaded:,} tokens"))
    view = core.view
    messages = [message.data for message in view.messages[: view.pack_end]]
    usage, problem, began = None, "", time.monotonic()
    try:
        # K3 refuses a request for no token; the one that comes is not looked at.
        usage = await _answered(provider, Request(run.model, messages, view.tools, run.effort, 1))
    except ProviderError as error:
        problem = error.message
        core.emit(Notice(f"the repository could not be sent ahead, the run goes on: {problem}"))
    except asyncio.CancelledError:
        core.append(Interruption(during="request"), sync=True)
        raise
    core.append(
        Preload(
            messages=len(messages),
            prefix_hash=view.pack_hash,
            estimated_tokens=state.loaded,
            usage=usage,
            problem=problem,
            seconds=round(time.monotonic() - began, 3),
        )
    )
    return not problem


async def _answered(provider: Provider, request: Request) -> Usage | None:
    """Tokens of a request whose reply is not wanted. Raises ProviderError at its first failure."""
    async with aclosing(provider.stream(request)) as stream:
        async for item in stream:
            if isinstance(item, Reply):
                return item.usage
            if isinstance(item, Waiting):
                raise ProviderError("server", item.reason)
    raise ProviderError("protocol", "the provider ended without a reply")
