from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from unabridged.tools import edit as edit_module
from unabridged.tools.base import Context, Facts, ToolError, digest
from unabridged.tools.edit import Edit, EditArguments, make_plan
from unabridged.tools.read import Read
from unabridged.tools.write import Write

FRENCH = "# Une élève très âgée, ça coûte cher à l'école\nname = 'x'\n# fin déjà\n"
SMART = "“smart” quotes – and € signs…\nname = 'x'\n‘end’\n"
CHINESE = "# 这是一个测试文件，用来说明编码\nname = 'x'\n# 结束了，谢谢大家的帮助\n"
JAPANESE = "# これはテストのファイルです。表示\nname = 'x'\n# 日本語の文字列、終わり\n"

ENCODINGS = [
    ("utf-8", b"", FRENCH + CHINESE),
    ("utf-8", b"\xef\xbb\xbf", FRENCH + JAPANESE),
    ("utf-16-le", b"\xff\xfe", CHINESE),
    ("utf-16-be", b"\xfe\xff", JAPANESE),
    ("utf-16-le", b"", FRENCH),
    ("utf-16-be", b"", FRENCH),
    ("utf-32-le", b"\xff\xfe\0\0", FRENCH),
    ("latin-1", b"", FRENCH),
    ("cp1252", b"", SMART),
    ("gbk", b"", CHINESE),
    ("cp932", b"", JAPANESE),
]
IDS = [f"{codec}{'-bom' if bom else ''}" for codec, bom, _ in ENCODINGS]


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize(("codec", "bom", "text"), ENCODINGS, ids=IDS)
async def test_c10_c12_bytes_outside_the_edit_stay(
    bench: Any, codec: str, bom: bytes, text: str, eol: str
) -> None:
    before = bom + text.replace("\n", eol).encode(codec)
    old = f"name = 'x'{eol}".encode(codec)
    head, _, tail = before.partition(old)
    path = bench.put("f.txt", before)
    result = await bench.run(
        Edit(), path="f.txt", old="name = 'x'\n", new="name = 'y'\nmore = 1\n",
        replace_all=before.count(old) > 1,
    )  # fmt: skip
    new = f"name = 'y'{eol}more = 1{eol}".encode(codec)
    assert path.read_bytes() == head + new + tail.replace(old, new)
    assert result.changed == ("f.txt",)
    assert "�" not in result.text + result.diff


@pytest.mark.parametrize(
    ("codec", "text", "old", "new"),
    [
        ("latin-1", FRENCH, "élève très", "fenêtre très élevée"),
        ("cp1252", SMART, "“smart”", "“clever”"),
        ("gbk", CHINESE, "测试文件", "说明文件"),
        ("cp932", JAPANESE, "テスト", "日本語テスト"),
        ("utf-16-le", CHINESE, "谢谢", "谢谢😀"),
    ],
)
async def test_c12_text_in_the_file_s_encoding(
    bench: Any, codec: str, text: str, old: str, new: str
) -> None:
    path = bench.put("f.txt", text.encode(codec))
    await bench.run(Edit(), path="f.txt", old=old, new=new)
    assert path.read_bytes() == text.replace(old, new).encode(codec)


async def test_c11_half_a_character_is_no_match(bench: Any) -> None:
    # The second byte of 表 in Shift-JIS is a backslash, of 乗 in GBK a letter.
    path = bench.put("f.txt", JAPANESE.encode("cp932"))
    assert b"\\" in path.read_bytes()
    assert "does not occur" in await bench.refused(Edit(), path="f.txt", old="\\", new="/")
    assert path.read_bytes() == JAPANESE.encode("cp932")


async def test_c11_bytes_that_are_no_text_stay(bench: Any) -> None:
    before = "äöü ßß éé: ".encode() + b"\xff\xfe\x9d\nname = 1\n" + b"\xc3(\n"
    path = bench.put("f.txt", before)
    await bench.run(Edit(), path="f.txt", old="name = 1", new="name = 2")
    assert path.read_bytes() == before.replace(b"= 1", b"= 2")
    text = await bench.refused(Edit(), path="f.txt", old="name = 2", new="name = ж")
    assert "not certain" in text
    assert path.read_bytes() == before.replace(b"= 1", b"= 2")


