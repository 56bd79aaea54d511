from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from unabridged.tools import search as search_module
from unabridged.tools.pattern import PatternError, common
from unabridged.tools.search import Search, SearchArguments

Git = Callable[..., str]
BOTH = pytest.mark.parametrize(
    "tool",
    [
        pytest.param(Search(), id="rg", marks=pytest.mark.needs("rg")),
        pytest.param(Search(ripgrep=False), id="python"),
    ],
)


@pytest.mark.needs("rg")
def test_ripgrep_is_there_to_compare_with(bench: Any) -> None:
    assert search_module._ripgrep(bench.root) == str(Path(shutil.which("rg") or "").resolve())


@BOTH
async def test_matches_are_shown_by_file_with_the_total(bench: Any, tool: Search) -> None:
    bench.put("b.py", b"import os\nx = os\n")
    bench.put("a/c.py", b"y\nimport os\n")
    bench.put("d.txt", b"nothing\n")
    result = await bench.run(tool, pattern=r"import\s+os")
    assert result.text == ("2 matching lines in 2 files\na/c.py\n2:import os\nb.py\n1:import os")
    result = await bench.run(tool, pattern="nowhere")
    assert result.text == "No line matches, of 3 files searched"


@BOTH
async def test_context_lines(bench: Any, tool: Search) -> None:
    bench.put("f.txt", b"".join(b"line %d\n" % n for n in range(1, 21)))
    text = (await bench.run(tool, pattern="line (5|7|15)$", context=1)).text
    assert text.split("\n")[1:] == [
        "f.txt", "4-line 4", "5:line 5", "6-line 6", "7:line 7", "8-line 8",
        "--", "14-line 14", "15:line 15", "16-line 16",
    ]  # fmt: skip


@BOTH
@pytest.mark.parametrize("pattern", ["= .*f", "==f", "=f", "-f", "--f", "--", "-e=f", "--regexp=f"])
@pytest.mark.parametrize("literal", [False, True])
async def test_a_pattern_is_never_an_option(
    bench: Any, tool: Search, pattern: str, literal: bool
) -> None:
    lines = ["f", "a = f", "=f", "==f", "-f", "--f", "-e=f", "--regexp=f", "= .*f"]
    bench.put("f.txt", "".join(f"{line}\n" for line in lines).encode())
    text = (await bench.run(tool, pattern=pattern, literal=literal)).text
    found = [line.partition(":")[2] for line in text.splitlines()[2:]]
    matches = [line for line in lines if (pattern in line if literal else re.search(pattern, line))]
    assert found == matches


@BOTH
async def test_literal_and_case(bench: Any, tool: Search) -> None:
    bench.put("f.txt", b"a.b(c\nA.B(C\naxb(c\n")
    assert "1 matching line " in (await bench.run(tool, pattern="a.b(c", literal=True)).text
    text = (await bench.run(tool, pattern="a.b(c", literal=True, ignore_case=True)).text
    assert "2 matching lines" in text


@BOTH
async def test_the_cap_is_said_and_the_total_is_right(bench: Any, tool: Search) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        bench.put(name, b"x\n" * 10)
    text = (await bench.run(tool, pattern="x", limit=12)).text
    lines = text.split("\n")
    assert lines[0] == "30 matching lines in 3 files"
    assert lines[1].startswith("Shown: the first 12;")
    assert lines[2:] == ["a.txt", *[f"{n}:x" for n in range(1, 11)], "b.txt", "1:x", "2:x"]


@BOTH
async def test_a_long_line_is_shown_around_the_match(bench: Any, tool: Search) -> None:
    bench.put("f.js", b"a" * 5000 + "é needle é".encode() + b"b" * 3000 + b"\n")
    line = (await bench.run(tool, pattern="needle")).text.split("\n")[-1]
    assert "é needle é" in line
    found = re.fullmatch(r"1:\[([\d,]+) characters\] (.*) \[([\d,]+) more characters\]", line)
    assert found
    left, right = (int(found[n].replace(",", "")) for n in (1, 3))
    assert left + len(found[2]) + right == 8010


