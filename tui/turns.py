"""The turns of the model, and what the user says while one runs."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from ..agent.events import (
    Answer,
    AnyEvent,
    Approval,
    Decision,
    Effects,
    Interruption,
    Part,
    Plan,
    Question,
    RequestSent,
    RunEnded,
    RunStarted,
    ScopeGranted,
    TextPart,
    ToolResult,
)
from ..agent.providers.base import Delta
from .blocks import words_of
from .desk import TROUBLES
from .text import one_line

if TYPE_CHECKING:
    from .app import UnabridgedApp

_WAITING = (Decision, Effects, Approval, Question, Answer, Plan, ScopeGranted, ToolResult,
            Interruption, RunStarted, RunEnded)  # fmt: skip
"""Events after which something else may wait for the user."""


class Turns:
    """Lets the model work, and keeps the words that it is still to be told."""

    def __init__(self, app: UnabridgedApp) -> None:
        self._app = app
        self.at_work = False
        self.began = 0.0
        """Monotonic seconds."""
        self.queued: list[str] = []
        self._early: list[tuple[Part, ...]] = []
        """Said before there was a session."""

    def run(self, parts: tuple[Part, ...] | None) -> None:
        """Let the model work."""
        self.at_work, self.began = True, time.monotonic()
        self._app.run_worker(partial(self._run, parts), group="run", exclusive=True)

    def stop(self) -> None:
        """Stop the model, whatever it does."""
        if self._app.session is not None:
            self._app.session.cancel()
        else:
            self._app.workers.cancel_group(self._app, "run")

    async def _run(self, parts: tuple[Part, ...] | None) -> None:
        app = self._app
        notes, app.notes = app.notes, []
        try:
            fresh = app.session is None
            app.transcript.status = "loading the repository" if fresh else ""
            session = await app.desk.open()
            if fresh:
                for event in session.events:
                    self._take(event)
            for words in self._early:
                session.say(words)
            self._early.clear()
            if parts is not None and notes:
                parts = (*(TextPart(text=note) for note in notes), *parts)
            async for item in session.start(parts):
                self._take(item)
        except TROUBLES as error:
            app.transcript.note(str(error), "bad")
            if parts is not None and (app.session is None or not app.session.events):
                app.prompt.put(words_of(parts[len(notes) :]))
        finally:
            self.at_work = False
            app.transcript.status = ""
            if app.shown:
                app.show_standing()
                app.asking.show()
        if app.shown and not app.leaving:
            self._after()

    def _after(self) -> None:
        """What was queued and not told is the next turn."""
        session = self._app.session
        waiting = session.unsaid() if session is not None else None
        self._forget_queue()
        if waiting:
            self.run(waiting)
        elif not self._app.app_focus:
            self._app.bell()

    def _take(self, item: AnyEvent | Delta) -> None:
        app = self._app
        app.transcript.add(item)
        if isinstance(item, RequestSent):
            self._forget_queue()
            app.transcript.status = "waiting for the model"
            app.show_standing()
        elif isinstance(item, _WAITING):
            app.call_next(app.asking.show)
            app.show_standing()

    # --- said meanwhile --------------------------------------------------------------------------

    def queue(self, text: str, parts: tuple[Part, ...]) -> None:
        """Tell the model before its next step."""
        if self._app.session is None:
            self._early.append(parts)
        else:
            self._app.session.say(parts)
        self.queued.append(text)
        self._show_queue()

    def take_back(self) -> None:
        """Put what is queued into the prompt again."""
        if self._app.session is not None and self.queued:
            parts = self._app.session.unsaid()
            self._forget_queue()
            if parts:
                self._app.prompt.put(words_of(parts))

    def _forget_queue(self) -> None:
        self.queued.clear()
        self._show_queue()

    def _show_queue(self) -> None:
        line = self._app.queue_line
        line.display = bool(self.queued)
        lines = [f"⧗ {one_line(text, 70)}" for text in self.queued[-3:]]
        lines.append("  told before the next step · ↑ takes it back · Esc stops and sends it now")
        line.update(Text("\n".join(lines)))
