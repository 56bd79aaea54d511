"""Subagents: a session within a session, which can only do less and spends of the same budget.

A subagent has a log of its own, below its parent's files, so that the two never mix. It works in mode
`read-only`, under those of its parent's rules that deny, ask, or allow a read: whatever else would ask
is denied. It is declared the same tools, so that its requests begin with the same bytes and find the
repository cached. What it spends counts for its parent at once, also when it is cancelled or the
harness dies, because its log says so.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..tools.base import ToolError
from ..tools.files import in_thread
from ..tools.task import Report
from .budget import Limits, Price, Spent, total
from .context.errors import ContextError
from .effects import EffectKind
from .events import AnyEvent, AssistantMessage, RequestSent, ToolCall
from .exits import Exit
from .policy import Rule
from .providers.base import Delta, Provider, Reply, Request
from .store import SUFFIX, StoreError, read

if TYPE_CHECKING:
    from .session import Session

FOLDER = "tasks"
"""Of a session's files: the logs of its subagents."""


class SessionSubagents:
    """The subagents of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def price(self) -> str:
        """What the repository costs it, in words. Raises ToolError in a subagent."""
        core = self._session.core
        if self._session.settings.is_subagent:
            raise ToolError("You are a subagent, and subagents start no others: do it yourself.")
        tokens = core.state.loaded
        cold = core.state.cold_price(tokens)
        if cold is None:
            return f"a subagent, {tokens:,} tokens of repository in each of its requests"
        return f"a subagent, {tokens:,} tokens of repository, up to {cold:.2f} USD to begin with"

    async def run(self, task: str, progress: Callable[[str], None]) -> Report:
        """One subagent, from its start to its end."""
        from .session import Session, load_repository

        parent, core = self._session, self._session.core
        settings = replace(
            parent.settings,
            mode="read-only",
            on_ask="deny",
            rules=narrowed(core.rules),
            session_rules=(),
            limits=left(core.limits, core.spent, (time.monotonic() - core.began) / 60),
            load_limit=None,
            is_subagent=True,
        )
        shared = Shared(parent.provider)
        folder = core.store.files / FOLDER
        try:
            loaded = await in_thread(
                lambda stop: load_repository(core.root, shared.window, settings, stop.is_set)
            )
            child = Session.create(core.root, shared, settings, folder, loaded=loaded)
        except (ContextError, StoreError) as error:
            raise ToolError(f"No subagent could be started: {error}") from error
        async with child:
            try:
                async for item in child.start(task):
                    if isinstance(item, AssistantMessage):
                        core.children.add(item, settings.price)
                    if (line := _line(item)) is not None:
                        progress(line)
            except StoreError as error:
                raise ToolError(f"The subagent's log: {error}") from error
            return _report(child)


def _report(child: Session) -> Report:
    result, spent = child.result(), child.core.state.spent
    replies = [e for e in child.events if isinstance(e, AssistantMessage)]
    said = result.summary or (replies[-1].content.strip() if replies else "")
    asked = "".join(f"\nIt asks: {question.text}" for question in result.questions)
    ended = result.exit_code in (Exit.DONE, Exit.UNFINISHED) and bool(said)
    head = said if ended else f"The subagent did not finish: {result.reason}. {said}".strip()
    cost = "" if spent.cost is None else f", {spent.cost:.4f} USD"
    tokens = spent.prompt + spent.completion
    foot = f"[subagent {child.id}: {spent.steps} steps, {tokens:,} tokens{cost}]"
    return Report(f"{head}{asked}\n{foot}", not ended, child.id, str(child.core.store.path))


def narrowed(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """All that deny and ask; of those that allow, those for reading only."""
    return tuple(
        rule for rule in rules if rule.decision != "allow" or rule.effect is EffectKind.READ
    )


def left(limits: Limits, spent: Spent, minutes: float) -> Limits:
    """What is left of a budget. Nothing left of a limit is a limit that is reached at once."""
    return Limits(
        steps=None if limits.steps is None else max(limits.steps - spent.steps, 0),
        tokens=None
        if limits.tokens is None
        else max(limits.tokens - spent.prompt - spent.completion, 0),
        cost=None if limits.cost is None else max(limits.cost - (spent.cost or 0.0), 0.0),
        minutes=None if limits.minutes is None else max(limits.minutes - minutes, 0.0),
    )


def spent_before(folder: Path, price: Price) -> Spent:
    """What the subagents of a session used, by their logs."""
    spent = Spent()
    for events in logs(folder):
        spent.merge(total(events, price))
    return spent


def logs(folder: Path) -> list[list[AnyEvent]]:
    """The logs of the subagents in a folder, those that can be read."""
    found: list[list[AnyEvent]] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
        try:
            found.append(read(path))
        except StoreError:
            continue
    return found


class Shared:
    """A provider that a subagent uses and does not close."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.endpoint = provider.endpoint
        self.window = provider.window

    def stream(self, request: Request) -> AsyncGenerator[Delta | Reply]:
        """As the provider does."""
        return self._provider.stream(request)

    async def close(self) -> None:
        """Its parent does."""


def _line(item: AnyEvent | Delta) -> str | None:
    match item:
        case RequestSent():
            return f"step {item.step}\n"
        case ToolCall():
            about = next(iter(item.arguments.values()), "")
            return f"  {item.name} {about}\n"
        case _:
            return None
