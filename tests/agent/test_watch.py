"""What others change reaches the model once, as a diff where it can; what the session wrote does not."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unabridged.agent import watch as module
from unabridged.agent.context.errors import Cancelled
from unabridged.agent.context.load import ABSENT, Options, load
from unabridged.agent.context.pack import unpack
from unabridged.agent.events import (
    AnyEvent,
    FilesChanged,
    PackSegment,
    RepositoryLoaded,
    ToolResult,
    UserMessage,
)
from unabridged.agent.export import markdown
from unabridged.agent.policy import parse_allow
from unabridged.agent.providers.scripted import Question
from unabridged.agent.session import Session
from unabridged.agent.watch import TOO_MUCH, Watch
from unabridged.tools.base import digest

if TYPE_CHECKING:
    from .conftest import Bench, MakeRepo

DONE = [("finish", {"status": "done", "summary": "Did it."})]
LOOK = [("list", {})]
ALLOW = ["write", "delete", "execute"]


def after(*acts: Any) -> Any:
    """A model that answers with each act in turn; a function is called, and then it looks around."""
    left = list(acts)

    def answer(_question: Question) -> dict[str, Any]:
        act = left.pop(0) if left else DONE
        if callable(act):
            act()
            act = LOOK
        return {"calls": [{"name": name, "arguments": arguments} for name, arguments in act]}

    return answer


def notes(session: Session) -> list[FilesChanged]:
    return [event for event in session.events if isinstance(event, FilesChanged)]


def parts(note: FilesChanged) -> dict[str, tuple[str, str]]:
    return {part.name: (part.tag, part.data.decode()) for part in unpack(note.text)}


async def test_an_edit_by_another_is_told_as_a_diff_and_counts_as_seen(bench: Bench) -> None:
    lines = [f"x{n} = 1\n" for n in range(50)]
    (bench.repo / "a.py").write_text("".join(lines))
    lines[20] = "x20 = 'theirs'\n"
    edit = ("edit", {"path": "a.py", "old": "'theirs'", "new": "'both'"})
    session = await bench.play(
        after(lambda: (bench.repo / "a.py").write_text("".join(lines)), LOOK, [edit]), allow=ALLOW
    )
    (note,) = notes(session)
    tag, diff = parts(note)["a.py"]
    assert tag == "diff"
    assert "-x20 = 1\n+x20 = 'theirs'\n" in diff
    assert len(diff.splitlines()) == 9
    assert bench.messages(session, 1)[-1] == {"role": "user", "content": note.text}
    assert bench.read("a.py") == "".join(lines).replace("theirs", "both").encode()
    assert note.text in markdown(session.id, session.events)
    assert bench.code(session) == 0


async def test_what_the_session_wrote_is_not_told(bench: Bench) -> None:
    session = await bench.play(
        [
            [("edit", {"path": "a.py", "old": "1", "new": "2"})],
            [("write", {"path": "new/c.py", "content": "x = 1\n"})],
            [("shell", {"command": "echo more >> b.py; echo x > made.txt; rm docs/notes.txt"})],
            [("shell", {"command": "mkdir -p deep/er && touch deep/er/file"})],
            LOOK,
            DONE,
        ],
        allow=ALLOW,
    )
    assert bench.code(session) == 0
    assert not notes(session)
    again = await bench.play_on([DONE], "Go on.", allow=ALLOW)
    assert not notes(again)


async def test_a_diff_starts_from_what_the_session_wrote_also_after_a_restart(bench: Bench) -> None:
    (bench.repo / "a.py").write_bytes(b"".join(b"x%d = 1\n" % n for n in range(90)))
    await bench.play([[("edit", {"path": "a.py", "old": "x5 =", "new": "y5 ="})], LOOK, DONE],
                     allow=ALLOW)  # fmt: skip
    data = bench.read("a.py")
    (bench.repo / "a.py").write_bytes(data.replace(b"x80 = 1", b"x80 = 2"))
    again = await bench.play_on([DONE], "Go on.", allow=ALLOW)
    (note,) = notes(again)
    tag, diff = parts(note)["a.py"]
    assert tag == "diff"
    assert "+x80 = 2\n" in diff
    assert "y5" not in diff
    assert note.files == {"a.py": digest(bench.read("a.py"))}
    # Before the words of the user, and only once.
    kinds = [type(e) for e in again.events if isinstance(e, FilesChanged | UserMessage)]
    assert kinds == [UserMessage, FilesChanged, UserMessage]
    once_more = await bench.play_on([DONE], "Go on.", allow=ALLOW)
    assert len(notes(once_more)) == 1


async def test_new_gone_and_unreadable_files_are_told(bench: Bench) -> None:
    def meanwhile() -> None:
        (bench.repo / "pkg").mkdir()
        (bench.repo / "pkg/new.py").write_bytes(b"new = True\n")
        (bench.repo / "logo.png").write_bytes(b"\x89PNG")
        (bench.repo / ".env").write_bytes(b"KEY=hunter2\n")
        (bench.repo / "docs/notes.txt").unlink()
        (bench.repo / "b.py").write_bytes(b"\0\1\2")
        (bench.repo / ".git/info/exclude").write_bytes(b"*.log\n")
        (bench.repo / "run.log").write_bytes(b"noise\n")

    session = await bench.play(after(meanwhile, LOOK, LOOK))
    (note,) = notes(session)
    assert parts(note) == {"pkg/new.py": ("file", "new = True\n")}
    assert note.files == {"pkg/new.py": digest(b"new = True\n"), "docs/notes.txt": ABSENT}
    assert note.left == {
        "logo.png": "binary",
        ".env": "may hold secrets",
        "b.py": "binary",
    }
    assert "hunter2" not in note.text
    assert "run.log" not in note.text
    back = await bench.play_on(
        after(lambda: (bench.repo / "docs/notes.txt").write_bytes(b"b\n")), "On."
    )
    assert parts(notes(back)[-1]) == {"docs/notes.txt": ("file", "b\n")}


async def test_an_outlined_file_is_told_by_its_new_outline(bench: Bench) -> None:
    def body() -> None:
        (bench.repo / "a.py").write_bytes(b"def f():\n    return 7\n")

    def signature() -> None:
        (bench.repo / "a.py").write_bytes(b"def g(x):\n    return 7\n")

    outlined = Options(outline=["a.py"])
    session = await bench.play(after(body, signature, LOOK), context=outlined)
    (note,) = notes(session)
    assert parts(note) == {"a.py": ("outline", "1: def g(x)\n")}
    assert not note.files


async def test_a_change_without_room_is_named_and_not_taken_as_seen(bench: Bench) -> None:
    def rewrite() -> None:
        (bench.repo / "a.py").write_bytes(os.urandom(9_000).hex().encode())

    blind = ("write", {"path": "a.py", "content": "x = 1\n"})
    session = await bench.play(after(rewrite, [blind]), window=16_384, allow=ALLOW)
    (note,) = notes(session)
    assert note.left == {"a.py": TOO_MUCH}
    assert not note.files
    results = [event for event in session.events if isinstance(event, ToolResult)]
    assert "changed since it was shown to you" in results[1].text


async def test_a_secret_read_with_approval_is_not_sent_again(bench: Bench) -> None:
    env = bench.repo / ".env"
    env.write_bytes(b"KEY=one\n")
    session = await bench.play(
        after([("read", {"path": ".env"})], lambda: env.write_bytes(b"KEY=two\n"), LOOK),
        session_rules=[parse_allow("secret"), parse_allow("read")],
    )
    assert any("KEY=one" in e.text for e in session.events if isinstance(e, ToolResult))
    assert not notes(session)


async def test_what_a_person_let_it_read_once_is_not_sent_again(bench: Bench) -> None:
    asks = parse_allow("read:docs/").model_copy(update={"decision": "ask"})
    read = ("read", {"path": "docs/notes.txt"})
    session = bench.create([[read]], rules=[asks])
    await bench.run(session, "go")
    session.approve()
    await session.close()
    again = bench.resume(
        after(lambda: (bench.repo / "docs/notes.txt").write_bytes(b"other\n"), LOOK), rules=[asks]
    )
    await bench.run(again)
    assert any("one" in e.text for e in bench.of(again, ToolResult))
    assert not notes(again)


async def test_what_a_rule_forbids_to_read_is_not_loaded(bench: Bench) -> None:
    rule = parse_allow("read:docs/").model_copy(update={"decision": "deny"})
    session = await bench.play([DONE], rules=[rule])
    packed = "".join(e.text for e in session.events if isinstance(e, PackSegment))
    assert '<file path="a.py">' in packed
    assert "two" not in packed
    (loaded,) = [e for e in session.events if isinstance(e, RepositoryLoaded)]
    assert loaded.skipped == {"docs/notes.txt": "excluded as asked"}


async def test_a_note_stays_when_the_steps_around_it_are_left_out(bench: Bench) -> None:
    a = bench.repo / "a.py"
    same = [("read", {"path": "b.py"})]
    acts = [same, same, lambda: a.write_bytes(b"theirs\n"), *[same] * 20]

    def act(question: Question) -> dict[str, Any]:
        one = acts.pop(0)
        if callable(one):
            one()
            one = same
        return {"calls": [{"name": n, "arguments": g} for n, g in one]}

    session = await bench.play(act)
    assert bench.code(session) == 6
    again = await bench.play_on([DONE], "Go on.")
    (note,) = notes(again)
    assert note.text in [message["content"] for message in bench.messages(again)]


# --- the watch itself -----------------------------------------------------------------------------


def watching(root: Path, folder: Path) -> tuple[Watch, list[AnyEvent]]:
    loaded = load(root, window=1_048_576)
    events: list[AnyEvent] = [PackSegment(text=s.text, files=s.files) for s in loaded.segments]
    events.append(RepositoryLoaded(files=1, tokens=1, exact=False, skipped=dict(loaded.skipped)))
    watch = Watch(root, Options(), folder, events)
    watch.trust(loaded)
    return watch, events


def test_a_look_without_changes_reads_no_file(
    make_repo: MakeRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_repo({f"d{n % 7}/f{n}.py": b"x\n" for n in range(50)})
    time.sleep(0.06)  # what changed just before it was read cannot be trusted
    watch, events = watching(root, tmp_path / "told")
    for opened in ("read_regular", "walk"):
        monkeypatch.setattr(module, opened, None)
    assert watch.look(1000) is None
    monkeypatch.undo()
    # From the log alone everything is read once.
    later = Watch(root, Options(), tmp_path / "told", events)
    assert later.look(1000) is None
    for opened in ("read_regular", "walk"):
        monkeypatch.setattr(module, opened, None)
    assert later.look(1000) is None


def test_a_look_can_be_stopped(make_repo: MakeRepo, tmp_path: Path) -> None:
    root = make_repo({"a.py": b"x"})
    watch, _ = watching(root, tmp_path / "told")
    (root / "a.py").write_bytes(b"y")
    with pytest.raises(Cancelled):
        watch.look(1000, stop=lambda: True)


def test_a_change_of_the_same_size_with_its_time_set_back_is_noticed(
    make_repo: MakeRepo, tmp_path: Path
) -> None:
    root = make_repo({"a.py": b"x = 1\n"})
    time.sleep(0.06)
    watch, _ = watching(root, tmp_path / "told")
    was = (root / "a.py").stat()
    (root / "a.py").write_bytes(b"x = 2\n")
    os.utime(root / "a.py", ns=(was.st_atime_ns, was.st_mtime_ns))
    note = watch.look(1000)
    assert note is not None
    assert note.files == {"a.py": digest(b"x = 2\n")}


@pytest.mark.parametrize("seed", range(3))
def test_any_course_of_edits_leaves_the_model_with_what_is_on_disk(
    make_repo: MakeRepo, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    lines = [f"line {n}\n" for n in range(40)]
    root = make_repo({f"src/f{n}.py": "".join(lines).encode() for n in range(8)})
    watch, events = watching(root, tmp_path / "told")
    model = {
        part.name: part.data
        for event in events
        if isinstance(event, PackSegment)
        for part in unpack(event.text)
    }
    for _ in range(25):
        for _ in range(rng.randrange(3)):
            name = f"src/f{rng.randrange(11)}.py"
            path = root / name
            data = path.read_bytes() if path.exists() else b""
            kept = data.splitlines(keepends=True)
            kept.insert(rng.randrange(len(kept) + 1), b"more %d\n" % rng.randrange(9))
            fresh = b"".join(kept) if rng.random() < 0.8 else b"other\n" * rng.randrange(30)
            if rng.random() < 0.2:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(fresh)
                if rng.random() < 0.4:  # a tool of the session wrote it
                    result = ToolResult(call_id="c", text="", seen={name: digest(fresh)})
                    watch.add(result)
                    events.append(result)
                    model[name] = fresh
        if rng.random() < 0.2:
            watch = Watch(root, Options(), tmp_path / "told", events)
        note = watch.look(100_000)
        if note is not None:
            watch.add(note)
            events.append(note)
            tell(model, note, tmp_path)
        on_disk = {f"src/{path.name}": path.read_bytes() for path in (root / "src").iterdir()}
        assert model == on_disk


def tell(model: dict[str, bytes], note: FilesChanged, folder: Path) -> None:
    """Do to `model` what a reader of the note would do."""
    for part in unpack(note.text):
        if part.tag == "file":
            model[part.name] = part.data
            continue
        assert part.tag == "diff"
        (folder / "text").write_bytes(model[part.name])
        subprocess.run(
            ["git", "apply", "--unidiff-zero", "-"],
            cwd=folder,
            input=b"--- a/text\n+++ b/text\n" + part.data,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )
        model[part.name] = (folder / "text").read_bytes()
    for name, found in note.files.items():
        if found == ABSENT:
            del model[name]
        else:
            assert digest(model[name]) == found
