"""A list to pick from, narrowed by typing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ..palette import palette_of
from ..text import one_line

SHOWN = 200


@dataclass(frozen=True)
class Item:
    """One entry; `key` is what is given back."""

    key: str
    label: str
    detail: str = ""


class Picker(ModalScreen[str | None]):
    """Pick one; Esc picks none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close")]

    def __init__(self, title: str, items: Sequence[Item]) -> None:
        super().__init__()
        self._title = title
        self._items = list(items)

    def compose(self) -> ComposeResult:
        """A line to narrow it, the list."""
        with Vertical(id="picker"):
            yield Static(Text(self._title), classes="title")
            yield Input(placeholder="Type to narrow", id="needle", compact=True)
            yield OptionList(id="list", compact=True, markup=False)
            yield Static("↑↓ choose · Enter takes it · Esc closes", classes="keys", markup=False)

    def on_mount(self) -> None:
        """All of them."""
        self._narrow("")
        self.query_one(Input).focus()

    def _narrow(self, needle: str) -> None:
        words = needle.casefold().split()
        p = palette_of(self.app.current_theme)
        listing = self.query_one(OptionList)
        listing.clear_options()
        for item in self._items:
            if all(word in f"{item.label} {item.detail} {item.key}".casefold() for word in words):
                text = Text(one_line(item.label, 100), p.text, no_wrap=True, overflow="ellipsis")
                if item.detail:
                    text.append(f"\n  {item.detail}", p.dim)
                listing.add_option(Option(text, id=item.key))
                if listing.option_count >= SHOWN:
                    break
        if listing.option_count:
            listing.highlighted = 0

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self._narrow(event.value)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        listing = self.query_one(OptionList)
        if listing.highlighted is not None and listing.option_count:
            self.dismiss(listing.get_option_at_index(listing.highlighted).id)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def on_key(self, event: events.Key) -> None:
        """Arrows move in the list while the line has the keys."""
        listing = self.query_one(OptionList)
        if event.key in ("up", "down", "pageup", "pagedown") and self.query_one(Input).has_focus:
            event.stop()
            moves = {"up": listing.action_cursor_up, "down": listing.action_cursor_down,
                     "pageup": listing.action_page_up, "pagedown": listing.action_page_down}  # fmt: skip
            moves[event.key]()

    def action_close(self) -> None:
        """None."""
        self.dismiss(None)
