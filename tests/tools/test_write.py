from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from unabridged.tools.base import ABSENT, digest
from unabridged.tools.read import Read
from unabridged.tools.write import Write, WriteArguments


async def test_a_new_file_with_its_folders(bench: Any) -> None:
    effects = Write().effects(WriteArguments(path="a/b/f.py", content="x\n"), bench.facts)
    assert [(e.kind.value, e.path, e.before) for e in effects] == [("write", "a/b/f.py", ABSENT)]
    assert not (bench.root / "a").exists()
    preview = bench.preview(Write(), path="a/b/f.py", content="x = 1\né\n")
    result = await bench.run(Write(), path="a/b/f.py", content="x = 1\né\n")
    path = bench.root / "a/b/f.py"
    assert path.read_bytes() == "x = 1\né\n".encode()
    assert result.changed == ("a/b/f.py",)
    assert result.seen == {"a/b/f.py": digest(path.read_bytes())}
    assert (
        preview == result.diff == ("--- /dev/null\n+++ b/a/b/f.py\n@@ -0,0 +1,2 @@\n+x = 1\n+é\n")
    )
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert [p.name for p in path.parent.iterdir()] == ["f.py"]


async def test_content_is_written_as_given(bench: Any) -> None:
    for content in ("", "a", "a\r\nb\n", "\ufeffa\n", "tab\there\x0c\n"):
        (bench.root / "f.txt").unlink(missing_ok=True)
        await bench.run(Write(), path="f.txt", content=content)
        assert (bench.root / "f.txt").read_bytes() == content.encode()


async def test_c20_nothing_is_written_without_content(bench: Any) -> None:
    for wrong in ({}, {"content": None}, {"content": 3}, {"content": ["a"]}):
        with pytest.raises(ValueError, match="content"):
            WriteArguments.model_validate({"path": "f.txt", **wrong})
    assert not list(bench.root.iterdir())


async def test_an_unseen_file_is_not_overwritten(bench: Any) -> None:
    path = bench.put("f.txt", b"precious\n")
    assert "read all of it first" in await bench.refused(Write(), path="f.txt", content="x\n")
    await bench.run(Read(), path="f.txt")
    path.write_bytes(b"newer\n")
    assert "changed since" in await bench.refused(Write(), path="f.txt", content="x\n")
    assert path.read_bytes() == b"newer\n"
    await bench.run(Read(), path="f.txt")
    await bench.run(Write(), path="f.txt", content="x\n")
    assert path.read_bytes() == b"x\n"
    await bench.run(Write(), path="f.txt", content="y\n")  # what was written is known
    assert path.read_bytes() == b"y\n"


async def test_a_part_that_was_read_is_not_enough(bench: Any) -> None:
    bench.put("f.txt", b"a\nb\n")
    await bench.run(Read(), path="f.txt", end=1)
    assert "read all of it" in await bench.refused(Write(), path="f.txt", content="x\n")


async def test_a_file_thought_deleted_is_not_overwritten(bench: Any) -> None:
    bench.seen["f.txt"] = ABSENT
    bench.put("f.txt", b"somebody's\n")
    assert "read all of it" in await bench.refused(Write(), path="f.txt", content="x\n")


@pytest.mark.parametrize(
    ("codec", "bom", "old"),
    [
        ("utf-8", b"\xef\xbb\xbf", "é\n"),
        ("utf-16-le", b"\xff\xfe", "表\n"),
        ("latin-1", b"", "Größe überprüfen, naïve élève\n"),
        ("gbk", b"", "这是一个测试文件，用来说明编码\n"),
    ],
)
async def test_c10_an_existing_file_keeps_its_encoding(
    bench: Any, codec: str, bom: bytes, old: str
) -> None:
    path = bench.put("f.txt", bom + old.encode(codec))
    await bench.run(Read(), path="f.txt")
    result = await bench.run(Write(), path="f.txt", content=f"x = 1\n{old}")
    assert path.read_bytes() == bom + f"x = 1\n{old}".encode(codec)
    assert "encoding is kept" in result.text


