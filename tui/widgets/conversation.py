"""The conversation: ten thousand blocks in one widget that draws the lines on the screen."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from ..blocks import Transcript
from ..paint import BLANK, Painter
from ..palette import palette_of
from .marks import SelectableView, marked

GUTTER = 2
"""Cells left of each line: the mark of the selected block stands there."""
KEPT = 1000
"""Lines kept as they were given out."""
FRAME = 1 / 12
"""Seconds between two calls of `flush`, however fast the model streams."""


class Conversation(SelectableView):
    """Shows a transcript. It stays at the end while the reader does, and else does not move."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "Previous"),
        Binding("down,j", "select(1)", "Next"),
        Binding("enter,space", "unfold", "Unfold"),
        Binding("y,c", "copy_block", "Copy"),
        Binding("e", "edit", "Edit and resend"),
        Binding("slash", "search", "Search"),
        Binding("n", "next_hit(1)", "Next hit"),
        Binding("N", "next_hit(-1)", "Previous hit"),
        Binding("home,g", "go_home", "Start"),
        Binding("end,G", "go_end", "End"),
    ]

    class Leave(Message):
        """The reader typed something that is meant for the prompt."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    class Edit(Message):
        """The user wants to say something else than in the message at this place of the log."""

        def __init__(self, seq: int, text: str) -> None:
            super().__init__()
            self.seq = seq
            self.text = text

    class Search(Message):
        """The reader wants to search."""

    def __init__(self, transcript: Transcript, widget_id: str | None = None) -> None:
        super().__init__(id=widget_id)
        self.transcript = transcript
        self.painter = Painter(palette_of(self.app.current_theme))
        self.selected: int | None = None
        self.needle = ""
        self.following = True
        self._heights: list[int] = []
        self._starts: list[int] = [0]
        self._width = 0
        self._page = Style()
        self._finished_for = 0
        self._finished: dict[tuple[int, bool, int], tuple[Strip, Strip]] = {}
        """Lines as they were given out, by the strips that they are made of, which are kept here so
        that no other takes such an identity."""
        self._before: dict[int, list[Strip]] = {}
        """Lines of the blocks that changed last, as they were shown."""

    def on_mount(self) -> None:
        """Elapsed times go on."""
        self.set_interval(1.0, self._tick)
        self.watch(self.app, "theme", self._new_theme, init=False)

    def show(self, transcript: Transcript) -> None:
        """Show another transcript, from its end."""
        self.transcript = transcript
        self.selected, self.needle, self.following = None, "", True
        self._heights, self._starts = [], [0]
        self._lay_out()

    # --- layout ----------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return max(self.size.width - GUTTER - 1, 10)

    def _new_theme(self) -> None:
        self.painter = Painter(palette_of(self.app.current_theme))
        self._finished.clear()
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        """Lines are wrapped anew; what stood at the top stays there."""
        if self._width != self.size.width:
            at, within = self._at(self.scroll_offset.y)
            self._lay_out()
            if not self.following and at < len(self._heights):
                self.scroll_to(y=self._starts[at] + min(within, self._heights[at] - 1),
                               animate=False, immediate=True)  # fmt: skip
        if self.following:
            self._follow()

    def _lay_out(self) -> None:
        """All heights anew: as drawn where a block was drawn, else estimated."""
        self._width = self.size.width
        blocks, room = self.transcript.blocks, self._room
        self._heights = [self.painter.estimate(block, room) for block in blocks]
        self._starts = [0, *accumulate(self._heights)]
        self.transcript.changed.clear()
        self._measure_end()
        self._resized()
        self.refresh()
        if self.following:
            self._follow()

    def _measure_end(self) -> None:
        """Draw what the last screen shows, so that the end is where it seems to be."""
        total, position = 0, len(self.transcript.blocks) - 1
        first = len(self._heights)
        while position >= 0 and total < self.size.height + 5:
            height = len(self.painter.block(self.transcript.blocks[position], self._room))
            self._heights[position] = height
            total += height
            first = position
            position -= 1
        self._sum_from(first)

    def _sum_from(self, first: int) -> None:
        del self._starts[first + 1 :]
        self._starts += list(accumulate(self._heights[first:], initial=self._starts[first]))[1:]

    def _resized(self) -> None:
        """Tell the scroll bar how much there is. Nothing else on the screen moves, unless the bar
        comes or goes."""
        size = Size(self.size.width, self._starts[-1])
        if size == self.virtual_size:
            return
        if self.show_vertical_scrollbar != (size.height > self.size.height):
            self.virtual_size = size  # lays the screen out
            return
        self.set_reactive(Widget.virtual_size, size)  # pyright: ignore[reportArgumentType] - of the class it is the Reactive
        self._scroll_update(size)

    def _follow(self) -> None:
        self.scroll_to(y=max(self._starts[-1] - self.size.height, 0), animate=False,
                       immediate=True, force=True)  # fmt: skip

    def flush(self) -> None:
        """Bring the screen up to date with the transcript."""
        blocks, changed = self.transcript.blocks, self.transcript.changed
        if not changed and len(blocks) == len(self._heights):
            return
        first = min((*changed, len(self._heights), len(blocks)))
        if len(blocks) < len(self._heights):
            del self._heights[len(blocks) :]
        top = self.scroll_offset.y
        low, high = top, top + self.size.height
        dirty = sorted(at for at in changed if at < len(blocks))
        moved = 0
        same = 0
        old_starts = self._starts[: len(self._heights) + 1]
        while len(self._heights) < len(blocks):
            self._heights.append(0)
        for at in dirty:
            before = self._heights[at]
            near = self.following or at + 1 >= len(old_starts) or old_starts[at + 1] >= low
            block = blocks[at]
            lines = self.painter.block(block, self._room) if near else None
            height = len(lines) if lines is not None else self.painter.estimate(block, self._room)
            self._heights[at] = height
            if at == dirty[0] and lines is not None:
                same = _common(self._before.get(block.number, []), lines)
                self._before = {block.number: lines}
            if at + 1 < len(old_starts) and old_starts[at + 1] <= top:
                moved += height - before
        changed.clear()
        self._sum_from(min(first, len(self._heights)))
        self._resized()
        if self.following:
            end = max(self._starts[-1] - self.size.height, 0)
            if end != top:
                self._follow()
                self.refresh()
                return
        elif moved:
            self.scroll_to(y=top + moved, animate=False, immediate=True)
        start = self._starts[dirty[0]] + same if dirty else self._starts[-1]
        if start < high:
            line = max(start - self.scroll_offset.y, 0)
            self.refresh(Region(0, line, self.size.width, self.size.height - line))

    def _tick(self) -> None:
        """Draw the elapsed times anew."""
        for at in range(len(self._heights) - 1, max(len(self._heights) - 12, -1), -1):
            block = self.transcript.blocks[at]
            if block.live and block.kind in ("call", "reasoning"):
                y = self._starts[at] - self.scroll_offset.y
                if 0 <= y < self.size.height:
                    self.painter.block(block, self._room)
                    self.refresh(Region(0, y, self.size.width, 1))

    def _at(self, y: int) -> tuple[int, int]:
        """Which block a line belongs to, and which of its lines it is."""
        at = max(bisect_right(self._starts, y) - 1, 0)
        return at, y - self._starts[at]

    # --- drawing ---------------------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        """Some lines of the screen."""
        page = self.rich_style  # of all of them; it is worked out from all parents
        if (self.size.width, page) != (self._finished_for, self._page) or len(
            self._finished
        ) > KEPT:
            self._finished.clear()
        self._finished_for, self._page = self.size.width, page
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width = self.size.width
        line = y + self.scroll_offset.y
        at, within = self._at(line)
        blocks = self.transcript.blocks
        if at >= min(len(blocks), len(self._heights)):
            return Strip.blank(width, self._page)
        lines = self.painter.block(blocks[at], self._room)
        if len(lines) != self._heights[at]:
            self.call_later(self._correct, at, len(lines))
        strip = lines[within] if within < len(lines) else BLANK
        last = len(lines) - (lines[-1] is BLANK)
        chosen = at == self.selected and self.has_focus and within < last
        selection = self.text_selection
        span = selection.get_span(line) if selection is not None else None
        if self.needle or span is not None:
            if self.needle:
                strip = marked(strip, self.needle, self.painter.palette.found)
            strip = self._whole(strip, chosen)
            return (self._selected(strip, *span) if span else strip).apply_offsets(0, line)
        # Textual keeps with a strip what it makes of it, so the same one is given out again.
        key = (id(strip), chosen, line)
        if (kept := self._finished.get(key)) is None:
            finished = self._whole(strip, chosen).apply_offsets(0, line)
            kept = self._finished[key] = strip, finished
        return kept[1]

    def _whole(self, strip: Strip, chosen: bool) -> Strip:
        """A line of a block with its gutter, as wide as the screen."""
        width = self.size.width
        gutter = Segment("▌ " if chosen else "  ", self.painter.palette.accent)
        strip = Strip([gutter, *strip], GUTTER + strip.cell_length)
        return strip.extend_cell_length(width).crop(0, width).apply_style(self._page)

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        style = self.screen.get_component_rich_style("screen--selection")
        end = strip.cell_length if end == -1 else end
        parts = list(strip.divide([start, end, strip.cell_length]))
        if len(parts) < 2:
            return strip
        parts[1] = Strip([Segment(s.text, (s.style or Style()) + style) for s in parts[1]])
        return Strip.join(parts)

    def _correct(self, at: int, height: int) -> None:
        """A block turned out to be of another height than was estimated."""
        if at >= len(self._heights) or self._heights[at] == height:
            return
        above = self._starts[at + 1] <= self.scroll_offset.y
        moved = height - self._heights[at]
        self._heights[at] = height
        self._sum_from(at)
        self._resized()
        if self.following:
            self._follow()
        elif above:
            self.scroll_to(y=self.scroll_offset.y + moved, animate=False, immediate=True)
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The reader decides whether the end is followed."""
        super().watch_scroll_y(old_value, new_value)
        self.following = new_value >= self._starts[-1] - self.size.height - 1

    # --- copying ---------------------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected lines as they are shown, without the gutter."""
        first = selection.start.y if selection.start else 0
        last = selection.end.y if selection.end else self._starts[-1] - 1
        found: list[str] = []
        for line in range(first, min(last, self._starts[-1] - 1) + 1):
            at, within = self._at(line)
            lines = self.painter.block(self.transcript.blocks[at], self._room)
            text = " " * GUTTER + (lines[within].text if within < len(lines) else "")
            span = selection.get_span(line)
            if span is not None:
                start, end = span
                text = text[start:] if end == -1 else text[start:end]
                found.append(text.removeprefix(" " * max(GUTTER - start, 0)).rstrip())
        return "\n".join(found), "\n"

    # --- keys ------------------------------------------------------------------------------------

    def on_focus(self) -> None:
        """Begin at the last block that is on the screen."""
        if self.selected is None or self.selected >= len(self._heights):
            bottom = self.scroll_offset.y + self.size.height - 2
            self.selected = min(self._at(max(bottom, 0))[0], len(self._heights) - 1)
        self.refresh()

    def on_blur(self) -> None:
        """The mark goes."""
        self.refresh()

    def on_key(self, event: events.Key) -> None:
        """What is no command here is meant for the prompt."""
        bound = self.app.screen.active_bindings
        if event.is_printable and event.character and event.key not in bound:
            event.stop()
            self.post_message(self.Leave(event.character))

    def on_click(self, event: events.Click) -> None:
        """A click on the first line of a block unfolds it."""
        at, within = self._at(event.y + self.scroll_offset.y)
        if event.button == 1 and within == 0 and at < len(self._heights):
            self.selected = at
            self.action_unfold()

    def action_select(self, step: int) -> None:
        """Select the next block."""
        if not self._heights:
            return
        at = (self.selected if self.selected is not None else len(self._heights)) + step
        self.selected = min(max(at, 0), len(self._heights) - 1)
        self.reveal(self.selected)

    def reveal(self, at: int) -> None:
        """Scroll just so far that a block is seen."""
        start, end = self._starts[at], self._starts[at + 1]
        top, height = self.scroll_offset.y, self.size.height
        if start < top or end - start > height:
            self.scroll_to(y=start, animate=False, immediate=True)
        elif end > top + height:
            self.scroll_to(y=end - height, animate=False, immediate=True)
        self.refresh()

    def action_unfold(self) -> None:
        """Unfold or fold the selected block."""
        if self.selected is None or self.selected >= len(self.transcript.blocks):
            return
        block = self.transcript.blocks[self.selected]
        if block.kind in ("reasoning", "call"):
            self.following = False
            self.transcript.fold(self.selected, not block.open)
            self.flush()
            self.reveal(self.selected)

    def toggle_all(self) -> None:
        """Unfold all reasoning and calls, or fold all."""
        blocks = self.transcript.blocks
        foldable = [i for i, block in enumerate(blocks) if block.kind in ("reasoning", "call")]
        unfold = not any(blocks[i].open for i in foldable)
        for i in foldable:
            self.transcript.fold(i, unfold)
        self.flush()

    def action_copy_block(self) -> None:
        """Copy the selected block's text, unwrapped."""
        if self.selected is not None and self.selected < len(self.transcript.blocks):
            text = self.transcript.blocks[self.selected].searched
            self.app.copy_to_clipboard(text)
            self.notify(f"{len(text):,} characters copied", timeout=2)

    def action_edit(self) -> None:
        """Take the selected message of the user back to the prompt."""
        if self.selected is None or self.selected >= len(self.transcript.blocks):
            return
        block = self.transcript.blocks[self.selected]
        if block.kind == "user" and block.seq >= 0:
            self.post_message(self.Edit(block.seq, block.text))
        else:
            self.notify("Select one of your own messages to edit it.", timeout=3)

    def action_go_home(self) -> None:
        """To the start."""
        self.selected = 0
        self.scroll_to(y=0, animate=False)

    def action_go_end(self) -> None:
        """To the end, and stay there."""
        self.selected = len(self._heights) - 1
        self.following = True
        self._follow()
        self.refresh()

    def action_search(self) -> None:
        """Ask what to search for."""
        self.post_message(self.Search())

    def search(self, needle: str) -> None:
        """Mark a text everywhere and go to its last place."""
        self.needle = needle
        self.selected = None
        self.refresh()
        if needle:
            self.action_next_hit(-1)

    def action_next_hit(self, step: int) -> None:
        """To the next block that holds what is searched for; folded ones are unfolded."""
        if not self.needle:
            return
        blocks, wanted = self.transcript.blocks, self.needle.casefold()
        at = self.selected if self.selected is not None else len(blocks)
        at += step
        while 0 <= at < len(blocks):
            if wanted in blocks[at].searched.casefold():
                self.selected, self.following = at, False
                if blocks[at].kind in ("reasoning", "call") and not blocks[at].open:
                    self.transcript.fold(at, True)
                    self.flush()
                self.reveal(at)
                return
            at += step
        self.notify(f"No more of “{self.needle}” that way.", timeout=2, markup=False)


def _common(before: list[Strip], now: list[Strip]) -> int:
    """How many lines are the same from the start on: they need not be written again."""
    same = 0
    for old, new in zip(before, now, strict=False):
        if old is not new and old != new:
            break
        same += 1
    return same
