"""Reading and replacing files: regular files only, no symlink followed, all or nothing.

A `Location` names a real path, so a symlink met on the way to it was put there since. Every open
here goes down from `/` one folder at a time and refuses symlinks, which closes that race.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import errno
import os
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ..agent.effects import Effect
from .base import Facts, Location, ToolError, digest

MAX_BYTES = 512 * 1024 * 1024
"""Larger files are refused: they do not fit in memory a few times over."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """A file as it was when it was read."""

    data: bytes
    stat: os.stat_result

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return digest(self.data)


# --- looking -----------------------------------------------------------------------------------


def read_file(where: Location, facts: Facts) -> Snapshot:
    """Bytes of a regular file. Raises ToolError for anything else, without blocking."""
    with _reasons(where, facts), _folder(where.path.parent) as folder:
        return _read(folder, where)


def read_if_exists(where: Location, facts: Facts) -> Snapshot | None:
    """Bytes of a regular file, None when nothing is there."""
    if not os.path.lexists(where.path):
        return None
    return read_file(where, facts)


def refuse_dangling(path: str, facts: Facts) -> None:
    """Raise ToolError when a part of a path is a symlink to nothing: writing would follow it."""
    full = facts.root / path
    for part in (full, *full.parents):
        if part.is_symlink() and not part.exists():
            raise ToolError(
                f"{path}: {part.name} is a symlink to {part.readlink()}, which does not exist. "
                f"Name the target itself if you mean to create it."
            )


def hold_to(granted: tuple[Effect, ...], now: tuple[Effect, ...]) -> None:
    """Raise ToolError when a call would no longer do what was decided on."""
    if granted and now != granted:
        raise ToolError("The file changed right after this was decided on; nothing was written.")


def _read(folder: int, where: Location) -> Snapshot:
    name = where.path.name or "."
    _refuse_special(where, os.stat(name, dir_fd=folder, follow_symlinks=False))
    descriptor = os.open(name, _FILE, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        _refuse_special(where, found)
        if found.st_size > MAX_BYTES:
            raise ToolError(
                f"{where.name} has {found.st_size:,} bytes, more than the {MAX_BYTES:,} that "
                f"can be held. Use `shell` with sed, head or tail on a part of it."
            )
        return Snapshot(file.read(), found)


def _refuse_special(where: Location, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise ToolError(f"{where.name} is a folder: use `list` to see what is in it.")
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFLNK: "a symlink that changed just now",
    }
    kind = kinds.get(stat.S_IFMT(found.st_mode), "no regular file")
    raise ToolError(f"{where.name} is {kind}, not a regular file, and is left alone.")


@contextlib.contextmanager
def _folder(path: Path) -> Generator[int]:
    """Descriptor of a folder given by its real path, reached without following a symlink."""
    descriptor = os.open(path.anchor, _PASS)
    try:
        for part in path.parts[1:]:
            below = os.open(part, _PASS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reasons(where: Location, facts: Facts) -> Generator[None]:
    """Turn the system's errors into words for the model."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise ToolError(_missing(where, facts)) from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ToolError(
                f"{where.name}: a part of this path is not a folder, or became a symlink just now."
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ToolError(f"{where.name}: the disk is full; nothing was changed.") from error
        raise ToolError(f"{where.name}: {error.strerror or error}.") from error


def _missing(where: Location, facts: Facts) -> str:
    text = f"{where.name} does not exist."
    if not where.inside:
        return text
    parent = where.path.parent
    while not parent.is_dir():
        parent = parent.parent
    wanted = where.path.relative_to(parent).parts[0]
    with contextlib.suppress(OSError):
        near = difflib.get_close_matches(wanted, sorted(os.listdir(parent)), n=3)  # noqa: PTH208
        if near:
            names = ", ".join((parent / name).relative_to(facts.root).as_posix() for name in near)
            return f"{text} Nearest: {names}."
    shown = parent.relative_to(facts.root).as_posix()
    return f"{text} Use `list` on {shown} to see what is there."


# --- changing ----------------------------------------------------------------------------------


