"""What could be completed, above the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.geometry import Size
from textual.widget import Widget

from ..palette import palette_of
from ..text import one_line

SHOWN = 7


class Suggestions(Widget):
    """A list of (what to insert, what it is), one of them marked."""

    def __init__(self, widget_id: str | None = None) -> None:
        super().__init__(id=widget_id)
        self.entries: list[tuple[str, str]] = []
        self.at = 0

    def offer(self, entries: Sequence[tuple[str, str]]) -> None:
        """Other entries; none closes the list."""
        if not entries and not self.entries:
            return  # at nearly every key: the screen is not laid out for it
        self.entries, self.at = list(entries), 0
        self.display = bool(entries)
        self.refresh(layout=True)

    def move(self, step: int) -> None:
        """Mark the next."""
        self.at = (self.at + step) % len(self.entries)
        self.refresh()

    @property
    def marked(self) -> str | None:
        """What the marked entry inserts."""
        return self.entries[self.at][0] if self.entries else None

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A row each."""
        return min(len(self.entries), SHOWN)

    def render(self) -> Text:
        """The entries around the marked one."""
        p = palette_of(self.app.current_theme)
        first = max(0, min(self.at - SHOWN // 2, len(self.entries) - SHOWN))
        names = max((len(name) for name, _ in self.entries), default=0)
        text = Text(no_wrap=True, overflow="ellipsis")
        for i, (name, what) in enumerate(self.entries[first : first + SHOWN], first):
            here = i == self.at
            text.append("❯ " if here else "  ", p.accent)
            text.append(f"{one_line(name, 60):{min(names, 60)}}", p.strong if here else p.text)
            text.append(f"  {what}\n" if what else "\n", p.dim)
        text.right_crop(1)
        return text
