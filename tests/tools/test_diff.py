from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unabridged.tools.diff import Splice, splice_diff, spliced, visible, whole_diff
from unabridged.tools.text import UTF8, Encoding

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "é表\n"]), max_size=25).map("".join)
TEXT = st.tuples(LINES, st.sampled_from(["", "", "end"])).map("".join)
OPTIONS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def apply(folder: Path, before: bytes, diff: str) -> bytes:
    """What git makes of a diff."""
    (folder / "f").write_bytes(before)
    subprocess.run(
        ["git", "apply", "--unidiff-zero", "-"], cwd=folder, input=diff.encode(), check=True
    )
    return (folder / "f").read_bytes()


@OPTIONS
@given(before=TEXT, after=TEXT)
def test_git_applies_a_whole_diff(tmp_path: Path, before: str, after: str) -> None:
    diff = whole_diff("f", before.encode(), after.encode(), UTF8, UTF8)
    if before == after:
        assert diff == ""
    else:
        assert apply(tmp_path, before.encode(), diff) == after.encode()


@OPTIONS
@given(data=st.data(), before=TEXT)
def test_git_applies_the_diff_of_splices(tmp_path: Path, data: st.DataObject, before: str) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(before)), max_size=8)))
    splices = [
        Splice(
            len(before[:start].encode()),
            len(before[:end].encode()),
            data.draw(st.sampled_from(["", "X", "Y\n", "\nZ\n"])).encode(),
        )
        for start, end in zip(cuts[::2], cuts[1::2], strict=False)
    ]
    after = b"".join(spliced(before.encode(), splices))
    diff = splice_diff("f", before.encode(), splices, UTF8)
    if after == before.encode():
        assert diff == ""
    else:
        assert apply(tmp_path, before.encode(), diff) == after


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_line_numbers_are_right_where_a_line_feed_s_bytes_lie_across_two_characters(
    codec: str,
) -> None:
    text = "ઊ਀\u0a00\n" * 5 + "\u0100\u0a0a\nx\nlast\n"
    encoding = Encoding(codec, codec)
    data = text.encode(codec)
    start = len(text[: text.index("x")].encode(codec))
    splice = Splice(start, start + len("x".encode(codec)), "y".encode(codec))
    diff = splice_diff("f", data, [splice], encoding)
    assert "@@ -4,5 +4,5 @@" in diff
    assert "\n-x\n+y\n last\n" in diff


def test_many_places_are_counted_not_shown() -> None:
    data = b"a\n" + b"-\n" * 10
    whole = data * 3000
    splices = [Splice(n * len(data), n * len(data) + 1, b"b") for n in range(3000)]
    diff = splice_diff("f", whole, splices, UTF8)
    assert diff.count("\n@@") == 2000
    assert diff.endswith("(and 1,000 more places, changed in the same way)\n")


def test_visible() -> None:
    assert visible("a\tb é表 \u00a0") == "a\tb é表 \u00a0"
    assert visible("\x1b[0m\u202e\ufeff\r\udce9") == "\\x1B[0m\\u202E\\uFEFF\\r\\xE9"
