"""The prefix contract: what an endpoint caches, block by block, and the first block that breaks it.

An endpoint finds the beginning of a request cached when endpoint, model, effort, system text, tools
and messages are those of a request before. `Meter` folds a log and says before a request which of
them is the first to differ: from the request before, or, for the first request of a session, from
the last session in the same repository.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from .events import (
    AnyEvent,
    Elided,
    PackSegment,
    PrefixChanged,
    Preload,
    RequestSent,
    RunStarted,
    SystemMessage,
)

_MOST_KEPT = 500
"""Repositories whose last prefix is remembered."""


@dataclass(frozen=True)
class Prefix:
    """What the first request of a session begins with; texts by their SHA-256."""

    endpoint: str = ""
    model: str = ""
    effort: str = ""
    system: str = ""
    tools: str = ""
    segments: tuple[str, ...] = ()


def first_difference(before: Prefix, now: Prefix) -> str | None:
    """The first block of `before` that `now` does not repeat; None when it repeats all of it."""
    for block in ("endpoint", "model", "effort", "system", "tools"):
        if getattr(before, block) != getattr(now, block):
            return block
    for number, segment in enumerate(before.segments):
        if segment not in now.segments[number : number + 1]:
            return f"pack segment {number + 1}"
    return None


class Meter:
    """Watches the prefix of one session."""

    def __init__(self, events: Iterable[AnyEvent] = (), earlier: Prefix | None = None) -> None:
        self.prefix = Prefix()
        """Of this session, as far as the log goes."""
        self._before = earlier
        """What an endpoint may have cached, of this session once it has sent something."""
        self._since = "the last session here"
        self._elided: int | None = None
        """`seq` of the first message left out since the last request."""
        for event in events:
            self.add(event)

    def add(self, event: AnyEvent) -> None:
        """Take in the next event of the log."""
        match event:
            case SystemMessage():
                tools = _digest(json.dumps(event.tools, sort_keys=True))
                self.prefix = replace(self.prefix, system=_digest(event.text), tools=tools)
            case PackSegment():
                segments = (*self.prefix.segments, _digest(event.text))
                self.prefix = replace(self.prefix, segments=segments)
            case RunStarted():
                self.prefix = replace(
                    self.prefix, endpoint=event.endpoint, model=event.model, effort=event.effort
                )
            case Elided():
                self._elided = min(event.message, self._elided or event.message)
            case RequestSent() | Preload():
                self._before, self._since = self.prefix, "the request before"
                self._elided = None
            case _:
                pass

    def change(self, seqs: Iterable[int]) -> PrefixChanged | None:
        """What the next request breaks; `seqs` are those of its messages."""
        block = None if self._before is None else first_difference(self._before, self.prefix)
        if block is None and self._elided is not None:
            block = f"message {1 + sum(seq < self._elided for seq in seqs)}"
        return None if block is None else PrefixChanged(block=block, since=self._since)


# --- between sessions ----------------------------------------------------------------------------


def read_prefix(cache: Path | None, root: Path) -> Prefix | None:
    """Of the last session in a repository; None when nothing is known."""
    if cache is None:
        return None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        kept = json.loads(_file(cache, root).read_bytes())
        segments = tuple(map(str, kept.pop("segments")))
        return Prefix(**kept, segments=segments)
    return None


def write_prefix(cache: Path | None, root: Path, prefix: Prefix) -> None:
    """Keep it for the next session; one that cannot be kept is done without."""
    if cache is None:
        return
    with contextlib.suppress(OSError):
        path = _file(cache, root)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(json.dumps(asdict(prefix)).encode())
        fresh.replace(path)
        kept = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime_ns)
        for old in kept[:-_MOST_KEPT]:
            old.unlink()


def _file(cache: Path, root: Path) -> Path:
    return cache / "prefixes" / f"{_digest(str(root))[:32]}.json"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
