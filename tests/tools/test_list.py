from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.tools.list import MOST_ENTRIES, List, ListArguments

Git = Callable[..., str]


async def test_entries_with_kind_and_size_in_order(bench: Any) -> None:
    bench.put("b.txt", b"x" * 1234)
    bench.put("a/inner.txt", b"")
    bench.put(".hidden", b"h")
    (bench.root / "link").symlink_to("b.txt")
    (bench.root / "dead").symlink_to("nowhere")
    os.mkfifo(bench.root / "pipe")
    assert (await bench.run(List())).text == (
        "The root has 1 folder, 2 files, 3 others\n"
        ".hidden  1\n"
        "a/\n"
        "b.txt  1,234\n"
        "dead -> nowhere  (nothing there)\n"
        "link -> b.txt\n"
        "pipe  (FIFO)"
    )


async def test_depth(bench: Any) -> None:
    bench.put("a/b/c/deep.txt", b"12")
    two = (await bench.run(List(), depth=2)).text
    assert two == "The root has 2 folders, 0 files, 2 levels deep\na/\na/b/"
    four = (await bench.run(List(), path="a", depth=4)).text
    assert four.split("\n")[1:] == ["b/", "b/c/", "b/c/deep.txt  2"]
    assert four.startswith("a/ has")


@pytest.mark.parametrize("with_git", [True, False], ids=["git", "no-git"])
async def test_ignored_is_marked_and_not_entered(
    bench: Any, request: pytest.FixtureRequest, with_git: bool
) -> None:
    if with_git:
        request.getfixturevalue("git")
    bench.put(".gitignore", b"*.log\nbuild/\n!keep.log\n")
    bench.put("build/out.txt", b"x")
    bench.put("a.log", b"x")
    bench.put("keep.log", b"x")
    text = (await bench.run(List(), depth=3)).text
    lines = text.split("\n")
    ignored = "ignored by git" if with_git else "ignored by .gitignore"
    assert f"a.log  1  ({ignored})" in lines
    assert f"build/  ({ignored}, not entered)" in lines
    assert "keep.log  1" in lines
    assert "out.txt" not in text
    assert any(line.startswith(".git/  (git's own") for line in lines) == with_git
    inside = (await bench.run(List(), path="build")).text
    assert "out.txt  1" in inside  # named by the caller, an ignored folder is listed


async def test_the_cap_is_said_with_the_total(bench: Any) -> None:
    for number in range(MOST_ENTRIES + 7):
        (bench.root / f"f{number:05}").touch()
    lines = (await bench.run(List())).text.split("\n")
    assert lines[0] == "The root has 0 folders, 1,007 files"
    assert lines[1].startswith("Shown: the first 1,000 of 1,007 entries")
    assert len(lines) == MOST_ENTRIES + 2


async def test_empty_and_wrong_paths(bench: Any) -> None:
    bench.put("f.txt", b"")
    (bench.root / "void").mkdir()
    assert (await bench.run(List(), path="void")).text == "void/ is empty"
    assert "use `read`" in await bench.refused(List(), path="f.txt")
    assert "does not exist" in await bench.refused(List(), path="nope")
    for wrong in ({"depth": 0}, {"depth": "2"}, {"depth": 21}):
        with pytest.raises(ValueError, match="depth"):
            ListArguments.model_validate(wrong)


async def test_a_name_that_is_not_utf8_is_written_out(bench: Any) -> None:
    os.close(os.open(os.fsencode(bench.root) + b"/caf\xe9", os.O_CREAT | os.O_WRONLY))
    (bench.root / "new\nline").touch()
    text = (await bench.run(List())).text
    assert "caf\\xE9  0" in text
    assert "new\\nline  0" in text
    text.encode("utf-8")


def test_c27_effects_name_the_real_folder(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (bench.root / "door").symlink_to(tmp_path / "outside")
    real = str(tmp_path / "outside")
    assert bench.effects(List(), path="door") == [("read", real), ("outside_root", real)]
    assert bench.effects(List()) == [("read", ".")]
