"""Content-addressed copies of what lies at a path, and a look at a whole tree by its stat data.

A `Copy` says what was at a path: nothing, a file with its mode and digest, a link, a folder. The
bytes behind a digest are kept once, under the session's folder; what is too large is not kept, and
its `Copy` still tells whether it changed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .context.errors import Stop, never

FILE_CAP = 64 << 20
"""Bytes of the largest file whose copy is kept when a call names it."""
CALL_CAP = 512 << 20
"""Bytes of copies taken for one call."""
SCAN_FILE_CAP = 8 << 20
SCAN_CAP = 64 << 20
"""The same for a scan around a command that may touch anything."""
SCAN_ENTRIES = 50_000
"""Paths a scan looks at; it says when there are more."""

_CHUNK = 1 << 20
_RACY = 50_000_000
"""Nanoseconds: a file changed this shortly before a look may change again unseen by its stat."""

_LATER = frozenset(
    {
        "node_modules", ".venv", "venv", "target", "build", "dist", "__pycache__", ".tox", ".nox",
        ".mypy_cache", ".pytest_cache", ".ruff_cache", ".gradle", "vendor", ".next", ".cache",
    }
)  # fmt: skip
"""Folders looked at last: large, and made again by tools."""
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Also where a folder on the way has become a link that leads to itself."""
_GIT_STORES = frozenset({"objects", "lfs"})
"""Of a `.git` folder: only ever added to, so that old references stay good."""

Kind = Literal["absent", "file", "link", "folder", "other"]


@dataclass(frozen=True)
class Copy:
    """What was at a path. Equal copies mean that nothing changed there."""

    kind: Kind
    mode: int = 0
    """Permission bits, of files and folders."""
    digest: str = ""
    """SHA-256 of a file's bytes or a link's target; of a file too large to read: its stat data."""

    def __str__(self) -> str:
        """As the log holds it."""
        if self.kind == "absent":
            return self.kind
        return f"{self.kind}:{self.mode:o}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Copy:
        """Read it back. Raises ValueError when it is none."""
        if text == "absent":
            return ABSENT
        kind, mode, digest = text.split(":", 2)
        if kind not in ("file", "link", "folder", "other"):
            raise ValueError(f"not a copy: {text!r}")
        return cls(kind, int(mode, 8), digest)


ABSENT = Copy("absent")


@dataclass
class Snapshot:
    """What a scan saw."""

    began: int
    """Nanoseconds since the epoch."""
    entries: dict[str, tuple[_Signature, Copy]] = field(
        default_factory=dict[str, "tuple[_Signature, Copy]"]
    )
    complete: bool = True
    """Whether it saw everything; otherwise there is more than it looks at."""


@dataclass(frozen=True)
class Change:
    """A path that differs between two scans."""

    name: str
    before: Copy
    after: Copy


