"""A rebuildable index over the logs of a folder, so that listing thousands of sessions is quick.

The logs are the truth. The index is brought up to date whenever it is read: a log whose size or
time differs from what was indexed is read again, and a damaged index is made anew.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .budget import Spent
from .events import (
    AnyEvent,
    AssistantMessage,
    RunEnded,
    RunStarted,
    SessionStarted,
    TextPart,
    UserMessage,
)
from .store import SUFFIX, StoreError, read

_SCHEMA = 1
_TABLE = (
    "create table if not exists sessions (name text primary key, size int, time int, entry text)"
)


@dataclass(frozen=True)
class Entry:
    """What a list of sessions shows of one."""

    session: str
    repo: str
    task: str
    """The user's first words, whole."""
    model: str
    started: str
    updated: str
    steps: int
    tokens: int
    exit_code: int | None
    """Of the last run; None while it runs, or when it was killed."""
    exit_name: str | None
    problem: str | None = None
    """Why the log cannot be read; then the rest is empty."""


def describe(session: str, events: Iterable[AnyEvent]) -> Entry:
    """The entry of a log."""
    repo = task = model = started = updated = ""
    spent = Spent()
    ended: RunEnded | None = None
    for event in events:
        updated = event.at
        match event:
            case SessionStarted():
                repo, started = event.repo, event.at
            case RunStarted():
                model, ended = event.model, None
            case UserMessage(origin="user") if not task:
                task = "\n".join(part.text for part in event.parts if isinstance(part, TextPart))
            case AssistantMessage():
                spent.add(event, lambda _usage: None)
            case RunEnded():
                ended = event
            case _:
                pass
    return Entry(
        session=session,
        repo=repo,
        task=task,
        model=model,
        started=started,
        updated=updated,
        steps=spent.steps,
        tokens=spent.prompt + spent.completion,
        exit_code=ended.exit_code if ended is not None else None,
        exit_name=ended.name if ended is not None else None,
    )


def entries(folder: Path) -> list[Entry]:
    """All sessions of a folder, the last updated first. Works without an index it can write."""
    logs = {log.name.removesuffix(SUFFIX): log for log in folder.glob("*" + SUFFIX)}
    try:
        with contextlib.closing(_open(folder)) as index, index:
            found = _refresh(index, logs)
    except sqlite3.Error:
        found = [_read(name, log) for name, log in logs.items()]
    return sorted(found, key=lambda entry: (entry.updated, entry.session), reverse=True)


def _refresh(index: sqlite3.Connection, logs: dict[str, Path]) -> list[Entry]:
    rows = index.execute("select name, size, time, entry from sessions").fetchall()
    known = {name: ((size, time), entry) for name, size, time, entry in rows}
    gone = [(name,) for name in known.keys() - logs.keys()]
    index.executemany("delete from sessions where name = ?", gone)
    found: list[Entry] = []
    for name, log in logs.items():
        stat = log.stat()
        mark = (stat.st_size, stat.st_mtime_ns)
        if name in known and known[name][0] == mark:
            found.append(Entry(**json.loads(known[name][1])))
            continue
        entry = _read(name, log)
        found.append(entry)
        index.execute(
            "insert or replace into sessions values (?, ?, ?, ?)",
            (name, *mark, json.dumps(asdict(entry))),
        )
    return found


def _read(name: str, log: Path) -> Entry:
    try:
        return describe(name, read(log))
    except StoreError as error:
        empty = {field.name: "" for field in fields(Entry)}
        counts = {"steps": 0, "tokens": 0, "exit_code": None, "exit_name": None}
        return Entry(**{**empty, **counts, "session": name, "problem": str(error)})  # pyright: ignore[reportArgumentType] - filled by name


def _open(folder: Path) -> sqlite3.Connection:
    """The index, made anew when it is damaged or of another version."""
    path = folder / "index.sqlite"
    for attempt in ("as it is", "anew"):
        index = sqlite3.connect(path, timeout=2)
        try:
            version = index.execute("pragma user_version").fetchone()[0]
            if version in (0, _SCHEMA):
                index.execute(_TABLE)
                index.execute("select name, size, time, entry from sessions limit 1")
                index.execute(f"pragma user_version = {_SCHEMA}")
                return index
        except sqlite3.OperationalError:
            index.close()
            raise
        except sqlite3.DatabaseError:
            pass
        index.close()
        if attempt == "as it is":
            path.unlink(missing_ok=True)
    raise sqlite3.DatabaseError(f"{path} cannot be made")
