"""The open log with its two folds, and the settings of the current run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from ..tools.base import Facts
from ..tools.files import in_thread
from .budget import Limits, Spent
from .calls import AnyTool
from .events import AnyEvent, Part, RunEnded, ScopeGranted, UserMessage
from .exits import Exit
from .policy import Mode, Rule
from .prefix import Meter, write_prefix
from .providers.base import Delta
from .state import State
from .store import Store
from .undo import Undo
from .view import View
from .watch import Watch

OnAsk = Literal["wait", "stop", "deny"]
"""What happens when a call would ask: a person is there (wait), or nobody is (stop, deny)."""

NOTE_SHARE = 0.1
"""Part of the window that one note on changed files may fill."""

E = TypeVar("E", bound=AnyEvent)


@dataclass
class Core:
    """What the loop works on. Every event goes through `append`, so log, view and state agree."""

    root: Path
    store: Store
    view: View
    state: State
    undo: Undo
    watch: Watch
    meter: Meter
    tools: Mapping[str, AnyTool]
    emit: Callable[[AnyEvent | Delta], None]
    rules: Sequence[Rule] = ()
    mode: Mode = "ask"
    on_ask: OnAsk = "wait"
    limits: Limits = field(default_factory=Limits)
    load_limit: float | None = None
    """US dollars that the first request of a session may cost, nothing of it cached."""
    longest_reply: int | None = None
    """Tokens that a reply may have; None for what the window leaves."""
    children: Spent = field(default_factory=Spent)
    """What subagents used of the budget."""
    began: float = 0.0
    """When the run began, on the monotonic clock."""
    confined: bool = False
    """Whether commands run in a sandbox, which holds them to what was granted."""
    preload: bool = True
    """Whether an endpoint that keeps states is sent the repository ahead."""
    cache: Path | None = None
    """Where the next session in this repository finds what this one sent first."""
    said: deque[tuple[Part, ...]] = field(default_factory=deque[tuple[Part, ...]])
    """What the user said while the model worked; it is told before the next request."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a person decided or answered something."""

    def append(self, event: E, *, sync: bool = False) -> E:
        """Write an event and let everything that follows the log know it."""
        written = self.store.append(event, sync=sync)
        self.view.add(written)
        self.state.add(written)
        self.watch.add(written)
        self.meter.add(written)
        self.emit(written)
        return written

    @property
    def spent(self) -> Spent:
        """What the session used, subagents included."""
        spent = replace(self.state.spent)
        spent.merge(self.children)
        return spent

    @property
    def estimate(self) -> int:
        """Tokens of the next request, about."""
        view = self.view
        return self.state.prompt_tokens(view.size, len(view.tools), view.packed)

    async def notice(self, window: int) -> None:
        """Tell the model what others changed since it was last told."""
        if self.watch.still:
            return
        room = max(min(int(window * NOTE_SHARE), (window - self.estimate) // 2), 0)
        note = await in_thread(lambda stop: self.watch.look(room, stop.is_set))
        if note is not None:
            self.append(note)

    def hear(self) -> None:
        """Tell the model what the user said meanwhile. It is the same task: its scope stays."""
        while self.said:
            scope = self.state.scope
            self.append(UserMessage(parts=self.said.popleft()), sync=True)
            if scope is not None:
                self.append(ScopeGranted(scope=scope))

    def announce(self) -> None:
        """Log what the next request breaks of the prefix; remember how the first one begins."""
        change = self.meter.change(message.seq for message in self.view.messages)
        if change is not None:
            self.append(change)
        if self.state.spent.steps == 0:
            write_prefix(self.cache, self.root, self.meter.prefix)

    @property
    def facts(self) -> Facts:
        """What tools may know."""
        return Facts(self.root, self.state.seen)


def ended(code: Exit, reason: str) -> RunEnded:
    """The last event of a run."""
    return RunEnded(exit_code=int(code), name=code.label, reason=reason)
