"""A few choices, one key each. Keys that were meant for something else do not choose."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.widget import Widget

from ..palette import palette_of

GRACE = 0.3
"""Seconds without a key press before a key answers: what is typed on does not."""


@dataclass(frozen=True)
class Choice:
    """One of them. Without a `key` it can be chosen by Enter only; `off` says why it cannot be."""

    name: str
    key: str
    label: str
    detail: str = ""
    off: str = ""


class Choices(Widget, can_focus=True):
    """The choices, one of them marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
    ]

    class Chosen(Message):
        """One was chosen."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    class Stray(Message):
        """A character that was typed for the prompt."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    def __init__(self, choices: Sequence[Choice], widget_id: str | None = None) -> None:
        super().__init__(id=widget_id)
        self.choices = list(choices)
        self.at = 0
        self._quiet_since = time.monotonic()

    def on_mount(self) -> None:
        """From here on it must be quiet for a moment."""
        self._quiet_since = time.monotonic()

    def offer(self, choices: Sequence[Choice]) -> None:
        """Other choices, in the same place."""
        self.choices = list(choices)
        self.at = min(self.at, len(self.choices) - 1)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A row each, and one for each detail."""
        return sum(1 + len(_detail(choice, width)) for choice in self.choices)

    def render(self) -> Text:
        """Number, key, label."""
        p = palette_of(self.app.current_theme)
        text = Text(no_wrap=True, overflow="ellipsis")
        for i, choice in enumerate(self.choices):
            here = i == self.at
            style = p.dim if choice.off else p.strong if here else p.text
            text.append("❯ " if here else "  ", p.accent)
            text.append(
                f"{choice.key:>1} " if choice.key else "  ", p.dim if choice.off else p.accent
            )
            text.append(f"{choice.label}\n", style)
            for line in _detail(choice, self.size.width):
                text.append(f"    {line}\n", p.dim)
        text.right_crop(1)
        return text

    async def on_key(self, event: events.Key) -> None:
        """A key chooses, once nothing was typed for a moment."""
        now = time.monotonic()
        early = now - self._quiet_since < GRACE
        if early and (event.is_printable or event.key == "enter"):
            self._quiet_since = now
            event.stop()
            event.prevent_default()
            if event.character and event.is_printable:
                self.post_message(self.Stray(event.character))
            return
        if event.key == "enter":
            event.stop()
            self._choose(self.choices[self.at])
            return
        for choice in self.choices:
            if choice.key and event.character == choice.key:
                event.stop()
                self._choose(choice)
                return

    def _choose(self, choice: Choice) -> None:
        if choice.off:
            self.notify(choice.off, severity="warning", timeout=4, markup=False)
            return
        self.post_message(self.Chosen(choice.name))

    def action_move(self, step: int) -> None:
        """Mark the next one."""
        self.at = (self.at + step) % len(self.choices)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """A click marks; Enter chooses."""
        row = 0
        for i, choice in enumerate(self.choices):
            row += 1 + len(_detail(choice, self.size.width))
            if event.y < row:
                self.at = i
                self.refresh()
                return


def _detail(choice: Choice, width: int) -> list[str]:
    """The lines under a choice, whole: what is agreed to is seen."""
    return textwrap.wrap(choice.off or choice.detail, max(width - 4, 20))