def refuse_read_only(where: Location, found: os.stat_result) -> None:
    """Raise ToolError for a file without any write permission, whoever runs this."""
    if not found.st_mode & 0o222 or not os.access(where.path, os.W_OK):
        raise ToolError(
            f"{where.name} is read-only (mode {stat.S_IMODE(found.st_mode):o}). It was not "
            f"changed; ask the user before making it writable."
        )


def replace_file(
    where: Location,
    facts: Facts,
    was: Snapshot,
    pieces: Iterable[bytes | memoryview],
    stop: threading.Event,
) -> None:
    """Put new bytes in a file's place, in one step, if it still is what `was` says.

    Mode, owner and extended attributes are kept where the system allows it. A hard link is
    broken: this name gets the new bytes, the others keep the old. Raises ToolError, the file
    untouched, when it changed, when the disk is full, or when `stop` was set.
    """

    def publish(folder: int, temporary: str) -> None:
        now = _read(folder, where)
        same = (now.stat.st_dev, now.stat.st_ino) == (was.stat.st_dev, was.stat.st_ino)
        if not same or now.data != was.data:
            raise ToolError(
                f"{where.name} changed while it was being edited; nothing was written. "
                f"Read it again."
            )
        os.replace(temporary, where.path.name, src_dir_fd=folder, dst_dir_fd=folder)

    with _reasons(where, facts), _folder(where.path.parent) as folder:
        _write_beside(folder, pieces, (where.path.name, was), stop, publish)


def create_file(
    where: Location, facts: Facts, pieces: Iterable[bytes | memoryview], stop: threading.Event
) -> None:
    """Make a new file and the folders above it. Raises ToolError when the name is taken."""

    def publish(folder: int, temporary: str) -> None:
        name = where.path.name
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError as error:
            raise ToolError(
                f"{where.name} was created by something else just now; nothing was written. "
                f"Read it first."
            ) from error
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP):
                raise
            # A file system without hard links: a rename is the next best thing.
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.unlink(temporary, dir_fd=folder)

    with _reasons(where, facts):
        _make_folders(where.path.parent)
        with _folder(where.path.parent) as folder:
            _write_beside(folder, pieces, None, stop, publish)


def _make_folders(path: Path) -> None:
    descriptor = os.open(path.anchor, _PASS)
    try:
        for part in path.parts[1:]:
            try:
                below = os.open(part, _PASS, dir_fd=descriptor)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
                below = os.open(part, _PASS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)


def _write_beside(
    folder: int,
    pieces: Iterable[bytes | memoryview],
    was: tuple[str, Snapshot] | None,
    stop: threading.Event,
    publish: Callable[[int, str], None],
) -> None:
    """Write a temporary file in `folder`, flushed to the disk, and have it put in place."""
    temporary = f".unabridged-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600 if was else 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            if was:
                _keep_attributes(descriptor, folder, *was)
            os.fsync(descriptor)
        if stop.is_set():
            raise ToolError("Interrupted before anything was written.")
        publish(folder, temporary)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    _sync(folder)


def _keep_attributes(descriptor: int, folder: int, name: str, was: Snapshot) -> None:
    """Owner before mode, since a change of owner clears set-user-id."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (was.stat.st_uid, was.stat.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, was.stat.st_uid, was.stat.st_gid)
    if sys.platform == "linux":  # access control lists are extended attributes there
        original = os.open(name, _FILE, dir_fd=folder)
        try:
            for attribute in os.listxattr(original):
                with contextlib.suppress(OSError):
                    os.setxattr(descriptor, attribute, os.getxattr(original, attribute))
        except OSError:
            pass  # the file system has none
        finally:
            os.close(original)
    os.fchmod(descriptor, stat.S_IMODE(was.stat.st_mode))


def _sync(folder: int) -> None:
    """Flush a folder's entries to the disk, where the folder can be opened for reading."""
    with contextlib.suppress(OSError):
        readable = os.open(".", _FOLDER, dir_fd=folder)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


async def in_thread(function: Callable[[threading.Event], T]) -> T:
    """Run blocking work in a thread; when cancelled, tell it to stop and wait until it has."""
    stop = threading.Event()
    work = asyncio.create_task(asyncio.to_thread(function, stop))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # its outcome is told by the files, not by this call
        raise
