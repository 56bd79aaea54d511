"""Copies before calls, scans around unknown commands, and undo (C33, C34, C64-C66)."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.agent import copies
from unabridged.agent.copies import ABSENT, Copies, Copy
from unabridged.agent.events import AnyEvent, AssistantMessage, Checkpoint, ToolResult
from unabridged.agent.undo import AFTER, Touch, Undo, plan, touches


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    return folder


@pytest.fixture
def undo(root: Path, tmp_path: Path) -> Undo:
    return Undo(root, tmp_path / "session.files")


class Log:
    """A session's log, written as the loop writes it."""

    def __init__(self, undo: Undo) -> None:
        self.undo = undo
        self.events: list[AnyEvent] = []

    def named(self, names: list[str], action: object) -> None:
        """A call that names the paths it touches."""
        step = len(self.events) + 1
        self.events.append(AssistantMessage(step=step))
        files = self.undo.checkpoint(names)
        self.events.append(Checkpoint(call_id=str(step), files=files))
        action()  # type: ignore[operator]  # a callable, of the test
        after = self.undo.after(files)
        self.events.append(ToolResult(call_id=str(step), text="", data={AFTER: after}))

    def unknown(self, action: object) -> list[str]:
        """A command of which nobody knows what it touches."""
        step = len(self.events) + 1
        self.events.append(AssistantMessage(step=step))
        before = self.undo.scan()
        action()  # type: ignore[operator]  # a callable, of the test
        changes = self.undo.changes(before)
        files = {change.name: str(change.before) for change in changes}
        after = {change.name: str(change.after) for change in changes}
        self.events.append(Checkpoint(call_id=str(step), files=files))
        self.events.append(ToolResult(call_id=str(step), text="", data={AFTER: after}))
        return [change.name for change in changes]

    def undone(self, since: int = 0) -> dict[str, str]:
        """Undo; name -> refusal."""
        done = self.undo.restore(self.undo.plan(self.events, since))
        return {item.name: item.refusal for item in done}


def tree(top: Path) -> dict[str, tuple[str, int, bytes]]:
    """Everything below a folder: kind, mode, content."""
    found: dict[str, tuple[str, int, bytes]] = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode & 0o7777
        name = path.relative_to(top).as_posix()
        if path.is_symlink():
            found[name] = ("link", 0, os.fsencode(os.readlink(path)))
        elif path.is_dir():
            found[name] = ("folder", mode, b"")
        else:
            found[name] = ("file", mode, path.read_bytes())
    return found