async def test_a_character_missing_in_the_encoding_is_refused(bench: Any) -> None:
    path = bench.put("f.txt", "Größe überprüfen, naïve élève\n".encode("latin-1"))
    await bench.run(Read(), path="f.txt")
    before = path.read_bytes()
    text = await bench.refused(Write(), path="f.txt", content="a\nb €\n")
    assert "U+20AC, line 2" in text
    assert path.read_bytes() == before


async def test_uniform_line_endings_are_kept_and_it_is_said(bench: Any) -> None:
    path = bench.put("f.bat", b"a\r\nb\r\n")
    await bench.run(Read(), path="f.bat")
    result = await bench.run(Write(), path="f.bat", content="a\nc\n")
    assert path.read_bytes() == b"a\r\nc\r\n"
    assert "kept: CRLF" in result.text
    assert "+c" in result.diff
    assert "-a" not in result.diff


async def test_the_diff_shows_changed_endings(bench: Any) -> None:
    bench.put("f.txt", b"a\r\nb\n")
    await bench.run(Read(), path="f.txt")
    preview = bench.preview(Write(), path="f.txt", content="a\nb\n")
    assert "-a\\r\n+a\n b\n" in preview


async def test_the_diff_shows_what_a_terminal_would_act_on(bench: Any) -> None:
    preview = bench.preview(Write(), path="f.txt", content="a\x1b[2Jb‮c\n")
    assert "+a\\x1B[2Jb\\u202Ec" in preview


async def test_the_same_content_is_no_write(bench: Any) -> None:
    bench.put("f.txt", b"a\n")
    await bench.run(Read(), path="f.txt")
    assert "exactly this content" in await bench.refused(Write(), path="f.txt", content="a\n")


async def test_what_cannot_be_written_is_refused(bench: Any, tmp_path: Path) -> None:
    os.mkfifo(bench.root / "pipe")
    bench.put("folder/f.txt", b"a\n")
    bench.put("ro.txt", b"a\n").chmod(0o400)
    await bench.run(Read(), path="ro.txt")
    async with asyncio.timeout(5):
        for path, why in {
            "pipe": "FIFO", "folder": "folder", "folder/": "folder", ".": "folder",
            "/dev/null": "device", "ro.txt": "read-only", "folder/f.txt/x": "not a folder",
        }.items():  # fmt: skip
            assert why in await bench.refused(Write(), path=path, content="x\n"), path
    assert (bench.root / "folder/f.txt").read_bytes() == b"a\n"


async def test_c28_a_dangling_link_does_not_make_a_file_outside(bench: Any, tmp_path: Path) -> None:
    (bench.root / "link").symlink_to(tmp_path / "outside.txt")
    (bench.root / "door").symlink_to(tmp_path / "nowhere")
    for path in ("link", "door/f.txt"):
        assert "does not exist" in await bench.refused(Write(), path=path, content="x\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["files", "repo"]


def test_c27_a_link_out_of_the_root_says_so(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (bench.root / "door").symlink_to(tmp_path / "outside")
    real = str(tmp_path / "outside" / "new" / "f.txt")
    assert bench.effects(Write(), path="door/new/f.txt", content="x") == [
        ("write", real),
        ("outside_root", real),
    ]
    assert bench.effects(Write(), path=".env", content="x") == [
        ("write", ".env"),
        ("secret", ".env"),
    ]


async def test_a_file_made_meanwhile_is_not_overwritten(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_link = os.link

    def late(source: str, target: str, **options: Any) -> None:
        (bench.root / "f.txt").write_bytes(b"theirs\n")
        real_link(source, target, **options)

    monkeypatch.setattr(os, "link", late)
    assert "just now" in await bench.refused(Write(), path="f.txt", content="mine\n")
    assert (bench.root / "f.txt").read_bytes() == b"theirs\n"
    assert [p.name for p in bench.root.iterdir()] == ["f.txt"]


async def test_a_large_rewrite_has_a_diff_in_time(bench: Any) -> None:
    bench.put("f.txt", b"".join(b"%d\n" % (n * 7 % 1000) for n in range(60_000)))
    bench.seen["f.txt"] = digest((bench.root / "f.txt").read_bytes())
    content = "".join(f"{n * 11 % 1000}\n" for n in range(60_000))
    async with asyncio.timeout(20):
        result = await bench.run(Write(), path="f.txt", content=content)
    assert result.diff.count("\n+") > 50_000
