from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unabridged.tools import read as read_module
from unabridged.tools.base import digest
from unabridged.tools.read import Read, ReadArguments
from unabridged.tools.text import UTF8, bare, detect, endings, split_lines

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)


async def test_lines_with_numbers_and_a_heading(bench: Any) -> None:
    data = b"a = 1\n\n  b = 2\n"
    bench.put("src/f.py", data)
    result = await bench.run(Read(), path="src/f.py")
    assert result.text == (
        "src/f.py: 3 lines, 15 bytes, UTF-8, LF line endings\n"
        "     1\ta = 1\n     2\t\n     3\t  b = 2"
    )
    assert result.seen == {"src/f.py": digest(data)}


async def test_k13_a_second_read_gives_the_content_again(bench: Any) -> None:
    bench.put("f.txt", b"the words\n")
    first = await bench.run(Read(), path="f.txt")
    second = await bench.run(Read(), path="f.txt")
    assert "the words" in second.text
    assert first.text == second.text


async def test_a_range(bench: Any) -> None:
    bench.put("f.txt", b"".join(b"line %d\n" % n for n in range(1, 101)))
    result = await bench.run(Read(), path="f.txt", start=10, end=12)
    assert result.text.endswith(
        "Shown: lines 10 to 12 of 100; next part: start=13\n"
        "    10\tline 10\n    11\tline 11\n    12\tline 12"
    )
    assert result.seen == {}
    result = await bench.run(Read(), path="f.txt", start=99, end=5000)
    assert "lines 99 to 100 of 100\n" in result.text
    assert (await bench.run(Read(), path="f.txt", start=1, end=100)).seen


async def test_a_bad_range_says_what_there_is(bench: Any) -> None:
    bench.put("f.txt", b"a\nb\n")
    assert "has 2 lines" in await bench.refused(Read(), path="f.txt", start=3)
    assert "comes before" in await bench.refused(Read(), path="f.txt", start=2, end=1)
    for wrong in ({"start": 0}, {"end": -1}, {"start": "1"}, {"start": 1.5}, {"lines": 3}):
        with pytest.raises(ValueError, match=r"start|end|lines"):
            ReadArguments.model_validate({"path": "f.txt", **wrong})


async def test_the_pages_of_a_long_file_give_all_of_it(bench: Any) -> None:
    lines = [f"{n} {'x' * (n % 977)}" for n in range(2000)]
    bench.put("f.txt", "\n".join(lines).encode() + b"\n")
    got: list[str] = []
    start = 1
    pages = 0
    while True:
        text = (await bench.run(Read(), path="f.txt", start=start)).text
        assert len(text) < read_module.PAGE + 1000
        pages += 1
        heading, *body = text.split("\n")[1:]
        got += [line.split("\t", 1)[1] for line in body]
        if "next part" not in heading:
            break
        start = int(heading.rsplit("=", 1)[1])
    assert pages > 2
    assert got == lines
    assert not bench.seen


async def test_a_line_longer_than_a_page_is_cut_and_said(bench: Any) -> None:
    bench.put("f.js", b"x" * 300_000 + b"\nend\n")
    result = await bench.run(Read(), path="f.js")
    assert "the first 200,000 of the 300,001 characters of line 1" in result.text
    assert "next lines: start=2" in result.text
    assert result.text.count("x") >= 200_000
    assert not result.seen


CASES = [
    ("utf-8", b"\xef\xbb\xbf", "naïve 表", "UTF-8 with BOM"),
    ("utf-16-le", b"\xff\xfe", "naïve 表", "UTF-16LE with BOM"),
    ("utf-16-be", b"\xfe\xff", "naïve 表", "UTF-16BE with BOM"),
    ("utf-16-le", b"", "plain naïve text", "UTF-16LE without BOM"),
    ("utf-16-be", b"", "plain naïve text", "UTF-16BE without BOM"),
    ("utf-32-be", b"\0\0\xfe\xff", "naïve 表", "UTF-32BE with BOM"),
    ("latin-1", b"", "Größe überprüfen, naïve élève", "Latin-1"),
    ("cp1252", b"", "“smart quotes” – € sign’s", "CP1252"),
    ("gbk", b"", "这是一个测试文件，用来说明编码", "GBK"),
    ("cp932", b"", "これはテストのファイルです。日本語", "Shift-JIS"),
    ("euc_kr", b"", "한국어 주석입니다 그리고 설명", "EUC-KR"),
]


@pytest.mark.parametrize(("codec", "bom", "text", "label"), CASES, ids=[c[3] for c in CASES])
async def test_c12_encodings_are_shown_as_text_and_named(
    bench: Any, codec: str, bom: bytes, text: str, label: str
) -> None:
    bench.put("f.txt", bom + f"# {text}\nx = 1\n".encode(codec))
    shown = (await bench.run(Read(), path="f.txt")).text
    assert label in shown.split("\n")[0]
    assert f"     1\t# {text}\n     2\tx = 1" in shown


async def test_c11_bytes_that_are_no_text_are_written_out(bench: Any) -> None:
    bench.put("f.txt", "é ü ß ж 表\n".encode() + b"bad \xe9 and \xff\xfe\n" + b"ok\n")
    shown = (await bench.run(Read(), path="f.txt")).text
    assert "     2\tbad \\xE9 and \\xFF\\xFE" in shown
    assert "shown as \\xE9 and the like, lines 2." in shown
    assert "é ü ß ж 表" in shown
    assert "�" not in shown