async def test_a_character_missing_in_the_encoding_is_refused(bench: Any) -> None:
    path = bench.put("f.txt", FRENCH.encode("latin-1"))
    text = await bench.refused(Edit(), path="f.txt", old="élève", new="élève €")
    assert "Latin-1" in text
    assert "U+20AC" in text
    assert path.read_bytes() == FRENCH.encode("latin-1")


async def test_an_encoding_that_may_be_another_is_refused(bench: Any) -> None:
    russian = "# Это тестовый файл, привет всем\n"
    path = bench.put("f.txt", russian.encode("cp1251"))
    shown = (await bench.run(Read(), path="f.txt")).text
    assert "guess" in shown
    text = await bench.refused(Edit(), path="f.txt", old="всем", new="всем людям щ")
    assert "not certain" in text
    await bench.run(Edit(), path="f.txt", old="всем", new="all")
    assert path.read_bytes() == russian.replace("всем", "all").encode("cp1251")


async def test_c13_mixed_endings_keep_theirs_and_the_diff_shows_them(bench: Any) -> None:
    before = b"a\r\nb\nc\rd\r\ne\n"
    path = bench.put("f.txt", before)
    preview = bench.preview(Edit(), path="f.txt", old="b\nc\nd", new="b\nC\nx\nd")
    result = await bench.run(Edit(), path="f.txt", old="b\nc\nd", new="b\nC\nx\nd")
    assert path.read_bytes() == b"a\r\nb\nC\rx\rd\r\ne\n"
    assert preview == result.diff
    assert "-c\\rd\\r" in result.diff
    assert "+C\\rx\\rd\\r" in result.diff


async def test_c13_an_inserted_line_takes_the_ending_next_to_it(bench: Any) -> None:
    path = bench.put("f.txt", b"a\nb\r\nc\n")
    await bench.run(Edit(), path="f.txt", old="b", new="b\nB")
    assert path.read_bytes() == b"a\nb\r\nB\r\nc\n"


async def test_no_final_newline_is_kept(bench: Any) -> None:
    path = bench.put("f.txt", b"a\r\nb")
    result = await bench.run(Edit(), path="f.txt", old="b", new="c\nd")
    assert path.read_bytes() == b"a\r\nc\r\nd"
    assert result.diff.count("\\ No newline at end of file") == 2


async def test_c15_bom_is_kept_and_invisible(bench: Any) -> None:
    path = bench.put("f.txt", b"\xef\xbb\xbffirst\nsecond\n")
    shown = (await bench.run(Read(), path="f.txt")).text
    assert "﻿" not in shown
    assert "with BOM" in shown
    await bench.run(Edit(), path="f.txt", old="first\n", new="1st\n")
    assert path.read_bytes() == b"\xef\xbb\xbf1st\nsecond\n"


async def test_c16_no_anchor_no_edit(bench: Any) -> None:
    path = bench.put("f.txt", b"a\n")
    assert "`old` is empty" in await bench.refused(Edit(), path="f.txt", old="", new="b\n")
    assert path.read_bytes() == b"a\n"


async def test_nothing_to_change_is_refused(bench: Any) -> None:
    bench.put("f.txt", b"a\r\n")
    assert "same text" in await bench.refused(Edit(), path="f.txt", old="a", new="a")
    assert "line endings" in await bench.refused(Edit(), path="f.txt", old="a\n", new="a\r\n")


