"""A page over the conversation: one text, scrolled and searched."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ..widgets.lines import Lines, Source


class Page(ModalScreen[None]):
    """Shows what a source draws."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Close"),
        Binding("slash", "search", "Search"),
        Binding("n", "again(1)", "Next"),
        Binding("N", "again(-1)", "Previous"),
        Binding("y", "copy", "Copy"),
    ]

    def __init__(self, title: str, source: Source) -> None:
        super().__init__()
        self._title = title
        self._source = source

    def compose(self) -> ComposeResult:
        """Title, text, search line, keys."""
        yield Static(Text(self._title), classes="title")
        yield Lines(self._source, widget_id="page")
        yield Input(placeholder="Search", id="needle", compact=True)
        yield Static("↑↓ PgUp PgDn scroll · / search · n N next, previous · y copy · Esc close",
                     classes="keys", markup=False)  # fmt: skip

    def on_mount(self) -> None:
        """The text has the keys."""
        self.query_one("#needle").display = False
        self.query_one(Lines).focus()

    def action_close(self) -> None:
        """Back, or out of the search line."""
        needle = self.query_one("#needle", Input)
        if needle.display:
            needle.display = False
            self.query_one(Lines).focus()
        else:
            self.dismiss()

    def action_search(self) -> None:
        """Open the search line."""
        needle = self.query_one("#needle", Input)
        needle.display = True
        needle.focus()

    @on(Input.Submitted)
    def _search(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one("#needle").display = False
        lines = self.query_one(Lines)
        lines.focus()
        if event.value and not lines.search(event.value):
            self.notify(f"No “{event.value}” here.", markup=False)

    def action_again(self, step: int) -> None:
        """The next place."""
        lines = self.query_one(Lines)
        if lines.needle:
            lines.search(lines.needle, step)

    def action_copy(self) -> None:
        """Copy all of it."""
        self.app.copy_to_clipboard(self.query_one(Lines).text)
        self.notify("Copied", timeout=1.5)
