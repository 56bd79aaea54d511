"""The log on disk: one JSONL file per session, one writer, nothing lost.

An event is one write of one line. A reply of the model is flushed to the disk before any of its
calls starts. A line torn by a crash or a full disk is cut when the log is next opened, and its
bytes are kept in a `log_repaired` event.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from filelock import FileLock, Timeout

from .events import (
    SCHEMA_VERSION,
    AnyEvent,
    AssistantMessage,
    LogRepaired,
    SessionStarted,
    from_line,
    to_line,
)

SUFFIX = ".jsonl"

E = TypeVar("E", bound=AnyEvent)


class StoreError(Exception):
    """The log cannot be written or read; the text is one line for a person."""


class SessionInUseError(StoreError):
    """Another process is writing this session."""


class UnknownSessionError(StoreError):
    """There is no such session."""


def new_session_id() -> str:
    """Sortable by time, unique, easy to type."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


class Store:
    """The open log of one session. Create with `create` or `open`; close when done."""

    def __init__(self, path: Path, lock: FileLock, fd: int, events: list[AnyEvent]) -> None:
        self.path = path
        self.events = events
        self._lock = lock
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._chain = next(
            (e.hash for e in reversed(events) if isinstance(e, AssistantMessage)), ""
        )

    @classmethod
    def create(cls, folder: Path, session: str) -> Store:
        """Start a new log. Raises StoreError when the folder cannot be written."""
        path = folder / (session + SUFFIX)
        with _explained(path):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _lock(path)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            except OSError:
                lock.release()
                raise
        return cls(path, lock, fd, [])

    @classmethod
    def open(cls, folder: Path, session: str) -> Store:
        """Open a log to go on with it; cut and report a torn tail.

        Raises UnknownSessionError, SessionInUseError, or StoreError when the log is damaged elsewhere than
        at its end.
        """
        path = find(folder, session)
        with _explained(path):
            lock = _lock(path)
            try:
                data = path.read_bytes()
                events, torn = parse(data, path)
                fd = os.open(path, os.O_RDWR | os.O_APPEND)
                if torn:
                    os.ftruncate(fd, len(data) - len(torn))
            except BaseException:
                lock.release()
                raise
        store = cls(path, lock, fd, events)
        if torn:
            repaired = LogRepaired(lost_bytes=len(torn), torn=torn.decode("latin-1"))
            store.append(repaired, sync=True)
        return store

    @property
    def session(self) -> str:
        """The session's id."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def files(self) -> Path:
        """Folder for whole outputs and copies of files; made on first use."""
        folder = self.path.with_suffix(".files")
        with _explained(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def append(self, event: E, *, sync: bool = False) -> E:
        """Write one event, numbered and dated; return it as written.

        Assistant messages are linked to the one before and always flushed. Raises StoreError when
        the disk is full or the log cannot be written; then the log is as it was before.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        update: dict[str, object] = {"seq": len(self.events), "at": now}
        if isinstance(event, AssistantMessage):
            linked = event.chained(self._chain)
            update |= {"previous": linked.previous, "hash": linked.hash}
            sync = True
        event = event.model_copy(update=update)
        line = to_line(event)
        with _explained(self.path):
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._fd, line[written:])
                if sync:
                    _flush(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line)
        self.events.append(event)
        if isinstance(event, AssistantMessage):
            self._chain = event.hash
        return event

    def close(self) -> None:
        """Flush and let go of the log."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._lock.release()

    def discard(self) -> None:
        """Close a log that never came to be used, and leave nothing of it."""
        self.close()
        for suffix in (SUFFIX, ".lock"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.with_suffix(".files").rmdir()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def find(folder: Path, session: str) -> Path:
    """The log of a session given by its id, an unambiguous start of it, or `last`."""
    logs = sorted(folder.glob("*" + SUFFIX)) if folder.is_dir() else []
    if session == "last" and logs:
        return max(logs, key=lambda log: (log.stat().st_mtime_ns, log.name))
    exact = [log for log in logs if log.name == session + SUFFIX]
    matches = exact or [log for log in logs if session and log.name.startswith(session)]
    if not matches:
        raise UnknownSessionError(f"no session {session!r} in {folder}.")
    if len(matches) > 1:
        names = ", ".join(log.name.removesuffix(SUFFIX) for log in matches[:5])
        raise UnknownSessionError(f"{session!r} could be any of {names}: give more of the id.")
    return matches[0]


def read(path: Path) -> list[AnyEvent]:
    """The events of a log, without locking it and without a torn tail."""
    with _explained(path):
        return parse(path.read_bytes(), path)[0]


def parse(data: bytes, path: Path) -> tuple[list[AnyEvent], bytes]:
    """Split a log into its events and the torn bytes at its end (empty when it is whole).

    Raises StoreError where the log is damaged before its end, comes from a newer version, or
    holds an assistant message that was changed after it was written.
    """
    events: list[AnyEvent] = []
    chain = ""
    lines = data.split(b"\n")
    tail = lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            event = from_line(line)
        except ValueError as error:
            if number == len(lines) and not tail:
                # A crash can leave a whole line of garbage (a hole in the file) at the very end.
                return events, line + b"\n"
            raise StoreError(_unreadable(path, number, events, line)) from error
        if event.seq != len(events):
            raise StoreError(
                f"{path}, line {number}: event {event.seq} where {len(events)} belongs; "
                "the log was edited or lines are missing. Restore it from a copy."
            )
        if isinstance(event, AssistantMessage):
            if event.previous != chain or event.hash != event.compute_hash():
                raise StoreError(
                    f"{path}, line {number}: the model's message does not match its hash; "
                    "the log was edited. Restore it from a copy."
                )
            chain = event.hash
        events.append(event)
    return events, tail


def _unreadable(path: Path, number: int, events: list[AnyEvent], line: bytes) -> str:
    first = events[0] if events else None
    newer = isinstance(first, SessionStarted) and first.schema_version > SCHEMA_VERSION
    if newer or (not events and b'"schema_version"' in line):
        return f"{path} was written by a newer version of Unabridged: update to read it."
    return f"{path}, line {number} is damaged. Restore it from a copy, or remove that session."


_flush = getattr(os, "fdatasync", os.fsync)
"""To the disk, without the times of the file; macOS has only the one that writes these as well."""


def _lock(path: Path) -> FileLock:
    # A session may be opened in one thread and closed in another. A moment's patience: a child that
    # a killed process had just forked holds the lock until it has become another program.
    lock = FileLock(path.with_suffix(".lock"), timeout=1, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise SessionInUseError(
            f"session {path.name.removesuffix(SUFFIX)} is in use by another process."
        ) from error
    return lock


@contextlib.contextmanager
def _explained(path: Path) -> Generator[None]:
    """Turn an OSError into one line that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        import errno

        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space, then go on with --resume"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            hint = "choose a folder you can write to with --sessions-dir"
        else:
            hint = "check the disk, or choose another folder with --sessions-dir"
        reason = error.strerror or type(error).__name__
        raise StoreError(f"{error.filename or path}: {reason}; {hint}.") from error
