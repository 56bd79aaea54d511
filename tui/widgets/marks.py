"""Marks where a text stands in a line, and text that can be selected."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip


def marked(strip: Strip, needle: str, style: Style) -> Strip:
    """The strip with each place of `needle` marked. Cells and characters must be the same."""
    text = strip.text
    folded, wanted = text.casefold(), needle.casefold()
    if wanted not in folded or len(folded) != strip.cell_length:
        return strip
    cuts: list[int] = []
    at = folded.find(wanted)
    while at >= 0:
        cuts += [at, at + len(wanted)]
        at = folded.find(wanted, at + len(wanted))
    parts = list(strip.divide([*cuts, strip.cell_length]))
    marked = [
        Strip([Segment(s.text, (s.style or Style()) + style) for s in part]) if i % 2 else part
        for i, part in enumerate(parts)
    ]
    return Strip.join(marked)


class SelectableView(ScrollView, can_focus=True):
    """A scrolling view whose text can be selected with the mouse; it draws what is selected."""

    @property
    def allow_select(self) -> bool:
        """Text can be selected with the mouse."""
        return True

    def selection_updated(self, selection: Selection | None) -> None:
        """Show what is selected."""
        self.refresh()