class Copies:
    """Takes, keeps and gives copies, for one repository and one session."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self._kept = folder / "copies"
        self._scanned = folder / "scan"
        """Copies taken by scans; those of paths that then change move to the kept ones."""
        self._last = Snapshot(0)
        own = folder.with_suffix("")
        self._own = own.relative_to(root).as_posix() if own.is_relative_to(root) else None
        """How the names of the session's own files begin, where they lie in the repository."""

    # --- one path ----------------------------------------------------------------------------

    def look(self, name: str) -> Copy:
        """What is at a path now; nothing is kept."""
        return self._copy(self.root / name, None, FILE_CAP)[0]

    def take(self, names: Iterable[str]) -> dict[str, Copy]:
        """Keep what is at these paths, and below those that are folders. Name -> copy."""
        taken: dict[str, Copy] = {}
        left = CALL_CAP
        for name in names:
            for each in self._below(name):
                cap = min(FILE_CAP, left)
                taken[each], size = self._copy(self.root / each, self._kept, cap)
                left -= size
        return taken

    def read(self, copy: Copy) -> bytes | None:
        """The bytes of a file or the target of a link; None when they were not kept."""
        path = self._find(copy)
        return None if path is None else path.read_bytes()

    def has(self, copy: Copy) -> bool:
        """Whether a path can be put back to this."""
        return copy.kind in ("absent", "folder") or self._find(copy) is not None

    def _find(self, copy: Copy) -> Path | None:
        if copy.kind not in ("file", "link"):
            return None
        for folder in (self._kept, self._scanned):
            if (path := folder / copy.digest).is_file():
                return path
        return None

    def _copy(self, path: Path, keep: Path | None, cap: int) -> tuple[Copy, int]:
        """(what is at a path, bytes copied); its bytes are kept in `keep` up to `cap` of them."""
        try:
            found = path.lstat()
        except OSError as error:
            if error.errno in _NOTHING_THERE:
                return ABSENT, 0
            raise
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            return Copy("folder", mode), 0
        if stat.S_ISLNK(found.st_mode):
            target = os.fsencode(path.readlink())
            if keep is not None:
                self._store(keep, target)
            return Copy("link", 0, hashlib.sha256(target).hexdigest()), len(target)
        if not stat.S_ISREG(found.st_mode):
            return Copy("other", mode), 0
        try:
            if found.st_size <= cap:
                digest = _hash(path) if keep is None else self._store_file(keep, path)
                return Copy("file", mode, digest), 0 if keep is None else found.st_size
        except FileNotFoundError:
            return ABSENT, 0
        except PermissionError:
            pass  # not ours to read, hence not to put back either
        return Copy("file", mode, f"stat-{found.st_size}-{found.st_mtime_ns}"), 0

    def _store(self, folder: Path, data: bytes) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / hashlib.sha256(data).hexdigest()
        if not path.exists():
            with _temporary(folder) as (file, temporary):
                file.write(data)
                file.flush()
                temporary.replace(path)

    def _store_file(self, folder: Path, source: Path) -> str:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        hashed = hashlib.sha256()
        with _temporary(folder) as (file, temporary), source.open("rb") as reading:
            while chunk := reading.read(_CHUNK):
                hashed.update(chunk)
                file.write(chunk)
            file.flush()
            digest = hashed.hexdigest()
            if not (self._kept / digest).exists():
                temporary.replace(folder / digest)
        return digest

    def _below(self, name: str) -> Iterator[str]:
        """The path and, for a folder, all that is in it."""
        yield name
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            for each, _ in _walk(path, SCAN_ENTRIES):
                yield each if name in ("", ".") else f"{name}/{each}"

    # --- the whole tree ----------------------------------------------------------------------

    def scan(self) -> Snapshot:
        """Look at the whole repository and copy what changed since the last scan, up to the caps.

        Reads only files whose stat data changed; the first scan reads all.
        """
        self._last = self._look_around(self._last.entries)
        return self._last

    def changes(self, before: Snapshot, stop: Stop = never) -> list[Change]:
        """What changed since a scan; from now on its copies of these paths are kept.

        When stopped, what was found by then.
        """
        after = self._look_around(before.entries, stop)
        found: list[Change] = []
        for name, (signature, copy) in after.entries.items():
            was = before.entries.get(name)
            if was is not None and was[1] != copy:
                found.append(Change(name, was[1], copy))
            elif was is None and (before.complete or signature.changed >= before.began):
                found.append(Change(name, ABSENT if before.complete else _UNKNOWN, copy))
        for name, (_, copy) in before.entries.items():
            if name not in after.entries and not stop() and (now := self.look(name)) != copy:
                found.append(Change(name, copy, now))
        for change in found:
            self._promote(change.before)
        self._last = after
        return found

    def close(self) -> None:
        """Forget the copies of paths that never changed."""
        shutil.rmtree(self._scanned, ignore_errors=True)
        self._last = Snapshot(0)

    def _promote(self, copy: Copy) -> None:
        path = self._scanned / copy.digest
        if copy.kind in ("file", "link") and path.is_file():
            self._store_file(self._kept, path)

    def _look_around(
        self, known: Mapping[str, tuple[_Signature, Copy]], stop: Stop = never
    ) -> Snapshot:
        snapshot = Snapshot(time.time_ns())
        left = SCAN_CAP
        for name, found in _walk(self.root, SCAN_ENTRIES):
            if found is None or stop():
                snapshot.complete = False
                break
            if self._own is not None and name.startswith(self._own):
                continue
            signature = _Signature.of(found)
            was = known.get(name)
            if was is not None and was[0] == signature and not signature.racy(snapshot.began):
                snapshot.entries[name] = was
                continue
            cap = min(SCAN_FILE_CAP, left)
            with contextlib.suppress(OSError):  # a path that cannot be looked at
                copy, size = self._copy(self.root / name, self._scanned, cap)
                left -= size
                if copy.kind != "absent":
                    snapshot.entries[name] = signature, copy
        return snapshot


_UNKNOWN = Copy("other", 0, "unknown")
"""What was at a path that the scan before did not look at."""


@dataclass(frozen=True)
class _Signature:
    """What tells a changed file without reading it."""

    inode: int
    mode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> _Signature:
        if stat.S_ISDIR(found.st_mode):  # a folder's times change with what is in it
            return cls(found.st_ino, found.st_mode, 0, 0, 0)
        return cls(found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def racy(self, began: int) -> bool:
        """Whether it changed too shortly before the look to be told by its times."""
        return self.changed > began - _RACY


def _walk(top: Path, limit: int) -> Iterator[tuple[str, os.stat_result | None]]:
    """Names below a folder with their stat data, shallow first, `_LATER` folders last.

    Ends with `("", None)` when there are more than `limit`. Git's object stores, names that are
    not UTF-8, and folders that cannot be read are left out.
    """
    soon, later = deque([""]), deque[str]()
    count = 0
    while soon or later:
        prefix = soon.popleft() if soon else later.popleft()
        in_git = ".git" in prefix.split("/")
        try:
            entries = sorted(os.scandir(top / prefix), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if (in_git and entry.name in _GIT_STORES) or not _is_text(entry.name):
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone meanwhile
            count += 1
            if count > limit:
                yield "", None
                return
            yield f"{prefix}{entry.name}", found
            if entry.is_dir(follow_symlinks=False):
                (later if entry.name in _LATER else soon).append(f"{prefix}{entry.name}/")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _temporary(folder: Path):
    """A new file that is removed at the end unless it was renamed."""
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)
