"""What a session changed in the repository: each file as it was first, against what it is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..tools.base import ABSENT
from ..tools.diff import whole_diff
from ..tools.text import detect
from .context.git import ignored as git_ignored
from .events import AnyEvent, Checkpoint
from .result import ChangedFile, changed_names

LARGEST = 8 << 20
"""Bytes of a file whose lines are still counted."""

Blob = Callable[[str], bytes | None]
"""Digest -> the bytes kept under it; None when they were not kept."""


def first_copies(events: Sequence[AnyEvent]) -> dict[str, str]:
    """Name -> the copy (or `absent`) taken before the session first touched the file."""
    copies: dict[str, str] = {}
    for event in events:
        if isinstance(event, Checkpoint):
            for name, blob in event.files.items():
                copies.setdefault(name, blob)
    return copies


def changed_files(root: Path, events: Sequence[AnyEvent], blob: Blob) -> tuple[ChangedFile, ...]:
    """Every file that differs from what it was before the session, in order of first change."""
    copies = first_copies(events)
    found: list[ChangedFile] = []
    names = changed_names(events)
    ignored = git_ignored(root, names)
    for name in names:
        if name in ignored:
            continue
        copy = copies.get(name)
        now = _bytes(root / name)
        if copy is None or (copy != ABSENT and (before := blob(copy)) is None):
            change = "deleted" if now is None else "modified"
            found.append(ChangedFile(path=name, change=change, added=None, removed=None))
            continue
        before = None if copy == ABSENT else blob(copy)
        if before != now:
            found.append(_compare(name, before, now))
    return tuple(found)


def changed_diffs(root: Path, events: Sequence[AnyEvent], blob: Blob) -> dict[str, str]:
    """Name -> unified diff from before the session to now, of every file that differs.

    A line of words stands for what has no diff: no text, too large, no copy kept.
    """
    copies, found = first_copies(events), dict[str, str]()
    for file in changed_files(root, events, blob):
        copy = copies.get(file.path)
        now = _bytes(root / file.path) or b""
        before = b"" if copy in (None, ABSENT) else blob(copy) or b""
        old, new = detect(before), detect(now)
        if file.added is None or old is None or new is None:
            found[file.path] = f"{file.path}: {file.change}; there is no diff of it\n"
        else:
            found[file.path] = whole_diff(file.path, before, now, new, old)
    return found


def _compare(name: str, before: bytes | None, now: bytes | None) -> ChangedFile:
    change = "added" if before is None else "deleted" if now is None else "modified"
    old, new = before or b"", now or b""
    old_encoding, new_encoding = detect(old), detect(new)
    if old_encoding is None or new_encoding is None or max(len(old), len(new)) > LARGEST:
        return ChangedFile(path=name, change=change, added=None, removed=None)
    body = whole_diff(name, old, new, new_encoding, old_encoding).split("\n")[2:]
    return ChangedFile(
        path=name,
        change=change,
        added=sum(line.startswith("+") for line in body),
        removed=sum(line.startswith("-") for line in body),
    )


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None