async def test_c17_an_error_names_the_nearest_text(bench: Any) -> None:
    lines = [f"line {n}\n" for n in range(1, 200)]
    lines[120] = "    def compute_total(self, items):\n"
    lines[121] = "        return sum(items)\n"
    bench.put("f.py", "".join(lines).encode())
    text = await bench.refused(
        Edit(),
        path="f.py",
        old="  def compute_total(self, items):\n    return sum(items)\n",
        new="x",
    )
    assert "lines 121 to 122" in text
    assert "   121\t    def compute_total(self, items):" in text
    assert "First difference, line 122" in text
    assert "'    return sum(items)'" in text


async def test_c17_line_numbers_in_old_are_named(bench: Any) -> None:
    bench.put("f.py", b"a = 1\nb = 2\n")
    text = await bench.refused(Edit(), path="f.py", old="     1\ta = 1\n     2\tb = 2", new="x")
    assert "leave them out" in text


async def test_c17_nothing_alike(bench: Any) -> None:
    bench.put("f.py", b"a = 1\n")
    assert "resembles" in await bench.refused(Edit(), path="f.py", old="zzzzzz qqqq", new="x")


async def test_c18_several_matches_fail_and_are_listed(bench: Any) -> None:
    path = bench.put("f.txt", b"x\ny\nx\nz\nx\n")
    text = await bench.refused(Edit(), path="f.txt", old="x", new="w")
    assert "3 times" in text
    assert "lines 1, 3, 5" in text
    assert path.read_bytes() == b"x\ny\nx\nz\nx\n"
    result = await bench.run(Edit(), path="f.txt", old="x", new="w", replace_all=True)
    assert path.read_bytes() == b"w\ny\nw\nz\nw\n"
    assert "3 occurrences" in result.text


async def test_c18_overlapping_matches_are_not_unique(bench: Any) -> None:
    path = bench.put("f.txt", b"aaa")
    assert "2 times" in await bench.refused(Edit(), path="f.txt", old="aa", new="b")
    await bench.run(Edit(), path="f.txt", old="aa", new="b", replace_all=True)
    assert path.read_bytes() == b"ba"


def test_c20_arguments_have_no_default_and_are_not_coerced() -> None:
    good = {"path": "a", "old": "b", "new": "c"}
    for missing in good:
        with pytest.raises(ValueError, match=missing):
            EditArguments.model_validate({k: v for k, v in good.items() if k != missing})
    for wrong in ("true", 1, None):
        with pytest.raises(ValueError, match="replace_all"):
            EditArguments.model_validate({**good, "replace_all": wrong})
    with pytest.raises(ValueError, match="extra"):
        EditArguments.model_validate({**good, "file": "x"})


async def test_one_byte_is_no_evidence_of_an_encoding(bench: Any) -> None:
    path = bench.put("f.txt", b"author: Mar\xeda\n")
    assert "not certain" in await bench.refused(Edit(), path="f.txt", old="author", new="autör")
    await bench.run(Edit(), path="f.txt", old="author", new="writer")
    assert path.read_bytes() == b"writer: Mar\xeda\n"


# --- the file as a thing -----------------------------------------------------------------------


async def test_stale_file_is_refused_with_its_current_text(bench: Any) -> None:
    path = bench.put("f.txt", b"alpha beta\n")
    await bench.run(Read(), path="f.txt")
    path.write_bytes(b"alpha gamma\n")
    text = await bench.refused(Edit(), path="f.txt", old="alpha", new="omega")
    assert "changed since it was shown" in text
    assert "alpha gamma" in text
    assert path.read_bytes() == b"alpha gamma\n"
    await bench.run(Read(), path="f.txt")
    await bench.run(Edit(), path="f.txt", old="alpha", new="omega")
    assert path.read_bytes() == b"omega gamma\n"


async def test_edits_follow_each_other_without_a_read(bench: Any) -> None:
    path = bench.put("f.txt", b"one\ntwo\n")
    assert not (await bench.run(Edit(), path="f.txt", old="one", new="1")).seen  # never shown whole
    await bench.run(Read(), path="f.txt")
    await bench.run(Edit(), path="f.txt", old="1", new="one")
    await bench.run(Edit(), path="f.txt", old="two", new="2")
    assert bench.seen["f.txt"] == digest(path.read_bytes())


