"""What the model was told of the repository, and what of it others have changed since.

A `Watch` folds a session's log into what the model knows of each file, and compares that with the
disk before a request. Cheaply: a look takes the stat data of known files and their folders, and
reads only what differs. What the session's own calls wrote is known to be theirs and not told again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import cast

from .context import kinds
from .context.base import Told
from .context.changes import BY_OTHERS, change
from .context.errors import Stop, check, never
from .context.load import ABSENT, Load, Options
from .context.manifest import news
from .context.pack import unpack
from .context.plan import Candidate, Level
from .context.selection import LARGEST_FILE, Selection, consider, make_part, read_part
from .context.tokens import Counts, Estimate
from .context.walk import DELETED, GONE, IGNORED_BY_GIT, Left, Stamp, matcher, read_regular, walk
from .copies import Copy
from .events import AnyEvent, FilesChanged, PackSegment, RepositoryLoaded, ToolResult
from .undo import AFTER

TOO_MUCH = "changed, too much to show"
"""Reason: there is no room for a change."""

SMALL = 100
"""Paths of a small repository; to look at the stat data of one takes about 2 µs."""
_RACY = 50_000_000
"""Nanoseconds: what changed this shortly before a look may change again unseen by its stamp."""


class Watch:
    """Notices what others change.

    Args:
        root: of the repository.
        options: what the session loads of it.
        folder: where texts that later diffs start from are kept; made when it is needed.
        events: the log so far.
    """

    def __init__(
        self, root: Path, options: Options, folder: Path, events: Iterable[AnyEvent] = ()
    ) -> None:
        self._root = root
        self._options = options
        self._folder = folder
        self._excluded = matcher(options.exclude)
        self._counts = Counts(None, Estimate())
        self._told: dict[str, Told] = {}
        self._left: dict[str, str] = {}
        """What the model knows to be left out, with the reason."""
        self._ours: dict[str, str] = {}
        """Files as calls of this session left them: name -> digest."""
        self._segments: list[PackSegment | FilesChanged] = []
        self._stamps: dict[str, Stamp] = {}
        """Of files that were found to be as told."""
        self._folders = {""}
        """Those that hold a file the model was told of."""
        self._listed: dict[str, int] = {}
        """When each of them had last changed as the repository was listed, ns."""
        for event in events:
            self.add(event)

    def add(self, event: AnyEvent) -> None:
        """Take in the next event of the log."""
        match event:
            case RepositoryLoaded():
                self._left = {n: why for n, why in event.skipped.items() if why != DELETED}
            case PackSegment():
                self._segments.append(event)
                self._tell(event.files, event.text)
            case FilesChanged():
                self._segments.append(event)
                self._tell(event.files, event.text)
                self._left |= event.left
                for name in event.left:
                    self._told.pop(name, None)
                for name in (*event.files, *event.left):
                    self._ours.pop(name, None)
            case ToolResult():
                copies = cast("dict[str, str]", event.data.get(AFTER, {}))
                self._ours |= {n: Copy.parse(copy).digest or ABSENT for n, copy in copies.items()}
                self._ours |= event.seen
                # What a person let the model read once is not sent again unasked.
                self._tell({n: one for n, one in event.seen.items() if not self._excluded(n)})
            case _:
                pass

    def _tell(self, files: Mapping[str, str], text: str = "") -> None:
        told = {name: Told(Level.WHOLE, digest) for name, digest in files.items()}
        if "<outline" in text:
            told |= {
                part.name: Told(Level.OUTLINE, sha256(part.data).hexdigest())
                for part in unpack(text)
                if part.tag == "outline"
            }
        for name, one in told.items():
            self._told.pop(name, None)
            self._left.pop(name, None)
            if one.identity != ABSENT and name[0] != "/" and not kinds.never_sent(name):
                self._told[name] = one
                while (name := name.rpartition("/")[0]) not in self._folders:
                    self._folders.add(name)

    def trust(self, loaded: Load) -> None:
        """What was just loaded need not be read again unless it changes from here on."""
        self._stamps = {
            name: stamp
            for name, stamp in loaded.stamps.items()
            if stamp.changed < loaded.began - _RACY
        }
        self._mark_listed(self._times(), loaded.began)

    # --- looking -----------------------------------------------------------------------------

    @property
    def still(self) -> bool:
        """Whether a small repository is as it was at the last look; False for a larger one.

        Takes less than to hand a look to a thread.
        """
        if len(self._told) + len(self._folders) > SMALL:
            return False
        return not any(map(self._differs, self._told)) and not self._moved(self._times())

    def look(self, room: int, stop: Stop = never) -> FilesChanged | None:
        """What the model should be told before the next request, in at most `room` tokens or so.

        What it returns must be logged. Blocking: run it in a thread. Raises Cancelled.
        """
        began = time.time_ns()
        note = _Note(room, self._counts)
        for name in sorted(filter(self._differs, self._told)):
            check(stop)
            self._examine(name, note, began)
        times = self._times()
        if self._moved(times):
            self._list(note, stop)
            self._mark_listed(times, began)
        return note.event()

    def _differs(self, name: str) -> bool:
        try:
            return self._stamps.get(name) != Stamp.of(os.lstat(f"{self._root}/{name}"))
        except OSError:
            return True

    def _examine(self, name: str, note: _Note, began: int) -> None:
        """A known file whose stamp is not the one it had."""
        told, ours = self._told[name], self._ours.get(name)
        stamp = self._stamp(name)
        data = read_regular(f"{self._root}/{name}", LARGEST_FILE)
        if isinstance(data, str):
            if ours == ABSENT:
                del self._told[name]
            elif data == GONE:
                note.gone(name)
            else:
                note.leave(name, data)
            return
        digest = sha256(data).hexdigest()
        part = make_part(name, told.level, data)
        if ours == digest or part.identity == told.identity:
            if ours == part.identity == told.identity:
                self._keep(digest, data)
            if stamp is not None and stamp.changed < began - _RACY:
                self._stamps[name] = stamp
            return
        if (reason := kinds.unreadable(data)) is not None:
            note.leave(name, reason)
            return
        known = self._content(name, told.identity) if told.level is Level.WHOLE else None
        text = part.text if known is None else change(name, known, data)
        if not note.add(text, {name: digest} if told.level is Level.WHOLE else {}):
            note.leave(name, TOO_MUCH)
        elif told.level is Level.WHOLE:
            self._keep(digest, data)

    def _list(self, note: _Note, stop: Stop) -> None:
        """Look for names the model has not heard of, and for some that are there no more."""
        options = self._options
        include = [*options.include, *options.full]
        listing = walk(self._root, include=include, exclude=options.exclude,
                       submodules=options.submodules, stop=stop)  # fmt: skip
        made = {name for name, digest in self._ours.items() if digest != ABSENT}
        known = self._told.keys() | self._left.keys() | made
        selection = Selection()
        files = [file for file in listing.files if file.name not in known]
        for one in list(consider(files, options, selection, {}, stop)):
            check(stop)
            self._introduce(one, note)
        for name, reason in (*listing.left, *selection.skipped):
            if name not in known and reason not in (IGNORED_BY_GIT, DELETED):
                note.leave(name, reason)
        present = {file.name for file in listing.files} | {one.name for one in listing.left}
        for name in self._left.keys() - present:
            note.gone(name)

    def _introduce(self, one: Candidate, note: _Note) -> None:
        for level in (Level.WHOLE, Level.OUTLINE):
            if level < one.best or one.tokens(level) // 2 > note.room:
                continue
            part = read_part(self._root, one.name, level, self._options, self._counts)
            if isinstance(part, str):
                if part != GONE:
                    note.leave(one.name, part)
                return
            if note.add(part.text, {one.name: part.digest} if level is Level.WHOLE else {}):
                return
        note.leave(one.name, TOO_MUCH)

    def _stamp(self, name: str) -> Stamp | None:
        try:
            return Stamp.of(os.lstat(f"{self._root}/{name}"))
        except OSError:
            return None

    def _times(self) -> dict[str, int]:
        times: dict[str, int] = {}
        for folder in self._folders:
            with contextlib.suppress(OSError):
                times[folder] = os.lstat(f"{self._root}/{folder}").st_mtime_ns
        return times

    def _moved(self, times: Mapping[str, int]) -> bool:
        """Whether names may have come to a folder, or gone, since they were listed."""
        return any(self._listed.get(folder) != time for folder, time in times.items())

    def _mark_listed(self, times: Mapping[str, int], began: int) -> None:
        self._listed = {name: time for name, time in times.items() if time < began - _RACY}

    # --- texts that diffs start from -----------------------------------------------------------

    def _keep(self, digest: str, data: bytes) -> None:
        """Keep what no segment of the log holds; where that fails, a later diff is a whole file."""
        path = self._folder / digest
        with contextlib.suppress(OSError):
            if not path.exists():
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_bytes(data)

    def _content(self, name: str, digest: str) -> bytes | None:
        """The bytes of a file as the model knows it."""
        with contextlib.suppress(OSError):
            data = (self._folder / digest).read_bytes()
            if sha256(data).hexdigest() == digest:
                return data
        for segment in reversed(self._segments):
            if segment.files.get(name) == digest:
                for part in unpack(segment.text):
                    if part.name == name and sha256(part.data).hexdigest() == digest:
                        return part.data
        return None


class _Note:
    """What is to be told, as far as there is room."""

    def __init__(self, room: int, counts: Counts) -> None:
        self.room = room
        self._counts = counts
        self._texts: list[str] = []
        self._files: dict[str, str] = {}
        self._left: dict[str, str] = {}
        self._gone: list[str] = []

    def add(self, text: str, files: Mapping[str, str]) -> bool:
        """Tell something; false when there is no room for it."""
        tokens = self._counts.text(text)
        if tokens > self.room:
            return False
        self.room -= tokens
        self._texts.append(text)
        self._files |= files
        return True

    def leave(self, name: str, reason: str) -> None:
        """Tell that something is not shown, or not any more."""
        self._left[name] = reason

    def gone(self, name: str) -> None:
        """Tell that something is there no more."""
        self._gone.append(name)
        self._files[name] = ABSENT

    def event(self) -> FilesChanged | None:
        """All of it; None when it is nothing."""
        texts = self._texts
        if self._left or self._gone:
            left = [Left(name, reason) for name, reason in sorted(self._left.items())]
            texts = [*texts, news(left, sorted(self._gone))]
        if not texts:
            return None
        return FilesChanged(text="".join([BY_OTHERS, *texts]), files=self._files, left=self._left)
