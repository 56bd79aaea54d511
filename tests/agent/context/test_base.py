"""The frozen base: what was sent stays as it was, and what changed comes after it."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unabridged.agent.context.changes import unified_diff
from unabridged.agent.context.load import ABSENT, Load, Options, load
from unabridged.agent.context.pack import unpack
from unabridged.tools.base import digest

from .conftest import Repo

MakeRepo = Callable[..., Repo]
WINDOW = 262_144


def files(count: int = 30) -> dict[str, str | bytes]:
    return {f"src/f{n:02}.py": "".join(f"x{i} = {n}\n" for i in range(100)) for n in range(count)}


def texts(loaded: Load) -> list[str]:
    return [segment.text for segment in loaded.segments]


def known(loaded: Load) -> dict[str, str]:
    """File -> digest as the messages say, the last word counting."""
    state: dict[str, str] = {}
    for segment in loaded.segments:
        state.update(segment.files)
    return {name: one for name, one in state.items() if one != ABSENT}


def on_disk(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): digest(path.read_bytes())
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


@pytest.fixture
def repo(make_repo: MakeRepo) -> Repo:
    return make_repo(files())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_without_changes_the_messages_are_the_same(repo: Repo, cache: Path) -> None:
    first = load(repo.root, window=WINDOW, cache=cache)
    second = load(repo.root, window=WINDOW, cache=cache)
    assert texts(first) == texts(second) == texts(load(repo.root, window=WINDOW))
    assert first.stored == 0
    assert second.stored == len(second.segments)


def test_an_edit_a_new_file_and_a_deletion_are_appended(repo: Repo, cache: Path) -> None:
    first = load(repo.root, window=WINDOW, cache=cache)
    repo.write("src/f00.py", str(files()["src/f00.py"]).replace("x50 = 0", "x50 = 'edited'"))
    repo.write("src/new.py", "new = True\n")
    (repo.root / "src/f29.py").unlink()
    repo.commit()
    second = load(repo.root, window=WINDOW, cache=cache)
    assert texts(second)[: len(first.segments)] == texts(first)
    assert second.stored == len(first.segments)
    (appended,) = second.segments[second.stored :]
    parts = {part.name: (part.tag, part.data.decode()) for part in unpack(appended.text)}
    assert parts["src/new.py"] == ("file", "new = True\n")
    tag, diff = parts["src/f00.py"]
    assert tag == "diff"
    assert "-x50 = 0\n+x50 = 'edited'\n" in diff
    assert len(diff.splitlines()) == 9
    assert '"src/f29.py"' in appended.text
    assert appended.files["src/f29.py"] == ABSENT
    assert known(second) == on_disk(repo.root)

    repo.write("src/f00.py", "short\n")
    third = load(repo.root, window=WINDOW, cache=cache)
    assert texts(third)[: len(second.segments)] == texts(second)
    assert known(third) == on_disk(repo.root)
    assert load(repo.root, window=WINDOW, cache=cache).segments == third.segments


def test_a_second_edit_is_a_diff_against_what_was_last_told(repo: Repo, cache: Path) -> None:
    text = str(files()["src/f03.py"])
    load(repo.root, window=WINDOW, cache=cache)
    repo.write("src/f03.py", text := text.replace("x10 = 3", "x10 = 30"))
    load(repo.root, window=WINDOW, cache=cache)
    repo.write("src/f03.py", text.replace("x90 = 3", "x90 = 30"))
    last = load(repo.root, window=WINDOW, cache=cache).segments[-1].text
    assert "+x90 = 30\n" in last
    assert "x10" not in last


def test_much_change_rebuilds_the_base_behind_the_first_changed_file(
    repo: Repo, cache: Path
) -> None:
    first = load(repo.root, window=WINDOW, cache=cache)
    order = [part.name for part in unpack("".join(texts(first)))]
    for name in order[12:22]:
        repo.write(name, "".join(f"completely = 'different {i}'\n" for i in range(40)))
        repo.commit()
    second = load(repo.root, window=WINDOW, cache=cache)
    assert known(second) == on_disk(repo.root)
    together = "".join(texts(first))
    assert "".join(texts(second)).startswith(together[: together.index(f'"{order[12]}"')])
    assert texts(second)[: len(first.segments)] != texts(first)
    assert second.tokens < 1.2 * first.tokens

    fresh = load(repo.root, window=WINDOW, cache=cache, rebuild=True)
    parts = [part.name for part in unpack("".join(texts(fresh)))]
    assert sorted(parts) == sorted(order)
    assert parts[:12] == order[:12]
    assert set(parts[-10:]) == set(order[12:22])


def test_a_rebuild_keeps_the_whole_base_when_differences_cancel_out(
    repo: Repo, cache: Path
) -> None:
    now = first = load(repo.root, window=WINDOW, cache=cache)
    contents = files()
    for number in range(14):
        name = f"src/f{number % 7:02}.py"
        repo.write(name, str(contents[name]) if number >= 7 else "# emptied\n")
        now = load(repo.root, window=WINDOW, cache=cache)
        assert texts(now)[: len(first.segments) - 1] == texts(first)[:-1]
    assert known(now) == on_disk(repo.root)


def test_a_rebuild_can_be_asked_for(repo: Repo, cache: Path) -> None:
    load(repo.root, window=WINDOW, cache=cache)
    repo.write("src/f00.py", "x = 1\n")
    load(repo.root, window=WINDOW, cache=cache)
    rebuilt = load(repo.root, window=WINDOW, cache=cache, rebuild=True)
    assert [part.tag for part in unpack("".join(texts(rebuilt)))] == ["file"] * 30


def test_other_options_have_their_own_base(repo: Repo, cache: Path) -> None:
    plain = load(repo.root, window=WINDOW, cache=cache)
    load(repo.root, window=WINDOW, cache=cache, options=Options(exclude=["src/f0*"]))
    assert load(repo.root, window=WINDOW, cache=cache).segments == plain.segments


def test_what_the_task_names_is_appended_for_this_session_only(
    make_repo: MakeRepo, cache: Path
) -> None:
    repo = make_repo({**files(), "data/big.json": '{"a": [1, 2, 3]}\n' * 400, "a.md": "x"})
    load_it = functools.partial(
        load, repo.root, window=WINDOW, cache=cache, options=Options(outline=["data/"])
    )
    plain = load_it()
    named = load_it(options=Options(outline=["data/"], named=["data/big.json"]))
    assert texts(named)[:-1] == texts(plain)
    (part,) = unpack(named.segments[-1].text)
    assert part.data == (repo.root / "data/big.json").read_bytes()
    assert not named.outlined
    assert named.files == plain.files + 1
    assert load_it().segments == plain.segments


@pytest.mark.parametrize("damage", ["cut", "flip", "delete", "state", "garbage", "other"])
def test_a_damaged_store_costs_time_only(repo: Repo, cache: Path, damage: str) -> None:
    fresh = load(repo.root, window=WINDOW).segments
    load(repo.root, window=WINDOW, cache=cache)
    (state,) = cache.glob("bases/*/base.json")
    blob = max(
        (path for path in state.parent.iterdir() if path.stat().st_size and path != state),
        key=lambda p: p.name,
    )
    data = blob.read_bytes()
    match damage:
        case "cut":
            blob.write_bytes(data[:-10])
        case "flip":
            blob.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        case "delete":
            blob.unlink()
        case "state":
            state.write_bytes(state.read_bytes()[:-20])
        case "garbage":
            state.write_bytes(b'{"segments": 7}')
        case _:
            state.write_bytes(b"[]")
    again = load(repo.root, window=WINDOW, cache=cache)
    assert again.segments == fresh
    assert load(repo.root, window=WINDOW, cache=cache).stored == len(fresh)


def test_two_processes_at_once_share_a_base(repo: Repo, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from unabridged.agent.context.load import load\n"
        f"for n in range(6): load(Path(sys.argv[1]), window={WINDOW}, cache=Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(repo.root), str(cache)]
    others = [subprocess.Popen(command) for _ in range(2)]
    try:
        for number in range(8):
            repo.write(f"src/f{number:02}.py", f"x = {number}\n")
            time.sleep(0.05)
    finally:
        codes = [other.wait() for other in others]
    assert codes == [0, 0]
    last = load(repo.root, window=WINDOW, cache=cache)
    assert known(last) == on_disk(repo.root)
    again = load(repo.root, window=WINDOW, cache=cache)
    assert again.segments == last.segments
    assert again.stored == len(last.segments)


def test_a_store_that_cannot_be_written_is_done_without(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    loaded = load(repo.root, window=WINDOW, cache=tmp_path / "file")
    assert loaded.segments == load(repo.root, window=WINDOW).segments


def test_any_course_of_edits_keeps_the_prefix_and_tells_the_truth(repo: Repo, cache: Path) -> None:
    rng = random.Random(7)
    before = load(repo.root, window=WINDOW, cache=cache)
    rebuilds = 0
    for step in range(25):
        for _ in range(rng.randrange(1, 4)):
            name = f"src/f{rng.randrange(36):02}.py"
            match rng.randrange(4):
                case 0:
                    (repo.root / name).unlink(missing_ok=True)
                case 1:
                    repo.write(name, "".join(f"y{i}\n" for i in range(rng.randrange(60))))
                case _:
                    old = (repo.root / name).read_text() if (repo.root / name).exists() else ""
                    lines = old.splitlines(keepends=True)
                    lines.insert(rng.randrange(len(lines) + 1), f"step{step}")
                    repo.write(name, "".join(lines))
        if rng.random() < 0.5:
            repo.commit()
        now = load(repo.root, window=WINDOW, cache=cache)
        assert known(now) == on_disk(repo.root)
        if texts(now)[: len(before.segments)] != texts(before):
            rebuilds += 1
        before = now
    assert rebuilds < 6


# --- diffs -------------------------------------------------------------------------------------

lines = st.lists(st.sampled_from(["a", "b", "", "c\r", "\x0c", "\u2028"]), max_size=12)
some_text = st.tuples(lines, st.booleans()).map(
    lambda pair: "\n".join(pair[0]) + ("\n" if pair[1] else "")
)


@settings(max_examples=60, deadline=None)
@given(old=some_text, new=some_text)
def test_patch_applies_our_diffs(
    tmp_path_factory: pytest.TempPathFactory, old: str, new: str
) -> None:
    if old == new:
        assert unified_diff(old, new) == ""
        return
    folder = tmp_path_factory.mktemp("patch")
    (folder / "f").write_bytes(old.encode())
    patch = b"--- a/f\n+++ b/f\n" + unified_diff(old, new).encode()
    subprocess.run(
        ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-"],
        cwd=folder,
        input=patch,
        check=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CEILING_DIRECTORIES": str(folder.parent)},
    )
    assert (folder / "f").read_bytes() == new.encode()


def test_large_rewrites_do_not_take_forever() -> None:
    old = "".join(f"{i}\n" for i in range(30_000))
    new = "".join(f"{i * 7 % 30_011}\n" for i in range(30_000))
    assert unified_diff(old, new).count("\n") > 50_000
