"""The application: shows a session and asks. The session decides; nothing here does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Static

from ..agent.config import ConfigError
from ..agent.context.errors import Cancelled, ContextError
from ..agent.events import (
    Answer,
    AnyEvent,
    Approval,
    Decision,
    Effects,
    ImagePart,
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
from ..agent.exits import Exit
from ..agent.providers.base import Delta
from ..agent.run_cli import read_image
from ..agent.session import Session, SessionError
from .actions import Actions
from .asking import Asking
from .blocks import Transcript, words_of
from .commands import COMMANDS
from .desk import TROUBLES, Desk, Start
from .files import FileIndex
from .memory import Memory
from .own_command import run_own_command
from .standing import standing
from .text import one_line
from .themes import DARK, LIGHT, usual_theme
from .widgets.approval_card import ApprovalCard
from .widgets.card import Card
from .widgets.choices import Choices
from .widgets.conversation import FRAME, Conversation
from .widgets.load_card import LoadCard, plan_words
from .widgets.plan_card import PlanCard
from .widgets.prompt import Prompt
from .widgets.question_card import QuestionCard
from .widgets.status import Status
from .widgets.suggestions import Suggestions

W = TypeVar("W", bound=Widget)
SMALLEST = (60, 15)
LAST_SECONDS = 6.0
"""From the loss of the terminal to the end of the process, whatever still waits."""
TINY = 20
SHORT = 32
"""Rows below which cards leave more of the screen to the choices."""
_TURNS = (Decision, Effects, Approval, Question, Answer, Plan, ScopeGranted, ToolResult,
          Interruption, RunStarted, RunEnded)  # fmt: skip
"""Events after which something else may wait for the user."""
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tiff", ".heic")


class UnabridgedApp(App[None]):
    """One repository, one session at a time."""

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
        super().__init__()
        self.desk = Desk(start)
        self.memory = memory or Memory.read()
        self.transcript = Transcript()
        self.files = FileIndex(start.root)
        self.actions = Actions(self)
        self.asking = Asking(self)
        self.notes: list[str] = []
        """What the user's own commands gave, for the next message."""
        self._theme = theme
        self._at_work = False
        self._began = 0.0
        self._stop_plan = threading.Event()
        self._accepted = False
        """Whether the load plan was agreed to."""
        self._planned = asyncio.Event()
        self._queued: list[str] = []
        self._early: list[tuple[Part, ...]] = []
        """Said before there was a session."""
        self._own: asyncio.Task[None] | None = None
        self._last_quit = 0.0
        self._leaving = False
        self._handlers: dict[int, Any] = {}
        self._connecting = asyncio.Lock()
        self._card: Card | None = None
        self.last_session: str | None = None
        """The session that was left, to go on with."""

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
        wanted = self._theme or self.memory.theme
        self.theme = wanted if wanted in self.available_themes else usual_theme()
        for name in ("queue", "suggestions", "needle"):
            self._one(f"#{name}").display = False
        self.prompt.focus()
        self.set_interval(FRAME, self._beat)
        loop = asyncio.get_running_loop()
        for number, code in ((signal.SIGHUP, Exit.HANGUP), (signal.SIGTERM, Exit.TERMINATED)):

            def lost(_number: int, _frame: object, code: Exit = code) -> None:
                # The loop may stand still, waiting for a terminal that reads no more.
                last = threading.Timer(LAST_SECONDS, os._exit, (int(code),))
                last.daemon = True
                last.start()
                loop.call_soon_threadsafe(self._lost, code)

            with contextlib.suppress(ValueError):  # only the main thread can
                self._handlers[number] = signal.signal(number, lost)
        self.call_after_refresh(self._open)

    def on_unmount(self) -> None:
        """Give the signals back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

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
        return self._at_work

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

    # --- starting --------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._connect()
        self._greet()
        self.files.refresh()
        if self.desk.start.resume is not None:
            await self.enter(lambda: self.desk.resume(self.desk.start.resume or "last"))
        elif not self._at_work and self.session is None:  # somebody may have been faster
            self.plan_load()

    async def _connect(self) -> None:
        """Off the screen's way: a model in this process takes a moment."""
        async with self._connecting:
            if self.desk.provider is None:
                await asyncio.to_thread(self.desk.connect)

    def _greet(self) -> None:
        model = self.desk.model or "no model"
        self.transcript.note(
            f"Unabridged in {self.desk.root} with {model}. /help shows commands and keys."
        )
        if self.desk.problem:
            self.transcript.note(self.desk.problem, "bad")
            self.transcript.note(
                "You can look around; /model NAME URL points to an endpoint, for example "
                "/model k3-nano http://127.0.0.1:8000/v1", "warn",
            )  # fmt: skip

    def plan_load(self) -> None:
        """Show what would be loaded."""
        self._accepted = False
        self._planned.clear()
        patterns = {name: list(getattr(self.desk.options, name))
                    for name in ("include", "exclude", "outline")}  # fmt: skip
        card = LoadCard(self.desk.root.name, patterns)
        self.put_card(card)
        self._stop_plan.set()
        self._stop_plan = threading.Event()
        self._plan(card, self._stop_plan)

    @work(exclusive=True, group="plan")
    async def _plan(self, card: LoadCard, stop: threading.Event) -> None:
        began = time.monotonic()

        async def tick() -> None:
            while True:
                await asyncio.sleep(0.5)
                seconds = time.monotonic() - began
                card.say([(f"Reading the repository … {seconds:.0f} s", "dim")],
                         "write your task meanwhile · Esc stops reading")  # fmt: skip

        ticking = asyncio.create_task(tick())
        try:
            loaded = await asyncio.to_thread(self.desk.plan, stop.is_set)
        except Cancelled:
            card.say([("Reading was stopped.", "warn")], "Tab changes what is loaded")
            return
        except (ContextError, ConfigError, OSError) as error:
            card.say([(str(error), "bad")], "Tab changes what is loaded")
            return
        finally:
            ticking.cancel()
        self.desk.loaded = loaded
        stored = sum(s.tokens for s in loaded.segments[: loaded.stored])
        cold = self.desk.price_of(loaded.tokens)
        warm = self.desk.price_of(loaded.tokens, stored or loaded.tokens)
        words = plan_words(loaded, self.desk.window, cold, warm)
        if self.desk.trusted.untrusted or self.desk.trusted.changed:
            names = ", ".join((*self.desk.trusted.untrusted, *self.desk.trusted.changed))
            changed = " (it changed)" if self.desk.trusted.changed else ""
            words.append(
                (f"{names} is not followed{changed}: Ctrl+T trusts it as it is now", "warn")
            )
        card.say(words, "Enter starts · Tab changes · nothing was sent yet")
        self._planned.set()
        self.show_standing()

    @on(LoadCard.Changed)
    def _load_changed(self, event: LoadCard.Changed) -> None:
        from dataclasses import replace

        self.desk.options = replace(self.desk.options, **event.patterns)
        self.prompt.focus()
        self.plan_load()

    def accept(self) -> None:
        """The load plan is agreed to."""
        self._accepted = True
        if isinstance(self.card, LoadCard):
            self.put_card(None)

    def begin_anew(self) -> None:
        """A fresh start in the same repository."""
        self.transcript = Transcript()
        self.conversation.show(self.transcript)
        self.notes.clear()
        self._greet()
        self.plan_load()
        self.show_standing()

    async def enter(self, opening: Callable[[], Awaitable[Session]]) -> bool:
        """Go over to another session; whether that worked."""
        try:
            session = await opening()
        except TROUBLES as error:
            self.transcript.note(str(error), "bad")
            return False
        self._accepted = True
        self.put_card(None)
        self.transcript = Transcript()
        events_ = list(session.events)
        for position, event in enumerate(events_):
            self.transcript.add(event)
            if position % 2000 == 1999:
                await asyncio.sleep(0)
        self.transcript.status = ""
        self.conversation.show(self.transcript)
        self.notes.clear()
        self.show_standing()
        if session.pending or session.questions:
            self.run_turn(None)
        return True

    # --- sending ---------------------------------------------------------------------------------

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        event.stop()
        text = event.text.strip("\n")
        if not text.strip():
            if isinstance(self.card, LoadCard) and self._planned.is_set():
                self.accept()
            return
        if text.startswith("/") and "\n" not in text and text[1:].split(" ")[0] in COMMANDS:
            self._keep(text)
            self._command(text[1:])
            return
        if text.startswith("/") and "\n" not in text and "/" not in text[1:] and " " not in text:
            self.notify(f"No command {text}: /help lists them.", severity="warning", markup=False)
            return
        if text.startswith("!"):
            self._keep(text)
            if command := text[1:].strip():
                self._own = asyncio.create_task(self._own_command(command))
            return
        try:
            parts = self._parts(text)
        except ConfigError as error:
            self.notify(str(error), severity="error", timeout=6, markup=False)
            return
        if self.busy:
            self._keep(text)
            if self.session is None:
                self._early.append(parts)
            else:
                self.session.say(parts)
            self._queued.append(text)
            self._show_queue()
            return
        await self._connect()
        if self.desk.provider is None:
            self.notify(self.desk.problem, severity="error", timeout=8, markup=False)
            return
        self._keep(text)
        self.accept()
        self.run_turn(parts)

    async def _own_command(self, command: str) -> None:
        try:
            told = await run_own_command(command, self.desk, self.transcript)
            if told is not None:
                self.notes.append(told)
        finally:
            self._own = None
            self.show_standing()

    @work(group="command")
    async def _command(self, line: str) -> None:
        await self.actions.run(line)

    def _keep(self, text: str) -> None:
        self.prompt.remember(text)
        self.prompt.empty()
        self.memory.history = self.prompt.past
        self.memory.write()

    def _parts(self, text: str) -> tuple[Part, ...]:
        """The words, and the images that they name. Raises ConfigError."""
        images: list[ImagePart] = []
        for word in text.split():
            name = word.removeprefix("@").strip("'\"")
            if name.lower().endswith(IMAGES):
                path = Path(name).expanduser()
                path = path if path.is_absolute() else self.desk.root / path
                if path.is_file():
                    images.append(read_image(path))
        return (TextPart(text=text), *images)

    def run_turn(self, parts: tuple[Part, ...] | None) -> None:
        """Let the model work."""
        self._at_work, self._began = True, time.monotonic()
        self._run(parts)

    @work(exclusive=True, group="run")
    async def _run(self, parts: tuple[Part, ...] | None) -> None:
        notes, self.notes = self.notes, []
        try:
            self.transcript.status = "loading the repository" if self.session is None else ""
            fresh = self.session is None
            session = await self.desk.open()
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
            self.transcript.note(str(error), "bad")
            if parts is not None and (self.session is None or not self.session.events):
                self.prompt.put(words_of(parts[len(notes) :]))
        finally:
            self._at_work = False
            self.transcript.status = ""
            if self._status is not None:
                self.show_standing()
                self.asking.show()
        if not self._leaving and self._status is not None:
            self._after_turn()

    def _after_turn(self) -> None:
        """What was queued and not told is the next turn."""
        session = self.session
        if session is not None and (waiting := session.unsaid()):
            self._queued.clear()
            self._show_queue()
            self.run_turn(waiting)
            return
        self._queued.clear()
        self._show_queue()
        if not self.app_focus:
            self.bell()

    def _take(self, item: AnyEvent | Delta) -> None:
        self.transcript.add(item)
        if isinstance(item, RequestSent):
            self._queued.clear()
            self._show_queue()
            self.transcript.status = "waiting for the model"
            self.show_standing()
        elif isinstance(item, _TURNS):
            self.call_next(self.asking.show)
            self.show_standing()

    def _show_queue(self) -> None:
        queue = self._one("#queue", Static)
        queue.display = bool(self._queued)
        lines = [f"⧗ {one_line(text, 70)}" for text in self._queued[-3:]]
        lines.append("  told before the next step · ↑ takes it back · Esc stops and sends it now")
        queue.update(Text("\n".join(lines)))

    @on(Prompt.TakeBack)
    def _take_back(self) -> None:
        if self.session is not None and self._queued:
            parts = self.session.unsaid()
            self._queued.clear()
            self._show_queue()
            if parts:
                self.prompt.put(words_of(parts))

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
        if self._one("#suggestions").display:
            self._close_suggestions()
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
                card.caption("Enter starts · Tab changes · nothing was sent yet")
            return
        if self._own is not None:
            self._own.cancel()
            return
        if self._at_work:
            if self.session is not None:
                self.session.cancel()
            else:
                self.workers.cancel_group(self, "run")
            return
        if isinstance(card, LoadCard) and not self._planned.is_set():
            self._stop_plan.set()
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
        if await self.enter(lambda: self.desk.fork(event.seq)):
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
        self._leaving = True
        self._stop_plan.set()
        if self._own is not None:
            self._own.cancel()
        if self.session is not None and self.session.core.state.run is not None:
            self.last_session = self.session.id
        with contextlib.suppress(*TROUBLES):
            await self.desk.let_go()
        self.exit()

    def _lost(self, code: Exit) -> None:
        """The terminal went away, or somebody ends us: the session is saved, nothing runs on."""
        self._leaving = True
        if self.session is not None:
            self.session.cancel(code)
        self.run_worker(self.action_leave(), exclusive=False)
        asyncio.get_running_loop().call_later(3, self.exit, None, int(code))

    # --- completion ------------------------------------------------------------------------------

    @on(Prompt.Typed)
    def _typed(self, event: Prompt.Typed) -> None:
        word = event.word
        if word.startswith("/"):
            found = [(f"/{name}", command.line) for name, command in COMMANDS.items()
                     if name.startswith(word[1:])]  # fmt: skip
            self._offer([] if [name for name, _ in found] == [word] else found)
        elif word.startswith("@"):
            self._complete(word[1:])
        else:
            self._offer([])

    @work(exclusive=True, group="complete")
    async def _complete(self, needle: str) -> None:
        names = await asyncio.to_thread(self.files.find, needle)
        if self.prompt.word == f"@{needle}":
            self._offer([(f"@{name}", "") for name in names])

    def _offer(self, entries: list[tuple[str, str]]) -> None:
        self._one("#suggestions", Suggestions).offer(entries)
        self.prompt.completing = bool(entries)

    def _close_suggestions(self) -> None:
        self._offer([])

    @on(Prompt.Steer)
    def _steer(self, event: Prompt.Steer) -> None:
        suggestions = self._one("#suggestions", Suggestions)
        match event.key:
            case "up" | "down":
                suggestions.move(1 if event.key == "down" else -1)
            case "close":
                self._close_suggestions()
            case _:
                taken = suggestions.marked
                exact = taken == self.prompt.word
                self._close_suggestions()
                if taken is not None and not exact:
                    self.prompt.complete(f"{taken} ")
                if taken is not None and taken.startswith("/") and event.key == "enter":
                    self.prompt.post_message(Prompt.Sent(taken))

    # --- standing --------------------------------------------------------------------------------

    def _beat(self) -> None:
        """What was said, what happens, for how long: brought to the screen together."""
        status = self._status
        if status is None:
            return
        self.conversation.flush()
        if self._at_work:
            activity = self.transcript.status or "working"
            seconds = time.monotonic() - self._began
            waits = isinstance(self.card, ApprovalCard | PlanCard | QuestionCard)
            hint = "Esc stops" if waits or self._queued else "Esc stops · Enter tells it more"
            status.act(activity, seconds, hint)
        elif isinstance(self.card, LoadCard):
            status.act("", 0, "Enter starts · Tab changes what is loaded · or write your task")
        else:
            status.act("", 0, "Enter sends · /help · @file · !command · Shift+Tab conversation")

    def show_standing(self) -> None:
        """Bring the footer up to date."""
        if (status := self._status) is not None:
            status.show(standing(self.desk))