@BOTH
@pytest.mark.parametrize("with_git", [True, False], ids=["git", "no-git"])
async def test_ignored_files_are_left_out_unless_asked_for(
    bench: Any, request: pytest.FixtureRequest, tool: Search, with_git: bool
) -> None:
    bench.put(".gitignore", b"build/\n*.log\n!sub/keep.log\n")
    bench.put("build/out.py", b"needle\n")
    bench.put("sub/a.log", b"needle\n")
    bench.put("sub/keep.log", b"needle\n")
    bench.put("forced.log", b"needle\n")
    bench.put(".hidden/f.py", b"needle\n")
    bench.put(".ignore", b"*.py\n")  # ripgrep's own ignore files do not count
    if with_git:
        git: Git = request.getfixturevalue("git")
        git("add", "-f", "forced.log")
    text = (await bench.run(tool, pattern="needle")).text
    tracked = ["forced.log"] if with_git else []
    assert [line for line in text.split("\n")[1:] if ":" not in line] == [
        ".hidden/f.py", *tracked, "sub/keep.log",
    ]  # fmt: skip
    text = (await bench.run(tool, pattern="needle", ignored=True)).text
    assert "build/out.py" in text
    assert "sub/a.log" in text
    assert "build/out.py" in (await bench.run(tool, pattern="needle", path="build")).text
    assert "sub/a.log" in (await bench.run(tool, pattern="needle", path="sub/a.log")).text


@BOTH
async def test_path_and_glob(bench: Any, tool: Search) -> None:
    for name in ("src/a.py", "src/deep/b.py", "src/c.txt", "test/d.py"):
        bench.put(name, b"needle\n")

    async def files(**more: Any) -> list[str]:
        text = (await bench.run(tool, pattern="needle", **more)).text
        return [line for line in text.split("\n")[1:] if ":" not in line]

    assert await files(path="src") == ["src/a.py", "src/c.txt", "src/deep/b.py"]
    assert await files(glob="*.py") == ["src/a.py", "src/deep/b.py", "test/d.py"]
    assert await files(path="src", glob="/*.py") == ["src/a.py"]
    assert await files(path="src/a.py") == ["src/a.py"]
    assert await files(path="src/a.py", glob="*.txt") == []
    assert "does not exist" in await bench.refused(tool, pattern="x", path="nope")


@BOTH
async def test_secrets_are_not_searched_unless_named(bench: Any, tool: Search) -> None:
    bench.put(".env", b"KEY=needle\n")
    bench.put("conf/id_rsa", b"needle\n")
    bench.put("a.txt", b"needle\n")
    text = (await bench.run(tool, pattern="needle")).text
    assert "1 matching line in 1 file" in text
    assert "Not searched, may hold secrets: 2 files (.env, conf/id_rsa)" in text
    assert "KEY" not in text
    assert "id_rsa" in (await bench.run(tool, pattern="x", path="conf")).text
    assert bench.effects(tool, pattern="x", path=".env") == [("read", ".env"), ("secret", ".env")]
    assert "KEY=needle" in (await bench.run(tool, pattern="needle", path=".env")).text


@BOTH
async def test_c27_links_are_not_followed(bench: Any, tmp_path: Path, tool: Search) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f.txt").write_bytes(b"needle\n")
    (bench.root / "link.txt").symlink_to(tmp_path / "outside/f.txt")
    (bench.root / "door").symlink_to(tmp_path / "outside")
    bench.put("a.txt", b"needle\n")
    text = (await bench.run(tool, pattern="needle")).text
    assert text == "1 matching line in 1 file\na.txt\n1:needle"
    real = str(tmp_path / "outside")
    assert bench.effects(tool, pattern="x", path="door") == [
        ("read", real),
        ("outside_root", real),
    ]


@BOTH
async def test_encodings_and_binary(bench: Any, tool: Search) -> None:
    bench.put("a.txt", b"\xff\xfe" + "naïve needle\r\n".encode("utf-16-le"))
    bench.put("b.txt", b"\xef\xbb\xbfneedle\n")
    bench.put("c.txt", "caf\xe9 needle\n".encode("latin-1"))
    bench.put("d.bin", b"needle\n\0\0needle\n")
    text = (await bench.run(tool, pattern="^needle|needle$")).text
    assert text.split("\n") == [
        "3 matching lines in 3 files",
        "Not shown: 1 binary file matches",
        "a.txt", "1:naïve needle", "b.txt", "1:needle", "c.txt", "1:caf\\xE9 needle",
    ]  # fmt: skip


