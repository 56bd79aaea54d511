"""Where a session stands, as the footer says it."""

from __future__ import annotations

from urllib.parse import urlsplit

from ..agent.config import LOCAL
from ..agent.events import AssistantMessage, Usage
from .desk import Desk
from .widgets.status import Standing


def standing(desk: Desk) -> Standing:
    """What the footer says."""
    session = desk.session
    if session is None:
        loaded = desk.loaded
        used = loaded.tokens if loaded is not None else 0
        return Standing(
            model=desk.model,
            endpoint=_host(desk.endpoint),
            effort=desk.config.effort if desk.config is not None else "",
            window=desk.window,
            used=used,
            next=desk.price_of(used) if used else None,
            mode=desk.start.mode,
            sandbox=desk.start.sandbox,
        )
    core, state = session.core, session.core.state
    replies = (e for e in reversed(session.events) if isinstance(e, AssistantMessage) and e.usage)
    last = next(replies, None)
    usage = last.usage if last is not None else None
    used = core.estimate
    warm = min(usage.prompt + usage.completion, used) if usage is not None else 0
    following = session.settings.price(Usage(prompt=used, cached=warm, completion=0))
    scope = state.scope
    return Standing(
        model=session.settings.model,
        endpoint=_host(desk.endpoint),
        effort=session.settings.effort,
        window=session.provider.window,
        used=used,
        cached=usage.cached / usage.prompt if usage is not None and usage.prompt else None,
        spent=state.spent.cost,
        next=following,
        steps=state.spent.steps,
        scope=", ".join(scope.paths) if scope is not None else "",
        mode=core.mode,
        sandbox="on" if session.processes.sandbox.active else "off",
        jobs=len(session.processes.live_jobs()),
    )


def _host(endpoint: str) -> str:
    """An endpoint in few characters."""
    if endpoint == LOCAL:
        return "in this process"
    return urlsplit(endpoint).netloc or endpoint
