"""A rebuildable index over the logs of a folder, so that listing thousands of sessions is quick.

The logs are the truth. The index is brought up to date whenever it is read: a log whose size or
time differs from what was indexed is read again, and a damaged index is made anew.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .events import (
    AnyEvent,
    AssistantMessage,
    Preload,
    RunEnded,
    RunStarted,
    SessionNamed,
    SessionStarted,
    TextPart,
    Usage,
    UserMessage,
)
from .store import SUFFIX, StoreError, read
from .subagent import FOLDER, logs

_SCHEMA = 2
_TABLE = (
    "create table if not exists sessions (name text primary key, size int, time int, entry text)"
)


@dataclass
class Used:
    """What one model did in a session."""

    steps: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    unreported: int = 0
    """Replies whose usage the endpoint did not say."""

    def add(self, usage: Usage | None, *, step: bool = True) -> None:
        """Count one reply."""
        self.steps += step
        if usage is None:
            self.unreported += 1
            return
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.completion += usage.completion

    def merge(self, other: Used) -> None:
        """Count what a subagent did."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


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
    usage: dict[str, Used] = field(default_factory=dict[str, Used])
    """By model, as the log names it."""
    name: str = ""
    """Given by the user."""
    problem: str | None = None
    """Why the log cannot be read; then the rest is empty."""


def describe(session: str, events: Iterable[AnyEvent]) -> Entry:
    """The entry of a log."""
    repo = task = model = started = updated = name = ""
    used: dict[str, Used] = {}
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
                used.setdefault(model, Used()).add(event.usage)
            case Preload(problem=""):
                used.setdefault(model, Used()).add(event.usage, step=False)
            case SessionNamed():
                name = event.name
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
        steps=sum(one.steps for one in used.values()),
        tokens=sum(one.prompt + one.completion for one in used.values()),
        exit_code=ended.exit_code if ended is not None else None,
        exit_name=ended.name if ended is not None else None,
        usage=used,
        name=name,
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
            kept: dict[str, Any] = json.loads(known[name][1])
            kept["usage"] = {model: Used(**one) for model, one in kept["usage"].items()}
            found.append(Entry(**kept))
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
        entry = describe(name, read(log))
        for events in logs(log.with_suffix(".files") / FOLDER):
            for model, used in describe(name, events).usage.items():
                entry.usage.setdefault(model, Used()).merge(used)
        return entry
    except StoreError as error:
        empty = {one.name: "" for one in fields(Entry)}
        counts: dict[str, Any] = {
            "steps": 0,
            "tokens": 0,
            "exit_code": None,
            "exit_name": None,
            "usage": {},
        }
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
