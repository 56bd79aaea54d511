"""Changed files with their diffs: all of a session (`/diff`), or what an undo would put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from .. import diffs
from ..paint import Painter
from ..palette import palette_of
from ..text import safe, several
from ..widgets.lines import Lines


@dataclass(frozen=True)
class Entry:
    """A file: its diff, and why it would be left alone."""

    name: str
    diff: str
    refusal: str = ""


class Changes(ModalScreen[list[str] | None]):
    """Look at the files; gives back the names of those to put back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Close"),
        Binding("r", "one", "Revert this file"),
        Binding("u", "all", "Put all back"),
        Binding("pagedown", "page(1)", "Down", priority=True),
        Binding("pageup", "page(-1)", "Up", priority=True),
    ]

    def __init__(self, title: str, entries: Sequence[Entry], undo: bool) -> None:
        super().__init__()
        self._title = title
        self._entries = list(entries)
        self._undo = undo
        self._sure: Callable[[], None] | None = None

    def compose(self) -> ComposeResult:
        """Files left, diff right."""
        yield Static(Text(self._title), classes="title")
        with Horizontal(id="changes"):
            yield OptionList(id="files", compact=True, markup=False)
            yield Lines(self._draw, widget_id="diff")
        yield Static(self._keys(), classes="keys", markup=False)

    def _keys(self) -> str:
        act = "u puts all back · r only this file" if self._undo else "r reverts this file · u all"
        return f"↑↓ file · PgUp PgDn scroll · {act} · Esc close"

    def on_mount(self) -> None:
        """List the files."""
        p = palette_of(self.app.current_theme)
        listing = self.query_one(OptionList)
        for entry in self._entries:
            text = Text("⊘ " if entry.refusal else "  ", p.warn, no_wrap=True)
            text.append(safe(entry.name), p.dim if entry.refusal else p.text)
            listing.add_option(Option(text))
        listing.highlighted = 0
        listing.focus()

    @property
    def _entry(self) -> Entry:
        return self._entries[self.query_one(OptionList).highlighted or 0]

    def _draw(self, painter: Painter, width: int) -> list[Strip]:
        entry = self._entry
        shown = diffs.lines(entry.diff, width, painter.palette)
        if entry.refusal:
            why = Text(f"Left alone: {entry.refusal}.", painter.palette.warn)
            shown = [*why.wrap(painter.console, max(width, 10)), Text(""), *shown]
        return painter.strips(shown)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self.query_one(Lines).show(self._draw)
        self.query_one(Lines).scroll_home(animate=False)
        self._sure = None
        self.query_one(".keys", Static).update(Text(self._keys()))

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        if self._undo:
            self.action_all()

    def action_page(self, step: int) -> None:
        """Scroll the diff."""
        lines = self.query_one(Lines)
        (lines.scroll_page_down if step > 0 else lines.scroll_page_up)(animate=False)

    def action_one(self) -> None:
        """Put back the file that is shown."""
        entry = self._entry
        if entry.refusal:
            self.notify(f"{entry.name}: {entry.refusal}.", severity="warning", markup=False)
        else:
            self._ask(f"Put {safe(entry.name)} back as it was? Press r again.", [entry.name], "one")

    def action_all(self) -> None:
        """Put all back that can be."""
        names = [entry.name for entry in self._entries if not entry.refusal]
        if not names:
            self.notify("None of them can be put back.", severity="warning")
        elif self._undo:
            self.dismiss(names)
        else:
            self._ask(f"Put {several(len(names), 'file')} back? Press u again.", names, "all")

    def _ask(self, question: str, names: list[str], key: str) -> None:
        """What cannot be taken for a slip: the same key again."""
        if self._sure is not None and self._asked == (key, names):
            self.dismiss(names)
            return
        self._asked = (key, names)
        self._sure = self.action_close
        p = palette_of(self.app.current_theme)
        self.query_one(".keys", Static).update(Text(question, p.warn))

    _asked: tuple[str, list[str]] = ("", [])

    def action_close(self) -> None:
        """Nothing."""
        self.dismiss(None)
