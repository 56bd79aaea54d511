"""The index follows the logs, whatever happens to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from unabridged.agent.events import (
    AssistantMessage,
    RunEnded,
    RunStarted,
    SessionStarted,
    TextPart,
    Usage,
    UserMessage,
)
from unabridged.agent.index import entries
from unabridged.agent.store import Store


def make(folder: Path, name: str, task: str = "do it", *, finished: bool = True) -> None:
    with Store.create(folder, name) as store:
        store.append(SessionStarted(session=name, repo="/r", version="0", model="m", endpoint="e"))
        store.append(RunStarted(model="k3", endpoint="e", effort="max", mode="ask", on_ask="stop",
                                window=9))  # fmt: skip
        store.append(UserMessage(parts=(TextPart(text=task),)))
        store.append(AssistantMessage(step=1, usage=Usage(prompt=10, cached=2, completion=5)))
        if finished:
            store.append(RunEnded(exit_code=0, name="done", reason="done"))


def test_lists_what_is_there_newest_first(tmp_path: Path) -> None:
    make(tmp_path, "a", "first")
    make(tmp_path, "b", "second", finished=False)
    newest, oldest = entries(tmp_path)
    assert (newest.session, newest.task, newest.exit_code) == ("b", "second", None)
    assert (oldest.session, oldest.exit_name, oldest.steps, oldest.tokens) == ("a", "done", 1, 15)


def test_follows_changes_and_removals(tmp_path: Path) -> None:
    make(tmp_path, "a")
    make(tmp_path, "b")
    entries(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    with Store.open(tmp_path, "a") as store:
        store.append(AssistantMessage(step=2))
    (only,) = entries(tmp_path)
    assert (only.session, only.steps) == ("a", 2)


@pytest.mark.parametrize("damage", [b"not a database", b"", b"SQLite format 3\x00" + b"x" * 200])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    make(tmp_path, "a")
    expected = entries(tmp_path)
    (tmp_path / "index.sqlite").write_bytes(damage)
    assert entries(tmp_path) == expected
    assert entries(tmp_path) == expected


def test_an_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    make(tmp_path, "a")
    with sqlite3.connect(tmp_path / "index.sqlite") as index:
        index.execute("create table sessions (other int)")
        index.execute("pragma user_version = 99")
    assert [entry.session for entry in entries(tmp_path)] == ["a"]


def test_a_locked_index_does_not_matter(tmp_path: Path) -> None:
    make(tmp_path, "a")
    entries(tmp_path)
    make(tmp_path, "b")
    lock = sqlite3.connect(tmp_path / "index.sqlite", isolation_level=None)
    lock.execute("begin exclusive")
    try:
        assert {entry.session for entry in entries(tmp_path)} == {"a", "b"}
    finally:
        lock.close()


def test_a_damaged_log_is_listed_with_its_problem(tmp_path: Path) -> None:
    make(tmp_path, "a")
    (tmp_path / "bad.jsonl").write_bytes(b"{}\n{}\n")
    found = {entry.session: entry for entry in entries(tmp_path)}
    assert found["a"].problem is None
    assert "line 1" in (found["bad"].problem or "")


def test_no_folder_no_sessions(tmp_path: Path) -> None:
    assert entries(tmp_path / "nowhere") == []