def git(root: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {
        f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(["git", *words], cwd=root, env=env, capture_output=True, check=True)
    return done.stdout.decode()


# --- there and back ------------------------------------------------------------------------------


def test_named_paths_come_back_with_bytes_mode_and_links(root: Path, undo: Undo) -> None:
    (root / "run.sh").write_bytes(b"#!/bin/sh\r\n\xff\n")
    (root / "run.sh").chmod(0o751)
    (root / "link").symlink_to("nowhere/at all")
    (root / "folder").mkdir()
    (root / "folder" / "deep").write_text("kept")
    (root / "folder" / "empty").mkdir(mode=0o700)
    before = tree(root)
    log = Log(undo)
    log.named(
        ["run.sh"], lambda: ((root / "run.sh").write_text("x"), (root / "run.sh").chmod(0o600))
    )
    log.named(["link"], lambda: ((root / "link").unlink(), (root / "link").mkdir()))
    log.named(["folder"], lambda: subprocess.run(["rm", "-rf", root / "folder"], check=True))
    log.named(["new/file"], lambda: ((root / "new").mkdir(), (root / "new/file").write_text("n")))
    assert set(log.undone().values()) == {""}
    (root / "new").rmdir()  # the folder itself was not recorded, so it stays
    assert tree(root) == before


def test_undo_from_a_step_on(root: Path, undo: Undo) -> None:
    file = root / "a.txt"
    file.write_text("one")
    log = Log(undo)
    log.named(["a.txt"], lambda: file.write_text("two"))
    second = len(log.events) + 1
    log.named(["a.txt"], lambda: file.write_text("three"))
    assert log.undone(second) == {"a.txt": ""}
    assert file.read_text() == "two"


def test_the_diff_shows_what_undo_would_do(root: Path, undo: Undo) -> None:
    (root / "a.txt").write_text("old\nsame\n")
    log = Log(undo)
    log.named(["a.txt"], lambda: (root / "a.txt").write_text("new\nsame\n"))
    log.named(["b.bin"], lambda: (root / "b.bin").write_bytes(b"\0\1\2"))
    first, second = undo.plan(log.events)
    assert "-new\n+old\n same\n" in undo.diff(first)
    assert undo.diff(second) == "b.bin: binary, 3 bytes -> nothing\n"
    (root / "a.txt").write_text("mine")
    assert undo.diff(undo.plan(log.events)[0]) == "a.txt: left alone, it was changed since\n"


def test_an_undo_can_be_undone(root: Path, undo: Undo) -> None:
    (root / "a").write_text("old")
    log = Log(undo)
    log.named(["a"], lambda: (root / "a").write_text("new"))
    planned = undo.plan(log.events)
    undo.restore(planned)
    assert undo.read(str(planned[0].now)) == b"new"


# --- what is refused (C66) -----------------------------------------------------------------------


def test_c66_what_the_user_changed_since_is_left_alone(root: Path, undo: Undo) -> None:
    for name in "ab":
        (root / name).write_text("old")
    log = Log(undo)
    log.named(["a", "b"], lambda: [(root / name).write_text("new") for name in "ab"])
    (root / "a").write_text("mine")
    assert log.undone() == {"a": "it was changed since", "b": ""}
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("mine", "old")


def test_c66_a_change_between_two_steps_is_not_lost(root: Path, undo: Undo) -> None:
    (root / "a").write_text("old")
    log = Log(undo)
    log.named(["a"], lambda: (root / "a").write_text("new"))
    (root / "a").write_text("mine")
    log.named(["a"], lambda: (root / "a").write_text("newer"))
    assert list(log.undone().values()) == [
        "somebody else changed it between two steps of the session"
    ]
    assert (root / "a").read_text() == "newer"


def test_c66_a_change_after_the_plan_is_not_lost(root: Path, undo: Undo) -> None:
    (root / "a").write_text("old")
    log = Log(undo)
    log.named(["a"], lambda: (root / "a").write_text("new"))
    planned = undo.plan(log.events)
    (root / "a").write_text("mine")
    assert [item.refusal for item in undo.restore(planned)] == ["it was changed since"]
    assert (root / "a").read_text() == "mine"


def test_c66_siblings_are_never_touched(root: Path, undo: Undo, tmp_path: Path) -> None:
    sibling = tmp_path / "sibling"
    sibling.mkdir()
    (sibling / "a").write_text("theirs")
    (root / "work").mkdir()
    (root / "work" / "a").write_text("old")
    log = Log(undo)
    log.named(["work/a"], lambda: (root / "work" / "a").write_text("new"))
    (root / "work" / "a").unlink()
    (root / "work").rmdir()
    (root / "work").symlink_to(sibling)
    (sibling / "a").write_text("new")
    assert log.undone() == {"work/a": "one of its folders is a link now"}
    assert (sibling / "a").read_text() == "new"


def test_a_folder_with_something_new_in_it_stays(root: Path, undo: Undo) -> None:
    log = Log(undo)
    log.named(["made"], lambda: (root / "made").mkdir())
    (root / "made" / "mine").write_text("mine")
    assert "not empty" in log.undone()["made"]
    assert (root / "made" / "mine").read_text() == "mine"


def test_an_interrupted_call_is_refused_unless_it_did_nothing(root: Path, undo: Undo) -> None:
    (root / "a").write_text("old")
    (root / "b").write_text("old")
    log = Log(undo)
    log.events = [
        AssistantMessage(step=1),
        Checkpoint(call_id="1", files=undo.checkpoint(["a", "b"])),
    ]
    (root / "a").write_text("half")
    planned = undo.plan(log.events)
    assert [item.name for item in planned] == ["a"]
    assert "interrupted" in planned[0].refusal


# --- unknown commands (C33, C34) -----------------------------------------------------------------


def test_c33_reset_hard_comes_back(root: Path, undo: Undo) -> None:
    git(root, "init", "-q")
    (root / "a").write_text("committed")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    (root / "a").write_text("work of hours")
    (root / "b").write_text("staged")
    git(root, "add", "b")
    status = git(root, "status", "--porcelain")
    log = Log(undo)
    log.unknown(lambda: git(root, "reset", "-q", "--hard"))
    assert (root / "a").read_text() == "committed"
    assert set(log.undone().values()) == {""}
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("work of hours", "staged")
    assert git(root, "status", "--porcelain") == status


def test_c33_a_dropped_stash_and_a_deleted_branch_come_back(root: Path, undo: Undo) -> None:
    git(root, "init", "-q")
    (root / "a").write_text("one")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    git(root, "branch", "side")
    (root / "a").write_text("two")
    git(root, "stash")
    log = Log(undo)
    log.unknown(lambda: (git(root, "stash", "drop"), git(root, "branch", "-D", "side")))
    assert set(log.undone().values()) == {""}
    git(root, "stash", "pop")
    assert (root / "a").read_text() == "two"
    assert "side" in git(root, "branch")


def test_c34_clean_removes_nothing_for_good(root: Path, undo: Undo) -> None:
    git(root, "init", "-q")
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("secret work")
    (root / "notes").mkdir()
    (root / "notes" / "untracked").write_text("more")
    before = tree(root)
    log = Log(undo)
    changed = log.unknown(lambda: git(root, "clean", "-fdxq"))
    assert {".gitignore", "ignored", "notes", "notes/untracked"} <= set(changed)
    assert set(log.undone().values()) == {""}
    assert tree(root) == before


def test_a_folder_that_became_a_link_to_itself_comes_back(root: Path, undo: Undo) -> None:
    (root / "loop").mkdir()
    (root / "loop/file").write_bytes(b"kept")
    log = Log(undo)

    def turn_it_into_a_loop() -> None:
        (root / "loop/file").unlink()
        (root / "loop").rmdir()
        (root / "loop").symlink_to("loop")

    log.unknown(turn_it_into_a_loop)
    assert not any(item.refusal for item in undo.restore(undo.plan(log.events)))
    assert (root / "loop/file").read_bytes() == b"kept"


def test_a_change_of_the_same_size_right_after_the_look_is_seen(root: Path, undo: Undo) -> None:
    for n in range(20):
        (root / "a").write_text(f"{n:04}")
        before = undo.scan()
        (root / "a").write_text("edit")
        assert [change.name for change in undo.changes(before)] == ["a"], n


def test_only_copies_of_what_changed_stay(root: Path, undo: Undo, tmp_path: Path) -> None:
    for n in range(50):
        (root / f"f{n}").write_text(f"text {n}")
    log = Log(undo)
    assert log.unknown(lambda: (root / "f7").write_text("new")) == ["f7"]
    undo.close()
    assert len([p for p in (tmp_path / "session.files").rglob("*") if p.is_file()]) == 1
    assert log.undone() == {"f7": ""}
    assert (root / "f7").read_text() == "text 7"


def test_a_session_kept_in_the_repository_does_not_copy_itself(root: Path) -> None:
    sessions = root / "sessions"
    sessions.mkdir()
    undo = Undo(root, sessions / "s1.files")
    (root / "a").write_text("a")
    (sessions / "s1.jsonl").write_text("log")
    undo.scan()
    before = undo.scan()
    (sessions / "s1.jsonl").write_text("log grew")
    assert undo.changes(before) == []


# --- caps (C64, C65) -----------------------------------------------------------------------------


def test_c65_large_files_are_listed_not_kept(
    root: Path, undo: Undo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "FILE_CAP", 1000)
    monkeypatch.setattr(copies, "SCAN_FILE_CAP", 1000)
    (root / "video").write_bytes(b"v" * 5000)
    (root / "text").write_text("small")
    log = Log(undo)
    log.named(["video", "text"], lambda: [(root / n).write_text("new") for n in ("video", "text")])
    refusals = log.undone()
    assert "too large" in refusals["video"]
    assert refusals["text"] == ""
    kept = sum(p.stat().st_size for p in (tmp_path / "session.files").rglob("*") if p.is_file())
    assert kept < 1000


def test_c64_a_scan_stops_at_its_cap_and_says_so(
    root: Path, undo: Undo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SCAN_ENTRIES", 100)
    (root / "node_modules").mkdir()
    for n in range(300):
        (root / "node_modules" / f"{n}.js").write_text("x")
    (root / "mine.py").write_text("old")
    before = undo.scan()
    assert not before.complete
    (root / "mine.py").write_text("new")
    time.sleep(0.01)
    (root / "added.py").write_text("new")
    found = {change.name: change for change in undo.changes(before)}
    assert undo.read(str(found["mine.py"].before)) == b"old", "what is ours is looked at first"
    assert "added.py" in found


def test_c64_checkpoints_look_only_at_what_is_named(root: Path, undo: Undo) -> None:
    for n in range(3000):
        (root / f"{n}").write_text("x")
    began = time.monotonic()
    undo.checkpoint(["7"])
    assert time.monotonic() - began < 0.1


# --- properties ----------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "d/a", "d/e/f", "d", "ü ñ", "x.y"])
STATES = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=6), st.sampled_from([0o644, 0o755, 0o600])),
    st.tuples(st.just("link"), st.sampled_from([b"a", b"../d", b"gone"]), st.just(0)),
    st.tuples(st.just("folder"), st.just(b""), st.just(0o755)),
    st.tuples(st.just("absent"), st.just(b""), st.just(0)),
)