async def test_mode_is_kept_and_no_temporary_file_stays(bench: Any) -> None:
    path = bench.put("run.sh", b"echo a\n")
    path.chmod(0o4755)
    if os.getuid() == 0:
        os.chown(path, 12345, 54321)
        path.chmod(0o4755)
    await bench.run(Edit(), path="run.sh", old="a", new="b")
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o4755
    if os.getuid() == 0:
        assert (found.st_uid, found.st_gid) == (12345, 54321)
    assert [p.name for p in bench.root.iterdir()] == ["run.sh"]


async def test_symlink_inside_stays_a_link(bench: Any) -> None:
    path = bench.put("real/f.txt", b"a\n")
    link = bench.root / "link.txt"
    link.symlink_to("real/f.txt")
    assert bench.effects(Edit(), path="link.txt", old="a", new="b") == [("write", "real/f.txt")]
    result = await bench.run(Edit(), path="link.txt", old="a", new="b")
    assert link.is_symlink()
    assert path.read_bytes() == b"b\n"
    assert result.changed == ("real/f.txt",)


async def test_c27_a_link_out_of_the_root_says_so(bench: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f.txt").write_bytes(b"a\n")
    (bench.root / "door").symlink_to(outside)
    real = str(outside / "f.txt")
    assert bench.effects(Edit(), path="door/f.txt", old="a", new="b") == [
        ("write", real),
        ("outside_root", real),
    ]
    assert bench.effects(Edit(), path="../outside/f.txt", old="nope", new="b") == [
        ("read", real),
        ("outside_root", real),
    ]


async def test_an_edit_that_cannot_match_only_reads(bench: Any) -> None:
    bench.put(".env", b"KEY=sesame\n")
    kinds = [kind for kind, _ in bench.effects(Edit(), path=".env", old="KEX", new="b")]
    assert kinds == ["read", "secret"]
    assert "would be changed" in bench.preview(Edit(), path=".env", old="KEX", new="b")


async def test_c28_dangling_link_is_refused(bench: Any, tmp_path: Path) -> None:
    (bench.root / "link").symlink_to(tmp_path / "nowhere")
    text = await bench.refused(Edit(), path="link", old="a", new="b")
    assert "does not exist" in text
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("swap", ["file", "folder"])
def test_c28_a_link_put_there_meanwhile_is_not_followed(
    bench: Any, tmp_path: Path, swap: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f.txt").write_bytes(b"a\n")
    bench.put("in/f.txt", b"a\n")
    args = EditArguments(path="in/f.txt", old="a", new="b")
    plan = make_plan(args, bench.facts)
    if swap == "file":
        (bench.root / "in/f.txt").unlink()
        (bench.root / "in/f.txt").symlink_to(outside / "f.txt")
    else:
        (bench.root / "in").rename(bench.root / "moved")
        (bench.root / "in").symlink_to(outside)
    with pytest.raises(ToolError, match="symlink"):
        edit_module.replace_file(plan.where, bench.facts, plan.was, [b"b\n"], threading.Event())
    assert (outside / "f.txt").read_bytes() == b"a\n"
    assert [p.name for p in outside.iterdir()] == ["f.txt"]


def test_a_change_right_before_the_replacement_is_noticed(bench: Any) -> None:
    path = bench.put("f.txt", b"a\n")
    plan = make_plan(EditArguments(path="f.txt", old="a", new="b"), bench.facts)
    found = path.stat()
    path.write_bytes(b"c\n")  # same size; and let the time look the same too
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(ToolError, match="changed while"):
        edit_module.replace_file(plan.where, bench.facts, plan.was, [b"b\n"], threading.Event())
    assert path.read_bytes() == b"c\n"
    assert len(list(bench.root.iterdir())) == 1


@pytest.mark.parametrize("tool", [Edit(), Write()], ids=["edit", "write"])
async def test_only_what_was_decided_on_is_done(bench: Any, tool: Edit | Write) -> None:
    path = bench.put("f.txt", b"b\n")
    await bench.run(Read(), path="f.txt")
    more = {"old": "a", "new": "z"} if isinstance(tool, Edit) else {"content": "z\n"}
    args = bench.args(tool, {"path": "f.txt", **more})
    decided = tool.effects(args, bench.facts)
    path.write_bytes(b"a\n")  # now the edit would match
    bench.seen["f.txt"] = digest(b"a\n")
    context = Context(bench.facts, "call", bench.files, granted=decided)
    with pytest.raises(ToolError, match="decided"):
        await tool.run(args, context)
    assert path.read_bytes() == b"a\n"
    again = tool.effects(args, bench.facts)
    await tool.run(args, Context(bench.facts, "call", bench.files, granted=again))
    assert path.read_bytes() == b"z\n"


async def test_read_only_is_refused_whoever_runs(bench: Any) -> None:
    path = bench.put("f.txt", b"a\n")
    path.chmod(0o444)
    text = await bench.refused(Edit(), path="f.txt", old="a", new="b")
    assert "read-only (mode 444)" in text
    assert path.read_bytes() == b"a\n"


async def test_hard_link_gets_its_own_copy_and_it_is_said(bench: Any) -> None:
    path = bench.put("f.txt", b"a\n")
    other = bench.root / "g.txt"
    other.hardlink_to(path)
    result = await bench.run(Edit(), path="f.txt", old="a", new="b")
    assert (path.read_bytes(), other.read_bytes()) == (b"b\n", b"a\n")
    assert "2 hard links" in result.text


async def test_what_is_no_text_file_is_refused_without_waiting(bench: Any) -> None:
    os.mkfifo(bench.root / "pipe")
    (bench.root / "folder").mkdir()
    bench.put("b.bin", b"\0\1\2old")
    async with asyncio.timeout(5):
        assert "FIFO" in await bench.refused(Edit(), path="pipe", old="a", new="b")
        assert "device" in await bench.refused(Edit(), path="/dev/zero", old="a", new="b")
        assert "folder" in await bench.refused(Edit(), path="folder", old="a", new="b")
        assert "binary" in await bench.refused(Edit(), path="b.bin", old="old", new="b")


async def test_missing_file_names_the_nearest(bench: Any) -> None:
    bench.put("src/parser.py", b"a\n")
    text = await bench.refused(Edit(), path="src/parsre.py", old="a", new="b")
    assert "src/parser.py" in text


async def test_full_disk_leaves_the_file(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.put("f.txt", b"a\n")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "disk is full" in await bench.refused(Edit(), path="f.txt", old="a", new="b")
    assert path.read_bytes() == b"a\n"
    assert [p.name for p in bench.root.iterdir()] == ["f.txt"]


async def test_cancel_writes_nothing_or_all(bench: Any) -> None:
    path = bench.put("f.txt", b"a" * 2_000_000 + b"\nend\n")
    before = path.read_bytes()
    after = before.replace(b"end", b"END")
    for delay in (0, 0.001, 0.005, 0.02):
        path.write_bytes(before)
        work = asyncio.create_task(bench.run(Edit(), path="f.txt", old="end", new="END"))
        await asyncio.sleep(delay)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work  # or it was faster
        assert path.read_bytes() in (before, after)
        now = path.read_bytes()
        await asyncio.sleep(0.05)
        assert path.read_bytes() == now  # nothing goes on after the cancellation returned
        assert len(list(bench.root.iterdir())) == 1


async def test_50_mb(bench: Any) -> None:
    line = b"The quick brown fox jumps over the lazy dog, number %07d\r\n"
    before = b"".join(line % number for number in range(900_000))
    assert len(before) > 50_000_000
    path = bench.put("big.txt", before)
    old, new = "lazy dog, number 0700000\nThe quick", "lazy cat\nThe slow"
    bench.seen["big.txt"] = digest(before)
    began = time.perf_counter()
    preview = bench.preview(Edit(), path="big.txt", old=old, new=new)
    asked = time.perf_counter()
    result = await bench.run(Edit(), path="big.txt", old=old, new=new)
    done = time.perf_counter()
    was = old.replace("\n", "\r\n").encode()
    assert path.read_bytes() == before.replace(was, new.replace("\n", "\r\n").encode())
    assert "at line 700001" in result.text
    assert preview == result.diff
    assert "@@ -699998,8 +699998,8 @@" in result.diff
    assert asked - began < 5
    assert done - asked < 5
    text = await bench.refused(
        Edit(), path="big.txt", old="brown fax jumps, number 0800000", new=""
    )
    assert "line 800001" in text
    assert time.perf_counter() - done < 10


# --- for any bytes -----------------------------------------------------------------------------

PIECES = st.text(alphabet="ab \tÀé中表\r\n", max_size=6)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    head=PIECES, old=st.text(alphabet="xyé中 \n", min_size=1, max_size=8), tail=PIECES,
    new=PIECES.map(lambda s: s.replace("\r", "")), eol=st.sampled_from(["\n", "\r\n", "\r"]),
    kind=st.sampled_from([(c, b) for c, b, _ in ENCODINGS if c.startswith("utf")]),
)  # fmt: skip
@example(head="", old="\n", tail="", new="", eol="\r\n", kind=("utf-8", b""))
@example(head="\r", old="\nx", tail="", new="b", eol="\n", kind=("utf-8", b""))
def test_c10_any_text_edited_is_the_text_spliced(
    bench: Any, head: str, old: str, tail: str, new: str, eol: str, kind: tuple[str, bytes]
) -> None:
    codec, bom = kind
    there = old.replace("\n", eol)
    before = bom + (head + there + tail).encode(codec)
    bench.put("f.txt", before)
    args = EditArguments(path="f.txt", old=old, new=new)
    try:
        plan = make_plan(args, bench.facts)
    except ToolError:
        return
    after = b"".join(edit_module.spliced(before, plan.splices))
    (splice,) = plan.splices
    assert after == before[: splice.start] + splice.new + before[splice.end :]
    assert (
        before[splice.start : splice.end].decode(codec).replace("\r\n", "\n").replace("\r", "\n")
        == old
    )
    assert splice.new.decode(codec).replace("\r\n", "\n").replace("\r", "\n") == new
    assert after.startswith(bom)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(head=st.binary(max_size=40), tail=st.binary(max_size=40))
def test_c10_any_bytes_around_an_ascii_edit_stay(bench: Any, head: bytes, tail: bytes) -> None:
    before = head + b"\nold_name = 1\n" + tail
    path = bench.put("f.txt", before)
    try:
        asyncio.run(bench.run(Edit(), path="f.txt", old="old_name = 1", new="new_name = 2"))
    except ToolError:
        assert path.read_bytes() == before
    else:
        assert path.read_bytes() == head + b"\nnew_name = 2\n" + tail


def test_facts_are_the_only_memory(bench: Any) -> None:
    bench.put("f.txt", b"a\n")
    args = EditArguments(path="f.txt", old="a", new="b")
    make_plan(args, Facts(bench.root))
    with pytest.raises(ToolError, match="changed since"):
        make_plan(args, Facts(bench.root, {"f.txt": digest(b"other")}))


async def test_c12_a_character_with_two_codes_keeps_the_one_it_has(bench: Any) -> None:
    # The file has the code that Windows writes; Python's codec would write the other one.
    name = b"\xfb\xfc"
    assert name.decode("cp932").encode("cp932") != name
    text = "これは日本語の文章です。名前は".encode("cp932")
    path = bench.put("a.txt", text + name + "橋、点数は1。\n".encode("cp932") + text + b"\n")
    await bench.run(Edit(), path="a.txt", old="点数は1", new="点数は2")
    assert path.read_bytes() == (text + name + "橋、点数は2。\n".encode("cp932") + text + b"\n")
