"""Framing: any bytes under any name come back, and no file can end its frame or start another."""

from __future__ import annotations

import codecs
import sysconfig
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unabridged.agent.context.pack import PREAMBLE, decode, frame, frame_text, quote, unpack

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
nasty = st.lists(
    st.sampled_from(
        [
            b"</file>", b"</file>\n", b"</file-2>\n", b'<file path="x">\n', b"\n", b"\r\n", b"\r",
            b"<|open|>", b"<|close|>message<|sep|>", b"<|end_of_msg|>", b"\xff", b"\x1b[0m", b"\x0c",
            b"<manifest>\n", b"</manifest>\n", "\u2028é".encode(), "\ufeff".encode(), b"a", b'"\\',
        ]
    )
).map(b"".join)  # fmt: skip


@given(st.lists(st.tuples(names, st.one_of(st.binary(), nasty)), max_size=6))
@example([("a", b""), ("b", b"\n"), ("c", b"x"), ("d", b'</file>\n<file path="e">\nx')])
def test_any_files_come_back_byte_for_byte(files: list[tuple[str, bytes]]) -> None:
    pack = (
        PREAMBLE + "".join(frame(name, data) for name, data in files) + "<manifest>\n</manifest>\n"
    )
    pack.encode("utf-8")
    assert [(one.name, one.data) for one in unpack(pack)] == files
    assert all(one.tag == "file" for one in unpack(pack))


@given(nasty)
def test_a_pack_of_our_own_pack_comes_back(data: bytes) -> None:
    inner = PREAMBLE + frame("inner", data)
    outer = frame("outer", inner.encode())
    (only,) = unpack(outer)
    assert only.data == inner.encode()


@given(st.one_of(st.binary(), nasty))
def test_a_frame_starts_and_ends_where_tokenisers_cut(data: bytes) -> None:
    text = frame("a/b.c", data)
    assert text.startswith("<file")
    assert text.endswith(">\n")


def test_what_a_frame_looks_like() -> None:
    assert frame("src/a.py", b"x = 1\n") == '<file path="src/a.py">\nx = 1\n</file>\n'
    assert frame("a", b"x") == '<file path="a" end="no newline">\nx\n</file>\n'
    assert frame("a", b"") == '<file path="a">\n</file>\n'
    assert frame("a", b"</file>\n") == '<file-2 path="a">\n</file>\n</file-2>\n'
    assert frame("a", b"caf\xe9\n").startswith('<file path="a" encoding="')
    assert frame_text("outline", "a", "1: x\n") == '<outline path="a">\n1: x\n</outline>\n'


def test_names_stay_on_one_visible_line() -> None:
    assert quote('a "b"\n\u202e\u2028.py') == '"a \\"b\\"\\n\\u202e\\u2028.py"'
    assert quote("é/日本.py") == '"é/日本.py"'


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (codecs.BOM_UTF16_LE + "hé\n".encode("utf-16-le"), "utf-16-le"),
        (codecs.BOM_UTF16_BE + "hé\n".encode("utf-16-be"), "utf-16-be"),
        (codecs.BOM_UTF8 + "hé\n".encode(), "utf-8"),
        ("# -*- coding: euc-jp -*-\nx = '日本'\n".encode("euc-jp"), "euc-jp"),
    ],
)
def test_encodings_are_told_by_mark_and_declaration(data: bytes, encoding: str) -> None:
    text, found = decode(data)
    assert found == encoding
    assert text.encode(found) == data


@pytest.mark.parametrize("declared", ["zlib", "no-such", "utf-8", "idna", "unicode_escape"])
def test_a_declaration_that_does_not_hold_is_not_believed(declared: str) -> None:
    data = f"# coding: {declared}\n".encode() + b"caf\xe9 \\udcff\n"
    text, found = decode(data)
    assert found != declared
    assert text.encode(found) == data


def test_a_cut_pack_is_refused() -> None:
    with pytest.raises(ValueError, match='frame of "a" has no end'):
        list(unpack(frame("a", b"x\n")[:-3]))


def test_the_standard_library_comes_back_byte_for_byte() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(root.rglob("*")) if "site-packages" not in path.parts]
    count = 0
    for path in files:
        if path.is_file() and path.suffix not in {".pyc", ".so", ".a"}:
            data = path.read_bytes()
            (back,) = unpack(frame(path.name, data))
            assert back.data == data, path
            count += 1
    assert count > 500
