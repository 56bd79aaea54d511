"""The frozen base of a repository and the differences appended to it, kept between sessions.

A base is never edited. What changed since is appended, section by section, so that the messages
of the next session begin with exactly those of the last. The store is a folder for each
repository, set of options and way of counting; its files are named by their SHA-256. Everything in
it can be deleted or damaged at any time: then the base is built anew, as on a fresh clone.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from .pack import unpack
from .plan import Level

_VERSION = 1
_STATE = "base.json"
_LOCK = "lock"
_PATIENCE = 20.0
"""Seconds to wait for another process; after that the base is done without."""
_MOST_BASES = 40


@dataclass(frozen=True)
class Segment:
    """One user message."""

    text: str
    files: dict[str, str]
    """Files known whole after it: name -> SHA-256 of their bytes, `absent` if deleted."""
    tokens: int = 0


class Told(NamedTuple):
    """What the model has of a file."""

    level: Level
    identity: str
    """SHA-256 of the file's bytes, or of its outline's text."""


@dataclass(frozen=True)
class Base:
    """What the model of an earlier session was told."""

    segments: tuple[Segment, ...]
    """The frozen part."""
    appended: tuple[Segment, ...]
    """Differences since, oldest first."""
    frozen: Mapping[str, Told]
    """Files of the frozen part, in their order."""
    told: Mapping[str, Told]
    """Files of all parts, as last told."""
    left: Mapping[str, str]
    """What was said to be left out, name -> reason."""

    @property
    def messages(self) -> tuple[Segment, ...]:
        """All of it, in the order of sending."""
        return self.segments + self.appended


class Store:
    """One repository's base on disk. `Store(None, …)` keeps nothing."""

    def __init__(self, cache: Path | None, *identity: object) -> None:
        key = sha256(json.dumps([_VERSION, *identity], default=str).encode()).hexdigest()[:32]
        self._bases = cache / "bases" if cache else None
        self._folder = self._bases / key if self._bases else None

    def read(self) -> Base | None:
        """The base, or None if there is none or any of it is missing or damaged."""
        if self._folder is None or not self._folder.is_dir():
            return None
        try:
            with self._locked():
                return self._read(self._folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _read(self, folder: Path) -> Base:
        state = json.loads((folder / _STATE).read_bytes())
        base = Base(
            segments=tuple(map(self._segment, state["segments"])),
            appended=tuple(map(self._segment, state["appended"])),
            frozen=_told(state["frozen"]),
            told=_told(state["told"]),
            left=state["left"],
        )
        os.utime(folder)  # bases not used for long are the first to go
        return base

    def write(self, base: Base, contents: Mapping[str, bytes]) -> None:
        """Keep `base`, and the contents (digest -> bytes) later diffs start from.

        Complete or not at all; a store that cannot be written is done without.
        """
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._locked():
                self._replace(base, contents)

    def _replace(self, base: Base, contents: Mapping[str, bytes]) -> None:
        segments = [self._kept(segment) for segment in base.segments]
        appended = [self._kept(segment) for segment in base.appended]
        state = {
            "segments": segments,
            "appended": appended,
            "frozen": base.frozen,
            "told": base.told,
            "left": base.left,
        }
        for digest, data in contents.items():
            self._write(digest, data)
        self._write(_STATE, json.dumps(state).encode())
        named = {one["text"] for one in (*segments, *appended)}
        self._prune(named | {told.identity for told in base.told.values()})

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """Alone among the processes that use this base; OSError when another one hangs."""
        from filelock import FileLock

        assert self._folder is not None
        with FileLock(self._folder / _LOCK, timeout=_PATIENCE):
            yield

    def content(self, base: Base, name: str) -> bytes | None:
        """The bytes of a file as the model last knew them; None when they are lost."""
        digest = base.told[name].identity
        if self._folder is not None:
            with contextlib.suppress(OSError):
                data = (self._folder / digest).read_bytes()
                if sha256(data).hexdigest() == digest:
                    return data
        for segment in base.messages:
            if segment.files.get(name) == digest:
                for part in unpack(segment.text):
                    if (part.tag, part.name) == ("file", name):
                        return part.data
        return None

    def _segment(self, state: Any) -> Segment:
        assert self._folder is not None
        data = (self._folder / state["text"]).read_bytes()
        if sha256(data).hexdigest() != state["text"]:
            raise ValueError("damaged segment")
        return Segment(data.decode(), dict(state["files"]), int(state["tokens"]))

    def _kept(self, segment: Segment) -> dict[str, Any]:
        data = segment.text.encode()
        digest = sha256(data).hexdigest()
        self._write(digest, data)
        return {"text": digest, "files": segment.files, "tokens": segment.tokens}

    def _write(self, name: str, data: bytes) -> None:
        assert self._folder is not None
        path = self._folder / name
        with contextlib.suppress(OSError):
            if path.read_bytes() == data:
                return
        descriptor, temporary = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _prune(self, used: Iterable[str]) -> None:
        """Delete what no state names any more, and the bases not used for longest."""
        assert self._folder is not None
        assert self._bases is not None
        keep = {_STATE, _LOCK, *used}
        for path in self._folder.iterdir():
            if path.name not in keep:
                path.unlink(missing_ok=True)
        others = sorted(self._bases.iterdir(), key=lambda path: -path.stat().st_mtime)
        for folder in others[_MOST_BASES:]:
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
            folder.rmdir()


def _told(state: Mapping[str, Any]) -> dict[str, Told]:
    return {name: Told(Level(level), str(identity)) for name, (level, identity) in state.items()}
