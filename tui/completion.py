"""Completion in the prompt: commands by their names, files by parts of their paths."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from .commands import COMMANDS
from .files import FileIndex
from .widgets.prompt import Prompt
from .widgets.suggestions import Suggestions

if TYPE_CHECKING:
    from .app import UnabridgedApp


class Completion:
    """Offers what the word at the cursor may become."""

    def __init__(self, app: UnabridgedApp, files: FileIndex) -> None:
        self._app = app
        self._files = files
        self._word = ""
        """What the list is for."""

    @property
    def _list(self) -> Suggestions:
        return self._app.suggestions

    @property
    def open(self) -> bool:
        """Whether a list is shown."""
        return self._list.display

    def typed(self, word: str) -> None:
        """The word at the cursor is another."""
        if word != self._app.prompt.word:
            return  # and by now yet another
        if word.startswith("/"):
            found = [(f"/{name}", command.line) for name, command in COMMANDS.items()
                     if name.startswith(word[1:])]  # fmt: skip
            self._offer(word, [] if [name for name, _ in found] == [word] else found)
        elif word.startswith("@"):
            self._app.run_worker(partial(self._find, word[1:]), group="complete", exclusive=True)
        else:
            self.close()

    async def _find(self, needle: str) -> None:
        names = await asyncio.to_thread(self._files.find, needle)
        if self._app.prompt.word == f"@{needle}":
            self._offer(f"@{needle}", [(f"@{name}", "") for name in names])

    def _offer(self, word: str, entries: list[tuple[str, str]]) -> None:
        self._word = word
        self._list.offer(entries)
        self._app.prompt.completing = bool(entries)

    def close(self) -> None:
        """Offer nothing."""
        self._offer("", [])

    def steer(self, key: str, word: str) -> None:
        """A key of the prompt that is meant for the list of this word."""
        prompt = self._app.prompt
        if key in ("take", "enter") and word != self._word:  # who types fast means what they typed
            self._app.run_worker(partial(self._catch_up, key, word), group="steer", exclusive=True)
            return
        match key:
            case "up" | "down":
                self._list.move(1 if key == "down" else -1)
            case "close":
                self.close()
            case _:
                taken = self._list.marked
                exact = taken == word
                self.close()
                if taken is not None and not exact:
                    prompt.complete(f"{taken} ")
                if taken is not None and taken.startswith("/") and key == "enter":
                    prompt.post_message(Prompt.Sent(taken))

    async def _catch_up(self, key: str, word: str) -> None:
        """List what the word may become, then do what the key says."""
        if word.startswith("@"):
            await self._find(word[1:])
        else:
            self.typed(word)
        if self.open and self._word == word:
            self.steer(key, word)
        elif key == "enter":
            self._app.prompt.post_message(Prompt.Sent(self._app.prompt.whole))
