"""The log on disk survives what happens to logs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unabridged.agent.events import (
    AnyEvent,
    AssistantMessage,
    LogRepaired,
    SessionStarted,
    TextPart,
    UserMessage,
    from_line,
)
from unabridged.agent.store import (
    SessionInUseError,
    Store,
    StoreError,
    UnknownSessionError,
    find,
    new_session_id,
    read,
)


def started() -> SessionStarted:
    return SessionStarted(session="s", repo="/r", version="0", model="m", endpoint="e")


def said(text: str) -> UserMessage:
    return UserMessage(parts=(TextPart(text=text),))


def write_log(folder: Path, events: list[AnyEvent], name: str = "s") -> Path:
    with Store.create(folder, name) as store:
        for event in events:
            store.append(event)
        return store.path


def sample() -> list[AnyEvent]:
    return [
        started(),
        said("line\nbreak \u2028 \x00 é"),
        AssistantMessage(step=1, reasoning="why", content="what"),
        said("go on"),
        AssistantMessage(step=2, content="done"),
    ]


def test_events_come_back_numbered_dated_and_chained(tmp_path: Path) -> None:
    events = read(write_log(tmp_path, sample()))
    assert [event.seq for event in events] == [0, 1, 2, 3, 4]
    assert all(event.at.endswith("Z") for event in events)
    first, second = (e for e in events if isinstance(e, AssistantMessage))
    assert second.previous == first.hash
    assert first.previous == ""


def test_logs_are_private(tmp_path: Path) -> None:
    path = write_log(tmp_path / "sessions", sample())
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_c47_truncated_at_every_byte_it_opens_and_says_what_was_lost(tmp_path: Path) -> None:
    whole = write_log(tmp_path, sample()).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 0x0A]
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends)
        lost = cut - max((end for end in ends if end <= cut), default=0)
        with Store.open(tmp_path, "cut") as store:
            events = list(store.events)
            assert len(events) == kept + (lost > 0)
            if lost:
                assert isinstance(events[-1], LogRepaired)
                assert events[-1].lost_bytes == lost
                assert events[-1].torn.encode("latin-1") == whole[cut - lost : cut]
            store.append(said("still writable"))
        # What was repaired stays so: opening again finds nothing more to repair.
        with Store.open(tmp_path, "cut") as store:
            assert sum(isinstance(e, LogRepaired) for e in store.events) == (lost > 0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(min_size=1, max_size=60))
def test_garbage_after_the_last_event_is_cut_and_kept(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "g.jsonl"
    path.unlink(missing_ok=True)
    write_log(tmp_path, sample(), "g")
    torn = garbage.replace(b"\n", b" ")
    with path.open("ab") as file:
        file.write(torn)
    with Store.open(tmp_path, "g") as store:
        last = store.events[-1]
        assert isinstance(last, LogRepaired)
        assert last.torn.encode("latin-1") == torn


def test_damage_in_the_middle_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write_log(tmp_path, sample())
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:20]
    path.write_bytes(b"\n".join(lines))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="line 2 is damaged"):
        Store.open(tmp_path, "s")
    assert path.read_bytes() == before


def test_a_removed_line_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, sample())
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:1] + lines[2:]))
    with pytest.raises(StoreError, match="event 2 where 1 belongs"):
        read(path)


def test_k5_an_edited_reply_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, sample())
    path.write_bytes(path.read_bytes().replace(b'"why"', b'"why not"'))
    with pytest.raises(StoreError, match="does not match its hash"):
        read(path)


def test_a_newer_log_says_so(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b'{"type":"session_started","schema_version":9,"surprise":true}\n{}\n')
    with pytest.raises(StoreError, match="newer version"):
        read(path)


def test_two_processes_never_share_a_session(tmp_path: Path) -> None:
    with Store.create(tmp_path, "s") as store:
        store.append(started())
        code = textwrap.dedent(f"""
            from pathlib import Path
            from unabridged.agent.store import Store, SessionInUseError
            try:
                Store.open(Path({str(tmp_path)!r}), "s")
            except SessionInUseError as error:
                print(error)
        """)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert "in use by another process" in done.stdout
        with pytest.raises(SessionInUseError):
            Store.open(tmp_path, "s")
    with Store.open(tmp_path, "s") as store:
        assert len(store.events) == 1


def fill(folder: str, ready: object) -> None:
    with Store.create(Path(folder), "k") as store:
        store.append(started())
        count = 0
        while True:
            store.append(AssistantMessage(step=count, content="x" * 200))
            count += 1
            if count == 3:
                ready.set()  # pyright: ignore[reportAttributeAccessIssue] - a multiprocessing event


def test_c45_kill_while_writing_loses_no_flushed_event(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=fill, args=(str(tmp_path), ready))
    process.start()
    assert ready.wait(30)
    process.kill()
    process.join()
    with Store.open(tmp_path, "k") as store:
        replies = [e for e in store.events if isinstance(e, AssistantMessage)]
    assert len(replies) >= 3
    assert [reply.step for reply in replies] == list(range(len(replies)))


def test_a_full_disk_leaves_the_log_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, budget = os.write, [60]

    def write(fd: int, data: bytes) -> int:
        if budget[0] <= 0:
            raise OSError(28, "No space left on device")
        taken = real(fd, bytes(data)[: budget[0]])
        budget[0] -= taken
        return taken

    with Store.create(tmp_path, "s") as store:
        store.append(started())
        whole = store.path.read_bytes()
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(StoreError, match=r"No space left on device.*--resume"):
            store.append(said("x" * 500))
        assert store.path.read_bytes() == whole
        assert len(store.events) == 1
        budget[0] = 10_000
        store.append(said("space again"))
    assert len(read(store.path)) == 2


@pytest.mark.parametrize("make", ["file", "below a file"])
def test_an_unwritable_folder_is_one_line(tmp_path: Path, make: str) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    folder = blocked if make == "file" else blocked / "sessions"
    with pytest.raises(StoreError, match="--sessions-dir") as caught:
        Store.create(folder, "s")
    assert "\n" not in str(caught.value)


def test_sessions_are_found_by_id_prefix_and_last(tmp_path: Path) -> None:
    for name in ("20260101-aaa", "20260101-abb", "20260202-ccc"):
        write_log(tmp_path, [started()], name)
    os.utime(tmp_path / "20260101-abb.jsonl", (4e9, 4e9))
    assert find(tmp_path, "20260202").name == "20260202-ccc.jsonl"
    assert find(tmp_path, "last").name == "20260101-abb.jsonl"
    with pytest.raises(UnknownSessionError, match="give more of the id"):
        find(tmp_path, "20260101-a")
    with pytest.raises(UnknownSessionError, match="no session 'x'"):
        find(tmp_path, "x")
    with pytest.raises(UnknownSessionError):
        find(tmp_path / "nowhere", "last")


def test_session_ids_are_unique_and_file_safe() -> None:
    ids = {new_session_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(set(i) <= set("0123456789abcdef-") for i in ids)


def test_lines_hold_what_was_appended(tmp_path: Path) -> None:
    path = write_log(tmp_path, sample())
    assert [from_line(line) for line in path.read_bytes().splitlines()] == read(path)


def test_a_log_opened_in_one_thread_is_let_go_in_another(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        store = pool.submit(Store.create, tmp_path, "s").result()
    store.close()
    Store.open(tmp_path, "s").close()
