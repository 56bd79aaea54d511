"""A scrolling view of lines that are drawn for its width: diffs, lists, texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip

from ..paint import Painter
from ..palette import palette_of
from .marks import SelectableView, marked

Source = Callable[[Painter, int], list[Strip]]
"""Painter, width -> lines."""


class Lines(SelectableView):
    """Shows what `source` draws; as high as that is, up to its `max-height`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", show=False),
        Binding("down,j", "scroll_down", "Down", show=False),
        Binding("home,g", "scroll_home", "Start", show=False),
        Binding("end,G", "scroll_end", "End", show=False),
    ]

    def __init__(self, source: Source, widget_id: str | None = None) -> None:
        super().__init__(id=widget_id)
        self._source = source
        self._drawn: list[Strip] = []
        self._for: tuple[int, str] = (0, "")
        self.needle = ""

    def show(self, source: Source) -> None:
        """Show something else."""
        self._source, self._for = source, (0, "")
        self._draw(self.size.width)
        self.refresh(layout=True)

    def _draw(self, width: int) -> list[Strip]:
        if width > 1 and self._for != (width, self.app.theme):
            self._for = (width, self.app.theme)
            self._drawn = self._source(Painter(palette_of(self.app.current_theme)), width - 1)
            self.virtual_size = Size(width, len(self._drawn))
        return self._drawn

    def on_mount(self) -> None:
        """Follow the theme."""
        self.watch(self.app, "theme", self._new_theme, init=False)

    def _new_theme(self) -> None:
        self.refresh(layout=True)

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new width."""
        self._draw(self.size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as there are lines."""
        return max(len(self._draw(width)), 1)

    @property
    def text(self) -> str:
        """All lines as plain text."""
        return "\n".join(strip.text.rstrip() for strip in self._drawn)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width, at = self.size.width, y + self.scroll_offset.y
        lines = self._draw(width)
        strip = lines[at] if at < len(lines) else Strip.blank(0)
        if self.needle:
            strip = marked(strip, self.needle, Style(reverse=True))
        strip = strip.extend_cell_length(width).crop(0, width).apply_style(self.rich_style)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(at)) is not None:
            start, end = span
            end = width if end == -1 else end
            parts = list(strip.divide([start, end, width]))
            chosen = self.screen.get_component_rich_style("screen--selection")
            if len(parts) > 1:
                parts[1] = Strip([Segment(s.text, (s.style or Style()) + chosen) for s in parts[1]])
                strip = Strip.join(parts)
        return strip.apply_offsets(0, at)

    def search(self, needle: str, step: int = 1) -> bool:
        """Mark a text and go to its next place; whether there is one."""
        self.needle = needle
        self.refresh()
        wanted, count = needle.casefold(), len(self._drawn)
        start = self.scroll_offset.y
        for distance in range(1, count + 1):
            at = (start + step * distance) % count
            if wanted in self._drawn[at].text.casefold():
                self.scroll_to(y=at, animate=False)
                return True
        return False

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text."""
        return selection.extract("\n".join(strip.text.rstrip() for strip in self._drawn)), "\n"
