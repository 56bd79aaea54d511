"""The open log with its two folds, and the settings of the current run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from ..tools.base import Facts
from .budget import Limits
from .calls import AnyTool
from .events import AnyEvent, RunEnded
from .exits import Exit
from .policy import Mode, Rule
from .providers.base import Delta
from .state import State
from .store import Store
from .undo import Undo
from .view import View

OnAsk = Literal["wait", "stop", "deny"]
"""What happens when a call would ask: a person is there (wait), or nobody is (stop, deny)."""

E = TypeVar("E", bound=AnyEvent)


@dataclass
class Core:
    """What the loop works on. Every event goes through `append`, so log, view and state agree."""

    root: Path
    store: Store
    view: View
    state: State
    undo: Undo
    tools: Mapping[str, AnyTool]
    emit: Callable[[AnyEvent | Delta], None]
    rules: Sequence[Rule] = ()
    mode: Mode = "ask"
    on_ask: OnAsk = "wait"
    limits: Limits = field(default_factory=Limits)
    load_limit: float | None = None
    """US dollars that the first request of a session may cost, nothing of it cached."""
    confined: bool = False
    """Whether commands run in a sandbox, which holds them to what was granted."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a person decided or answered something."""

    def append(self, event: E, *, sync: bool = False) -> E:
        """Write an event and let everything that follows the log know it."""
        written = self.store.append(event, sync=sync)
        self.view.add(written)
        self.state.add(written)
        self.emit(written)
        return written

    @property
    def facts(self) -> Facts:
        """What tools may know."""
        return Facts(self.root, self.state.seen)


def ended(code: Exit, reason: str) -> RunEnded:
    """The last event of a run."""
    return RunEnded(exit_code=int(code), name=code.label, reason=reason)