def put(root: Path, name: str, state: tuple[str, bytes, int]) -> None:
    """Bring a path to a state, whatever is there; skip what a file in the way makes impossible."""
    path = root / name
    for parent in reversed(path.relative_to(root).parents):
        if (root / parent).is_symlink() or (root / parent).is_file():
            return
    kind, data, mode = state
    if path.is_dir() and not path.is_symlink():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    else:
        path.unlink(missing_ok=True)
    if kind == "absent":
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_bytes(data)
        path.chmod(mode)
    elif kind == "link":
        path.symlink_to(os.fsdecode(data))
    else:
        path.mkdir()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(NAMES, STATES), max_size=6),
    st.lists(st.lists(st.tuples(NAMES, STATES), max_size=4), min_size=1, max_size=3),
)
def test_undo_of_any_commands_gives_the_tree_back(
    start: list[tuple[str, tuple[str, bytes, int]]],
    commands: list[list[tuple[str, tuple[str, bytes, int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(os.path.realpath(folder))
        root = top / "repo"
        root.mkdir()
        for name, state in start:
            put(root, name, state)
        before = tree(root)
        log = Log(Undo(root, top / "s.files"))
        for command in commands:
            log.unknown(lambda command=command: [put(root, *each) for each in command])
        assert set(log.undone().values()) <= {""}
        assert tree(root) == before


COPIES = st.one_of(
    st.just(ABSENT),
    st.builds(Copy, st.just("file"), st.sampled_from([0o644, 0o755]), st.sampled_from("abc")),
)


@given(
    st.lists(
        st.builds(Touch, st.integers(1, 9), st.sampled_from("pq"), COPIES, st.none() | COPIES),
        max_size=6,
    ),
    st.fixed_dictionaries({"p": COPIES, "q": COPIES}),
)
def test_a_plan_restores_only_what_is_as_the_session_left_it(
    touched: list[Touch], now: dict[str, Copy]
) -> None:
    planned = plan(touched, now.__getitem__, lambda copy: copy.digest != "c")
    for item in planned:
        chain = [touch for touch in touched if touch.name == item.name]
        assert item.now != item.aim == chain[0].before
        if not item.refusal:
            assert chain[-1].after == item.now
            assert item.aim.digest != "c"
            assert all(a.after in (None, b.before) for a, b in pairwise(chain))
    left_out = {touch.name for touch in touched} - {item.name for item in planned}
    for name in left_out:
        assert now[name] == next(t.before for t in touched if t.name == name)


@given(COPIES)
def test_copies_travel_as_text(copy: Copy) -> None:
    assert Copy.parse(str(copy)) == copy


def test_touches_follow_the_log(root: Path, undo: Undo) -> None:
    (root / "same").write_text("x")
    log = Log(undo)
    log.named(["same", "new"], lambda: (root / "new").write_text("n"))
    assert [(t.step, t.name, t.before) for t in touches(log.events)] == [(1, "new", ABSENT)]


def test_a_scan_of_many_files_is_quick_the_second_time(root: Path, tmp_path: Path) -> None:
    for n in range(2000):
        (root / f"{n}.py").write_text(f"print({n})\n" * 20)
    time.sleep(0.06)
    kept = Copies(root, tmp_path / "s.files")
    kept.scan()
    began = time.monotonic()
    kept.scan()
    assert time.monotonic() - began < 1
