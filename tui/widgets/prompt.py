"""Where the user writes: several lines, history, completion, large pastes, images by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

LARGE_PASTE = 4000
"""Characters from which a paste stands as one mark in the prompt. It is sent whole."""


class Prompt(TextArea):
    """Enter sends; Shift+Enter, Alt+Enter and Ctrl+J begin a new line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "app.page(-1)", "Page up", show=False),
        Binding("pagedown", "app.page(1)", "Page down", show=False),
        Binding("ctrl+c", "clear_or_copy", "Clear", show=False, priority=True),
    ]

    class Sent(Message):
        """The user sent something; `text` holds the pastes whole."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Typed(Message):
        """The text changed: `word` is what may be completed."""

        def __init__(self, word: str) -> None:
            super().__init__()
            self.word = word

    class Steer(Message):
        """A key for the list of completions: `up`, `down`, `take`, `enter` or `close`.

        `word` is what stood at the cursor when it was pressed; the list may not be that far yet.
        """

        def __init__(self, key: str, word: str) -> None:
            super().__init__()
            self.key = key
            self.word = word

    class Leave(Message):
        """The user wants to go to the conversation."""

    class Tab(Message):
        """Tab, where there is nothing to complete."""

    class TakeBack(Message):
        """The user wants what is queued back."""

    def __init__(self, history: Sequence[str] = (), widget_id: str | None = None) -> None:
        super().__init__(soft_wrap=True, show_line_numbers=False, tab_behavior="focus",
                         highlight_cursor_line=False, id=widget_id)  # fmt: skip
        self.past = list(history)
        self.completing = False
        """Whether a list of completions is open."""
        self._at = len(self.past)
        self._draft = ""
        self._pastes: dict[str, str] = {}

    # --- text ------------------------------------------------------------------------------------

    @property
    def whole(self) -> str:
        """The text with the pastes in it."""
        text = self.text
        for mark, paste in self._pastes.items():
            text = text.replace(mark, paste)
        return text

    def put(self, text: str) -> None:
        """Replace the text; the cursor stands at its end."""
        if len(text) > LARGE_PASTE * 4:
            self.load_text("")
            self._paste(text)
            return
        self.load_text(text)
        self.move_cursor(self.document.end)

    def remember(self, text: str) -> None:
        """Keep what was sent."""
        if text.strip() and (not self.past or self.past[-1] != text):
            self.past.append(text)
        self._at, self._draft = len(self.past), ""

    def empty(self) -> None:
        """Begin anew."""
        self.load_text("")
        self._pastes.clear()
        self._at = len(self.past)

    @property
    def word(self) -> str:
        """What stands left of the cursor and may be completed: `/com`, `@path`."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if before.startswith("/") and row == 0 and " " not in before:
            return before
        at = before.rfind("@")
        if at >= 0 and " " not in before[at:] and (at == 0 or before[at - 1].isspace()):
            return before[at:]
        return ""

    def complete(self, replacement: str) -> None:
        """Put a completion in the place of `word`."""
        row, column = self.cursor_location
        start = column - len(self.word)
        self.replace(replacement, (row, start), (row, column))

    # --- keys ------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        key = event.key
        if self.completing and key in ("up", "down", "tab", "escape", "enter"):
            event.stop()
            event.prevent_default()
            meant = {"tab": "take", "escape": "close"}.get(key, key)
            self.post_message(self.Steer(meant, self.word))
            return
        if key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Sent(self.whole))
            return
        if key in ("shift+enter", "alt+enter", "ctrl+j", "ctrl+enter"):
            event.stop()
            event.prevent_default()
            self.insert("\n")
            return
        if key == "up" and self.cursor_location[0] == 0 and self._older():
            event.stop()
            event.prevent_default()
            return
        if key == "down" and self.cursor_at_last_line and self._newer():
            event.stop()
            event.prevent_default()
            return
        if key in ("shift+tab", "tab"):
            event.stop()
            event.prevent_default()
            self.post_message(self.Leave() if key == "shift+tab" else self.Tab())
            return
        await super()._on_key(event)

    def _older(self) -> bool:
        if not self.text:
            self.post_message(self.TakeBack())
        if self._at == 0 or (self.text and self._at == len(self.past) and self.text != self._draft):
            if self._at == 0:
                return False
            self._draft = self.whole
        self._at -= 1
        self.put(self.past[self._at])
        return True

    def _newer(self) -> bool:
        if self._at >= len(self.past):
            return False
        self._at += 1
        self.put(self.past[self._at] if self._at < len(self.past) else self._draft)
        return True

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) >= LARGE_PASTE:
            self._paste(text)
        else:
            self.insert(text)

    def _paste(self, text: str) -> None:
        number = len(self._pastes) + 1
        lines = text.count("\n") + 1
        mark = f"[paste {number}: {len(text):,} characters, {lines:,} lines]"
        self._pastes[mark] = text
        self.insert(mark)

    def on_text_area_changed(self) -> None:
        """Offer completions."""
        self.post_message(self.Typed(self.word))

    async def action_clear_or_copy(self) -> None:
        """Copy what is selected; else clear the prompt; on an empty one, ask to quit."""
        if selected := self.screen.get_selected_text() or self.selected_text:
            self.app.copy_to_clipboard(selected)
            self.notify("Copied", timeout=1.5)
        elif self.text:
            self._draft = ""
            self.empty()
        else:
            await self.app.run_action("ask_quit")