@BOTH
async def test_names_that_look_like_options(bench: Any, tool: Search) -> None:
    bench.put("--files", b"needle\n")
    bench.put("-e", b"needle\n")
    text = (await bench.run(tool, pattern="needle")).text
    assert text == "2 matching lines in 2 files\n--files\n1:needle\n-e\n1:needle"
    bench.put("x", b"--needle\n")
    assert "1:--needle" in (await bench.run(tool, pattern="--needle")).text


async def test_ripgrep_s_settings_of_the_user_do_not_count(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    trap.write_bytes(b'#!/bin/sh\ntouch "$0.ran"\ncat "$1"\n')
    trap.chmod(0o755)
    config = tmp_path / "rgrc"
    config.write_bytes(f"--pre={trap}\n--invert-match\n".encode())
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(config))
    bench.put("f.txt", b"needle\nhay\n")
    assert (await bench.run(Search(), pattern="needle")).text.endswith("1:needle")
    assert not trap.with_name("trap.ran").exists()


def test_a_program_in_the_repository_is_not_taken_for_ripgrep(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("bin/rg", b"#!/bin/sh\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bench.root}/bin")
    assert search_module._ripgrep(bench.root) is None


@BOTH
async def test_many_files_in_order(bench: Any, tool: Search) -> None:
    names = [f"{'d' * 60}{n % 7}/{'f' * 60}{n:04}.txt" for n in range(3000)]
    for name in names:
        bench.put(name, b"needle\n")
    text = (await bench.run(tool, pattern="needle", limit=5000)).text
    lines = text.split("\n")
    assert lines[0] == "3,000 matching lines in 3,000 files"
    assert lines[1::2] == sorted(names)


@BOTH
async def test_line_numbers_of_a_large_file(bench: Any, tool: Search) -> None:
    bench.put("f.txt", b"\n" * (1 << 20) + b"\nneedle\n" + b"\n\n" * (1 << 20) + b"needle\n\n")
    text = (await bench.run(tool, pattern="needle", context=1)).text
    first, last = (1 << 20) + 2, 3 * (1 << 20) + 3
    assert text.split("\n")[2:] == [
        f"{first - 1}-", f"{first}:needle", f"{first + 1}-", "--",
        f"{last - 1}-", f"{last}:needle", f"{last + 1}-",
    ]  # fmt: skip


@BOTH
async def test_a_file_that_cannot_be_read_is_counted(
    bench: Any, tool: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.txt", b"needle\n")
    bench.put("gone.txt", b"needle\n")
    real = search_module._commands

    def late(*args: Any) -> Any:
        (bench.root / "gone.txt").unlink()
        return real(*args)

    monkeypatch.setattr(search_module, "_commands", late)
    text = (await bench.run(tool, pattern="needle")).text
    assert "1 matching line in 1 file" in text
    assert "Could not be read: 1 file" in text


async def test_a_pattern_that_takes_forever_can_be_cancelled(bench: Any) -> None:
    bench.put("f.txt", b"a" * 60 + b"!\n")
    work = asyncio.create_task(bench.run(Search(ripgrep=False), pattern="(a+)+$"))
    await asyncio.sleep(1)
    assert not work.done()
    began = time.monotonic()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert time.monotonic() - began < 1


# --- patterns ----------------------------------------------------------------------------------

GOOD = {
    r"\"x\"": '"x"', r"a\/b": "a/b", r"a{": r"a\{", r"f\{x\}": r"f\{x\}", r"[[]": r"[\[]",
    r"[]a]": r"[\]a]", r"(?<n>a)": "(?P<n>a)", r"\Ax\z": "^x$", r"a{2,3}?": r"a{2,3}?",
    r"[a&&b]": r"[a\&\&b]", r"\x41\u00e9": r"\x41\u00e9", r"(?i)a": "(?i)a", r"\<a": "<a",
    r"x\++": r"x\++", r"{% if": r"\{% if", r"${x}": r"$\{x}",
}  # fmt: skip
BAD = [
    r"(?=a)", r"(?!a)", r"(?<=a)b", r"(?<!a)b", r"(a)\1", r"(?P=n)", r"a++", r"a**", r"(?>a)",
    r"\p{L}", r"[[:alpha:]]", r"a\nb", "a\nb", "(", "[a", "a\\", r"\xZZ", "*a", r"(?x)a", r"a(?i)b",
    r"[a--b]",
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "wanted"), GOOD.items())
async def test_a_pattern_is_made_common(bench: Any, pattern: str, wanted: str) -> None:
    assert common(pattern) == wanted
    bench.put("f.txt", b"x\n")
    await bench.run(Search(), pattern=pattern)  # ripgrep takes it too


@pytest.mark.parametrize("pattern", BAD)
async def test_a_pattern_is_refused_with_what_to_do(bench: Any, pattern: str) -> None:
    bench.put("f.txt", b"x\n")
    text = await bench.refused(Search(), pattern=pattern)
    assert text.startswith("`pattern` has ")
    assert "`literal`" in text


def test_bad_arguments() -> None:
    for wrong in ({}, {"pattern": ""}, {"pattern": "x", "context": -1}, {"pattern": "x", "limit": 0},
                  {"pattern": "x", "ignore_case": "yes"}, {"pattern": "x", "include": "*"}):  # fmt: skip
        with pytest.raises(ValueError, match=r"pattern|context|limit|ignore_case|include"):
            SearchArguments.model_validate(wrong)


# --- both ways give the same -------------------------------------------------------------------

CONTENT = st.one_of(
    st.text(alphabet="ab AB.(é表\t\n\r", max_size=60).map(str.encode),
    st.text(alphabet="abé\n", max_size=30).map(lambda s: b"\xff\xfe" + s.encode("utf-16-le")),
    st.text(alphabet="abé\n", max_size=30).map(lambda s: b"\xfe\xff" + s.encode("utf-16-be")),
    st.text(alphabet="ab\n", max_size=30).map(lambda s: b"\xef\xbb\xbf" + s.encode()),
    st.text(alphabet="ab\0\n", max_size=30).map(str.encode),
    st.lists(st.sampled_from([b"ab\n", b"\xe9\n", b"b\xff a\n"]), max_size=6).map(b"".join),
)
ATOMS = st.sampled_from(
    ["a", "b", "A", "é", "表", r"\.", r"\(", r"\w", r"\s", r"\d", r"\b", "[ab]", "[^a]", "^", "$", ".", r"\W", r"\S", r"\D",
     "(?:a|b)", " ", r"\t", "[é-ü]"]
)  # fmt: skip
PATTERNS = st.lists(
    st.tuples(ATOMS, st.sampled_from(["", "", "", "*", "+", "?", "{2}"])), min_size=1, max_size=4
).map(lambda parts: "".join(a + ("" if a in ("^", "$", r"\b") else q) for a, q in parts))
TREES = st.dictionaries(
    st.sampled_from(["a", "b.txt", "B.txt", "d/e", "d/f.py", "d-x", "é", "z z"]), CONTENT,
    min_size=1, max_size=5,
)  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tree=TREES, pattern=PATTERNS, context=st.integers(0, 2), ignore_case=st.booleans(),
    limit=st.sampled_from([1, 3, 100]),
)  # fmt: skip
@example({"a": b"x\r\ny\r\n"}, "x$", 0, False, 100)
@example({"a": b"a\0b\n"}, "b", 0, False, 100)
@example({"a": b"b\n\0"}, "b", 0, False, 100)
async def test_with_and_without_ripgrep_the_same(
    bench: Any, tree: dict[str, bytes], pattern: str, context: int, ignore_case: bool, limit: int
) -> None:
    shutil.rmtree(bench.root)
    bench.root.mkdir()
    for name, data in tree.items():
        bench.put(name, data)
    asked = {
        "pattern": pattern, "context": context, "ignore_case": ignore_case, "limit": limit,
    }  # fmt: skip
    assert (await bench.run(Search(), **asked)).text == (
        await bench.run(Search(ripgrep=False), **asked)
    ).text


@given(st.text(alphabet="ab(){}[]|*+?.\\^$-&~:=<>!PiA1nd,", max_size=12))
def test_whatever_is_accepted_compiles(pattern: str) -> None:
    try:
        text = common(pattern)
    except PatternError:
        return
    re.compile(text)
    assert common(text) == text
