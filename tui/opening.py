"""How the work begins: a model is found, a load plan is shown and agreed to, a session entered."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..agent.config import ConfigError
from ..agent.connect import NANO
from ..agent.context.errors import Cancelled, ContextError
from ..agent.context.load import Load
from ..agent.session import Session
from .blocks import Transcript
from .desk import TROUBLES
from .widgets.load_card import LoadCard, plan_words

if TYPE_CHECKING:
    from .app import UnabridgedApp

T = TypeVar("T")
READY = "Enter starts · Tab changes · nothing was sent yet"


class Opening:
    """From an empty screen to a session."""

    def __init__(self, app: UnabridgedApp) -> None:
        self._app = app
        self._connecting = asyncio.Lock()
        self._stop = threading.Event()
        self.planned = asyncio.Event()
        """Whether the load plan is there."""

    async def begin(self) -> None:
        """Say where we are at once; all that takes time happens off the screen's way."""
        app = self._app
        await asyncio.to_thread(app.desk.configure)
        self.greet()
        app.show_standing()
        app.files.refresh()
        if (name := app.desk.start.resume) is not None:
            await self.enter(lambda: app.desk.resume(name))
        elif not app.busy and app.session is None:  # somebody may have been faster
            self.plan()

    def greet(self) -> None:
        """Where we are, and with which model."""
        app, desk = self._app, self._app.desk
        model = desk.model or "no model"
        app.transcript.note(
            f"Unabridged in {_short(desk.root)} with {model}. /help shows commands and keys."
        )
        if desk.stands_in:
            app.transcript.note(f"{NANO[0].upper()}{NANO[1:]}")

    async def connect(self) -> None:
        """Find the model, if that was not done: one in this process takes seconds."""
        async with self._connecting:
            if self._app.desk.provider is None:
                await asyncio.to_thread(self._app.desk.connect)

    # --- the load plan ---------------------------------------------------------------------------

    def plan(self) -> None:
        """Show what would be loaded."""
        app = self._app
        self.planned.clear()
        app.prompt.placeholder = (
            "Try: Rename old_name to new_name." if app.desk.stands_in else "What is to be done?"
        )
        patterns = {name: list(getattr(app.desk.options, name))
                    for name in ("include", "exclude", "outline")}  # fmt: skip
        card = LoadCard(app.desk.root.name, patterns)
        app.put_card(card)
        self.stop()
        self._stop = threading.Event()
        app.run_worker(partial(self._plan, card, self._stop), group="plan", exclusive=True)

    def plan_other(self, patterns: Mapping[str, tuple[str, ...]]) -> None:
        """Something else is to be loaded."""
        self._app.desk.options = replace(self._app.desk.options, **patterns)
        self.plan()

    def stop(self) -> None:
        """Stop reading the repository."""
        self._stop.set()

    async def _plan(self, card: LoadCard, stop: threading.Event) -> None:
        desk = self._app.desk
        try:
            if desk.provider is None:
                await _while_ticking(self.connect(), card, f"Opening {desk.model or 'the model'}")
                self._say_problem()
            reading = asyncio.to_thread(desk.plan, stop.is_set)
            loaded = await _while_ticking(reading, card, "Reading the repository")
        except Cancelled:
            card.say([("Reading was stopped.", "warn")], "Tab changes what is loaded")
        except (ContextError, ConfigError, OSError) as error:
            card.say([(str(error), "bad")], "Tab changes what is loaded")
        else:
            desk.loaded = loaded
            card.say(self._words(loaded), READY)
            self.planned.set()
            self._app.show_standing()

    def _say_problem(self) -> None:
        desk, transcript = self._app.desk, self._app.transcript
        if desk.problem:
            transcript.note(desk.problem, "bad")
            transcript.note(
                "You can look around; /model NAME URL points to an endpoint, for example "
                "/model k3-nano http://127.0.0.1:8000/v1", "warn",
            )  # fmt: skip

    def _words(self, loaded: Load) -> list[tuple[str, str]]:
        desk = self._app.desk
        stored = sum(segment.tokens for segment in loaded.segments[: loaded.stored])
        cold = desk.price_of(loaded.tokens)
        warm = desk.price_of(loaded.tokens, stored or loaded.tokens)
        words = plan_words(loaded, desk.window, cold, warm)
        if desk.trusted.untrusted or desk.trusted.changed:
            names = ", ".join((*desk.trusted.untrusted, *desk.trusted.changed))
            changed = " (it changed)" if desk.trusted.changed else ""
            words.append(
                (f"{names} is not followed{changed}: Ctrl+T trusts it as it is now", "warn")
            )
        return words

    def accept(self) -> None:
        """The load plan is agreed to."""
        self._app.prompt.placeholder = ""
        if isinstance(self._app.card, LoadCard):
            self._app.put_card(None)

    # --- sessions --------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """A fresh start in the same repository."""
        app = self._app
        self._show(Transcript())
        self.greet()
        self.plan()
        app.show_standing()

    async def enter(self, opening: Callable[[], Awaitable[Session]]) -> bool:
        """Go over to another session; whether that worked."""
        app = self._app
        try:
            session = await opening()
        except TROUBLES as error:
            app.transcript.note(str(error), "bad")
            return False
        app.prompt.placeholder = ""
        app.put_card(None)
        transcript = Transcript()
        for position, event in enumerate(list(session.events)):
            transcript.add(event)
            if position % 2000 == 1999:
                await asyncio.sleep(0)
        transcript.status = ""
        self._show(transcript)
        app.show_standing()
        if session.pending or session.questions:
            app.turns.run(None)
        return True

    def _show(self, transcript: Transcript) -> None:
        self._app.transcript = transcript
        self._app.conversation.show(transcript)
        self._app.notes.clear()


def _short(path: Path) -> str:
    """A path with `~` for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if home in path.parents else str(path)


async def _while_ticking(work: Awaitable[T], card: LoadCard, doing: str) -> T:
    """What the work gives; the card says meanwhile for how long it goes on."""
    began = time.monotonic()

    async def tick() -> None:
        while True:
            card.say([(f"{doing} … {time.monotonic() - began:.0f} s", "dim")],
                     "Esc stops reading")  # fmt: skip
            await asyncio.sleep(0.5)

    ticking = asyncio.create_task(tick())
    try:
        return await work
    finally:
        ticking.cancel()