async def test_line_endings_are_told(bench: Any) -> None:
    async def heading(data: bytes) -> str:
        bench.put("f.txt", data)
        return "\n".join((await bench.run(Read(), path="f.txt")).text.split("\n")[:2])

    assert "CRLF line endings" in await heading(b"a\r\nb\r\n")
    assert "CR line endings" in await heading(b"a\rb\r")
    assert "no newline at the end" in await heading(b"a\nb")
    mixed = await heading(b"a\nb\r\nc\nd\n")
    assert "mixed line endings (3 LF, 1 CRLF)" in mixed
    assert "Lines that end in CRLF: 2." in mixed


async def test_a_lone_carriage_return_is_seen(bench: Any) -> None:
    bench.put("f.txt", b"a\rb\nc\n")
    shown = (await bench.run(Read(), path="f.txt")).text
    assert "     1\ta\\rb\n     2\tc" in shown
    assert "1 lone carriage return is shown as \\r" in shown


async def test_empty_file(bench: Any) -> None:
    bench.put("f.txt", b"")
    result = await bench.run(Read(), path="f.txt")
    assert result.text == "f.txt: empty file, 0 bytes"
    assert result.seen == {"f.txt": digest(b"")}


async def test_binary_is_described(bench: Any) -> None:
    data = b"\x7fELF\0" + bytes(range(256)) * 2
    bench.put("b.bin", data)
    result = await bench.run(Read(), path="b.bin")
    assert f"binary, {len(data)} bytes, SHA-256 {digest(data)}; first 256 bytes:" in result.text
    assert "00000000  7f 45 4c 46 00 00 01 02" in result.text
    assert not result.seen


@pytest.mark.parametrize(
    ("data", "mime"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "image/jpeg"),
        (b"RIFF\x10\0\0\0WEBPVP8 " + bytes(20), "image/webp"),
    ],
)
async def test_images_are_images(bench: Any, data: bytes, mime: str) -> None:
    bench.put("i.dat", data)
    result = await bench.run(Read(), path="i.dat")
    assert [(image.mime, image.data) for image in result.images] == [(mime, data)]


async def test_an_image_over_the_limit_is_refused(bench: Any) -> None:
    bench.put("i.png", PNG + bytes(20_000_000))
    assert "20,000,000" in await bench.refused(Read(), path="i.png")


async def test_what_is_no_file_is_refused_without_waiting(bench: Any) -> None:
    os.mkfifo(bench.root / "pipe")
    (bench.root / "folder").mkdir()
    here = os.getcwd()
    os.chdir(bench.root)  # socket paths are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        os.chdir(here)
        async with asyncio.timeout(5):
            assert "FIFO" in await bench.refused(Read(), path="pipe")
            assert "socket" in await bench.refused(Read(), path="sock")
            assert "device" in await bench.refused(Read(), path="/dev/zero")
            assert "use `list`" in await bench.refused(Read(), path="folder")
            assert "use `list`" in await bench.refused(Read(), path=".")


async def test_paths_that_name_nothing(bench: Any) -> None:
    bench.put("src/alpha.py", b"a\n")
    assert "src/alpha.py" in await bench.refused(Read(), path="src/alhpa.py")
    assert "Use `list` on src" in await bench.refused(Read(), path="src/qqqqqq.py")
    assert "not a folder" in await bench.refused(Read(), path="src/alpha.py/x")
    assert "is not a path" in await bench.refused(Read(), path="")
    assert "is not a path" in await bench.refused(Read(), path="a\0b")
    (bench.root / "loop").symlink_to("loop")
    assert "loop" in await bench.refused(Read(), path="loop")


def test_c27_effects_name_the_real_path(bench: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_bytes(b"secret\n")
    (bench.root / "link").symlink_to(outside)
    bench.put("a/f.txt", b"a\n")
    (bench.root / "alias").symlink_to("a")
    assert bench.effects(Read(), path="link") == [
        ("read", str(outside)),
        ("outside_root", str(outside)),
    ]
    assert bench.effects(Read(), path="alias/../alias/f.txt") == [("read", "a/f.txt")]
    assert bench.effects(Read(), path="a/.env") == [("read", "a/.env"), ("secret", "a/.env")]


# --- text --------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_without_loss_of_what_is_text(data: bytes) -> None:
    encoding = detect(data)
    if encoding is None:
        return
    assert data.startswith(encoding.bom)
    text = encoding.decode(data[len(encoding.bom) :])
    if not encoding.damaged:
        again = encoding.encode(text)
        assert encoding.decode(again) == text
        # CP932 has two codes for some characters; every other codec gives the same bytes.
        assert encoding.bom + again == data or encoding.codec == "cp932"
    assert "".join(split_lines(text, endings(text).separator)) == text


@given(st.text(alphabet="aé表\n\r\t ", max_size=40))
def test_utf8_is_certain(text: str) -> None:
    assert detect(text.encode()) == UTF8


@given(st.text(alphabet="ab\n\r", max_size=40))
def test_line_endings_are_counted(text: str) -> None:
    ends = endings(text)
    assert ends.lf + ends.crlf == text.count("\n")
    assert ends.cr + ends.crlf == text.count("\r")
    lines = split_lines(text, ends.separator)
    assert len(lines) == len(text.splitlines()) or ends.mixed


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(alphabet="aé\t \n", max_size=60))
async def test_what_read_shows_can_be_put_together_again(bench: Any, text: str) -> None:
    bench.put("f.txt", text.encode())
    heading, *shown = (await bench.run(Read(), path="f.txt")).text.split("\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    assert [line.split("\t", 1)[1] for line in shown] == lines
    assert ("no newline at the end" in heading) == (bool(text) and not text.endswith("\n"))


def test_bare() -> None:
    assert bare("a\r\n") == "a"
    assert bare("a\rb\n") == "a\\rb"
    assert bare("a\r\r\n") == "a\\r"
