"""Names of the repository's files, for completion. Listing and searching never block the screen."""

from __future__ import annotations

import heapq
import os
import threading
import time
from pathlib import Path

from ..agent.context.errors import ContextError
from ..agent.context.git import outputs

MOST = 50
PATIENCE = 0.25
"""Seconds that one search may take; what was found by then is shown."""
LARGEST_WALK = 200_000
"""Names listed of a folder that is no git repository."""


class FileIndex:
    """The names, listed in a thread when asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: list[str] = []
        self._folded: list[str] = []
        self._ready = threading.Event()

    def refresh(self) -> None:
        """List anew, in the background."""
        threading.Thread(target=self._list, daemon=True, name="list files").start()

    def _list(self) -> None:
        try:
            command = ["ls-files", "-co", "--exclude-standard", "-z"]
            (listed,) = outputs(self.root, command)
        except (ContextError, OSError):
            listed = None
        if listed is not None:
            names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        else:
            names = self._walk()
        self._names, self._folded = names, [name.casefold() for name in names]
        self._ready.set()

    def _walk(self) -> list[str]:
        found: list[str] = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            base = os.path.relpath(folder, self.root)
            found += [name if base == "." else f"{base}/{name}" for name in files]
            if len(found) > LARGEST_WALK:
                break
        return found

    def find(self, needle: str) -> list[str]:
        """The names that fit best: all letters in order, the closer together the better."""
        self._ready.wait(2)
        wanted, names, folded = needle.casefold(), self._names, self._folded
        if not wanted:
            return sorted(names[:2000], key=lambda name: (name.count("/"), name))[:MOST]
        until = time.monotonic() + PATIENCE
        scored: list[tuple[int, int, str]] = []
        for at, name in enumerate(folded):
            if at % 4096 == 4095 and time.monotonic() > until:
                break
            score = rank(wanted, name)
            if score is not None:
                scored.append((score, len(name), names[at]))
        return [name for _, _, name in heapq.nsmallest(MOST, scored)]


def rank(needle: str, name: str) -> int | None:
    """How well a name fits, the lower the better; None where letters are missing."""
    base = name.rfind("/") + 1
    at = name.find(needle, base)
    if at >= 0:
        return at - base
    at = name.find(needle)
    if at >= 0:
        return 100 + at
    position = gaps = 0
    last = -1
    for letter in needle:
        position = name.find(letter, position)
        if position < 0:
            return None
        gaps += position - last - 1
        last, position = position, position + 1
    return 1000 + gaps
