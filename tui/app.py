"""The application: shows a session and asks. The session decides; nothing here does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from functools import partial
from typing import ClassVar, TypeVar

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Static

from ..agent.config import ConfigError
from ..agent.exits import Exit
from ..agent.session import Session, SessionError
from .actions import Actions
from .asking import Asking
from .attachments import parts_of
from .blocks import Transcript
from .commands import COMMANDS
from .completion import Completion
from .desk import TROUBLES, Desk, Start
from .files import FileIndex
from .memory import Memory
from .opening import READY, Opening
from .own_command import run_own_command
from .signals import Signals
from .standing import standing
from .themes import DARK, LIGHT, usual_theme
from .turns import Turns
from .widgets.approval_card import ApprovalCard
from .widgets.card import Card
from .widgets.choices import Choices
from .widgets.conversation import FRAME, Conversation
from .widgets.load_card import LoadCard
from .widgets.plan_card import PlanCard
from .widgets.prompt import Prompt
from .widgets.question_card import QuestionCard
from .widgets.status import Status
from .widgets.suggestions import Suggestions

W = TypeVar("W", bound=Widget)
SMALLEST = (60, 15)
TINY = 20
SHORT = 32
"""Rows below which cards leave more of the screen to the choices."""


class UnabridgedApp(App[None]):
    """One repository, one session at a time. What it does stands in modules of its own; here are
    the widgets, and which message and key goes where."""

    CSS_PATH = "app.tcss"
    TITLE = "Unabridged"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", show=False, priority=True),
        Binding("ctrl+q", "leave", "Quit", show=False, priority=True),
        Binding("ctrl+o", "unfold", "Unfold all", show=False, priority=True),
        Binding("ctrl+t", "trust", "Trust", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
    ]

    def __init__(self, start: Start, memory: Memory | None = None, theme: str = "") -> None:
        # Without colours, the cursor and what is selected are shown in reverse, as these themes do.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.desk = Desk(start)
        self.memory = memory or Memory.read()
        self.transcript = Transcript()
        self.files = FileIndex(start.root)
        self.opening = Opening(self)
        self.turns = Turns(self)
        self.asking = Asking(self)
        self.actions = Actions(self)
        self.completion = Completion(self, self.files)
        self.notes: list[str] = []
        """What the user's own commands gave, for the next message."""
        self.leaving = False
        self.last_session: str | None = None
        """The session that was left, to go on with."""
        self._theme = theme
        self._signals = Signals()
        self.ended_from_outside: Exit | None = None
        self._own: asyncio.Task[None] | None = None
        self._last_quit = 0.0
        self._card: Card | None = None

    # --- layout ----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Conversation, cards, prompt, footer."""
        with Vertical(id="body"):
            yield Conversation(self.transcript, widget_id="conversation")
            yield Vertical(id="tray")
            yield Static("", id="queue", markup=False)
            yield Suggestions(widget_id="suggestions")
            yield Input(placeholder="Search everything, reasoning included", id="needle")
            with Horizontal(id="prompt-row"):
                yield Static("❯", id="mark", markup=False)
                yield Prompt(self.memory.history, widget_id="prompt")
            yield Status(widget_id="status")
        yield Static("", id="small", markup=False)

    def on_mount(self) -> None:
        """Everything that takes time happens later, off the screen's way."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        few_colors = self.no_color or self.console.color_system in (None, "standard")
        wanted = self._theme or ("" if few_colors else self.memory.theme)
        self.theme = wanted if wanted in self.available_themes else usual_theme(few_colors)
        for name in ("queue", "suggestions", "needle"):
            self._one(f"#{name}").display = False
        self.prompt.focus()
        self.set_interval(FRAME, self._beat)
        self.set_interval(1.0, self._count_jobs)
        drawn_on = None if self.is_headless or sys.__stdout__ is None else sys.__stdout__.fileno()
        self._signals.catch(self._ended, drawn_on)
        self.call_after_refresh(self.opening.begin)

    def on_unmount(self) -> None:
        """Signals do again what they did before."""
        self._signals.give_back()

    def _one(self, selector: str, kind: type[W] = Widget) -> W:
        """A widget of the conversation's screen, whatever stands over it."""
        return self.screen_stack[0].query_one(selector, kind)

    @property
    def _status(self) -> Status | None:
        """The footer; None once the screen is taken down."""
        screen = self.screen_stack[0] if self.screen_stack else None
        return next(iter(screen.query(Status)), None) if screen is not None else None

    @property
    def prompt(self) -> Prompt:
        """Where the user writes."""
        return self._one("#prompt", Prompt)

    @property
    def conversation(self) -> Conversation:
        """What was said and done."""
        return self._one("#conversation", Conversation)

    @property
    def tray(self) -> Vertical:
        """Where cards stand."""
        return self._one("#tray", Vertical)

    @property
    def queue_line(self) -> Static:
        """Where the words stand that the model is still to be told."""
        return self._one("#queue", Static)

    @property
    def suggestions(self) -> Suggestions:
        """What could be completed."""
        return self._one("#suggestions", Suggestions)

    @property
    def shown(self) -> bool:
        """Whether there is still a screen."""
        return self._status is not None

    @property
    def card(self) -> Card | None:
        """The card that is shown."""
        return self._card

    def put_card(self, card: Card | None) -> None:
        """Show another card, or none."""
        self._card = card
        self.tray.remove_children()
        if card is not None:
            self.tray.mount(card)

    @property
    def session(self) -> Session | None:
        """The session, if there is one yet."""
        return self.desk.session

    @property
    def busy(self) -> bool:
        """Whether the model is at work, or waits for the user in the midst of it."""
        return self.turns.at_work

    def on_resize(self, event: events.Resize) -> None:
        """A terminal that is too small gets a notice."""
        width, height = event.size
        small = width < SMALLEST[0] or height < SMALLEST[1]
        self.screen_stack[0].set_class(small, "too-small")
        self.screen_stack[0].set_class(height < SHORT, "short")
        self.screen_stack[0].set_class(height < TINY, "tiny")
        self._one("#small", Static).update(
            Text(f"Unabridged needs {SMALLEST[0]}×{SMALLEST[1]}; this is {width}×{height}.")
        )

    # --- what is said ----------------------------------------------------------------------------

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        event.stop()
        text = event.text.strip("\n")
        if not text.strip():
            if self.opening.planned.is_set():
                self.opening.accept()
        elif text.startswith("/") and "\n" not in text and text[1:].split(" ")[0] in COMMANDS:
            self._keep(text)
            self.run_worker(partial(self.actions.run, text[1:]), group="command")
        elif text.startswith("/") and "\n" not in text and "/" not in text[1:] and " " not in text:
            self.notify(f"No command {text}: /help lists them.", severity="warning", markup=False)
        elif text.startswith("!"):
            self._keep(text)
            if command := text[1:].strip():
                self._own = asyncio.create_task(self._own_command(command))
        else:
            await self._say(text)

    async def _say(self, text: str) -> None:
        """Tell the model."""
        try:
            parts = parts_of(text, self.desk.root)
        except ConfigError as error:
            self.notify(str(error), severity="error", timeout=6, markup=False)
            return
        if self.busy:
            self._keep(text)
            self.turns.queue(text, parts)
            return
        await self.opening.connect()
        if self.desk.provider is None:
            self.notify(self.desk.problem, severity="error", timeout=8, markup=False)
            return
        self._keep(text)
        self.opening.accept()
        self.turns.run(parts)

    async def _own_command(self, command: str) -> None:
        try:
            told = await run_own_command(command, self.desk, self.transcript)
            if told is not None:
                self.notes.append(told)
        finally:
            self._own = None
            self.show_standing()

    def _keep(self, text: str) -> None:
        self.prompt.remember(text)
        self.prompt.empty()
        self.memory.history = self.prompt.past
        self.memory.write()

    @on(Prompt.TakeBack)
    def _take_back(self) -> None:
        self.turns.take_back()

    @on(Prompt.Typed)
    def _typed(self, event: Prompt.Typed) -> None:
        self.completion.typed(event.word)

    @on(Prompt.Steer)
    def _steer(self, event: Prompt.Steer) -> None:
        self.completion.steer(event.key, event.word)

    # --- what waits for the user -------------------------------------------------------------------

    @on(ApprovalCard.Said)
    def _said(self, event: ApprovalCard.Said) -> None:
        event.stop()
        session, verdict = self.session, event.verdict
        if session is None:
            return
        try:
            self.asking.decide(session, event.call_id, verdict)
        except SessionError as error:
            self.notify(str(error), severity="error", markup=False)
        self.asking.show()

    @on(QuestionCard.Answered)
    def _answered(self, event: QuestionCard.Answered) -> None:
        event.stop()
        if self.session is not None and self.session.questions:
            self.session.answer(event.text)
            self.asking.show()

    @on(Choices.Stray)
    def _stray(self, event: Choices.Stray) -> None:
        """Typed on while a card came: it belongs to the prompt."""
        event.stop()
        self.prompt.insert(event.character, self.prompt.document.end)

    # --- keys ------------------------------------------------------------------------------------

    async def action_stop(self) -> None:
        """Close what is open; else stop what runs, wherever it is."""
        if len(self.screen_stack) > 1:
            await self.screen.run_action("close")
            return
        if self.completion.open:
            self.completion.close()
            return
        needle = self._one("#needle", Input)
        if needle.display:
            needle.display = False
            self.conversation.search("")
            self.conversation.focus()
            return
        card = self.card
        back = getattr(card, "back", None)
        if back is not None and back():
            if isinstance(card, LoadCard):
                self.prompt.focus()
                card.caption(READY)
            return
        if self._own is not None:
            self._own.cancel()
            return
        if self.busy:
            self.turns.stop()
            return
        if isinstance(card, LoadCard) and not self.opening.planned.is_set():
            self.opening.stop()
            return
        self.prompt.focus()

    def action_unfold(self) -> None:
        """All reasoning and calls."""
        self.conversation.toggle_all()

    def action_page(self, step: int) -> None:
        """Scroll the conversation."""
        if step > 0:
            self.conversation.scroll_page_down(animate=False)
        else:
            self.conversation.scroll_page_up(animate=False)

    def action_trust(self) -> None:
        """Trust the repository's own instructions."""
        self.actions.trust()

    @on(LoadCard.Changed)
    def _load_changed(self, event: LoadCard.Changed) -> None:
        self.prompt.focus()
        self.opening.plan_other(event.patterns)

    @on(Prompt.Tab)
    def _change_load(self) -> None:
        """Change what is loaded."""
        if isinstance(self.card, LoadCard):
            self.card.edit()

    @on(Prompt.Leave)
    def _to_conversation(self) -> None:
        self.conversation.focus()

    def key_shift_tab(self) -> None:
        """From the conversation back."""
        if self.conversation.has_focus:
            self.prompt.focus()

    @on(Conversation.Leave)
    def _to_prompt(self, event: Conversation.Leave) -> None:
        self.prompt.focus()
        self.prompt.insert(event.character)

    @on(Conversation.Search)
    def _search(self) -> None:
        needle = self._one("#needle", Input)
        needle.display = True
        needle.value = ""
        needle.focus()

    @on(Input.Submitted, "#needle")
    def _search_for(self, event: Input.Submitted) -> None:
        self._one("#needle").display = False
        self.conversation.search(event.value)
        self.conversation.focus()

    @on(Conversation.Edit)
    async def _edit(self, event: Conversation.Edit) -> None:
        if self.busy:
            self.notify("Stop the model first: Esc.", severity="warning")
            return
        if await self.opening.enter(lambda: self.desk.fork(event.seq)):
            self.prompt.put(event.text)
            self.prompt.focus()
            self.transcript.note(
                "You are in a fork, before that message. Files are as they are now: /undo in the "
                "other session puts them back."
            )

    async def action_ask_quit(self) -> None:
        """Twice Ctrl+C leaves."""
        now = time.monotonic()
        if now - self._last_quit < 2:
            await self.action_leave()
        self._last_quit = now
        self.notify("Ctrl+C again leaves; the session is saved.", timeout=2)

    async def action_leave(self) -> None:
        """Stop what runs, save, leave."""
        self.leaving = True
        self.opening.stop()
        if self._own is not None:
            self._own.cancel()
        if self.session is not None and self.session.core.state.run is not None:
            self.last_session = self.session.id
        with contextlib.suppress(*TROUBLES):
            await self.desk.let_go()
        self.exit()

    def _ended(self, code: Exit) -> None:
        """The terminal went away, or somebody ends us: the session is saved, nothing runs on."""
        self.leaving = True
        self.ended_from_outside = code
        if self.session is not None:
            self.session.cancel(code)
        self.run_worker(self.action_leave(), exclusive=False)
        asyncio.get_running_loop().call_later(3, self.exit, None, int(code))

    # --- standing --------------------------------------------------------------------------------

    def _beat(self) -> None:
        """What was said, what happens, for how long: brought to the screen together."""
        status = self._status
        if status is None:
            return
        self.conversation.flush()
        if self.busy:
            activity = self.transcript.status or "working"
            seconds = time.monotonic() - self.turns.began
            waits = isinstance(self.card, ApprovalCard | PlanCard | QuestionCard)
            hint = "Esc stops" if waits or self.turns.queued else "Esc stops · Enter tells it more"
            status.act(activity, seconds, hint)
        elif isinstance(self.card, LoadCard) and not self.opening.planned.is_set():
            status.act("", 0, "Write your task meanwhile · /help · Ctrl+Q leaves")
        elif isinstance(self.card, LoadCard):
            status.act("", 0, "Enter starts · Tab changes what is loaded · or write your task")
        else:
            status.act("", 0, "Enter sends · /help · @file · !command · Shift+Tab conversation")

    def _count_jobs(self) -> None:
        """Background commands end without an event."""
        status, session = self._status, self.session
        if status is None or session is None:
            return
        if status.standing.jobs != len(session.processes.live_jobs()):
            self.show_standing()

    def show_standing(self) -> None:
        """Bring the footer up to date."""
        if (status := self._status) is not None:
            status.show(standing(self.desk))
