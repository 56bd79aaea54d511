"""The classifier never raises, answers in time, and is no more certain together than apart."""

from __future__ import annotations

import gc
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from unabridged.agent.effects import EffectKind
from unabridged.tools.bash.classify import classify

MEGABYTE = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def only_what_is_made_here_is_collected() -> Iterator[None]:
    """The tests before leave so much that one collection of all takes two thirds of a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


SHAPES = {
    "one word": "a" * MEGABYTE,
    "many commands": "ls;" * (MEGABYTE // 3),
    "many lines": "ls src\n" * (MEGABYTE // 7),
    "open quote": "'" + "a" * MEGABYTE,
    "quotes": '"' * MEGABYTE,
    "subshells": "(" * MEGABYTE,
    "closed subshells": "(" * (MEGABYTE // 2) + "ls" + ")" * (MEGABYTE // 2),
    "substitutions": "$(" * (MEGABYTE // 2),
    "braces": "{ " * (MEGABYTE // 2),
    "brace words": "{a,b}" * (MEGABYTE // 5),
    "here-documents": "<<A " * (MEGABYTE // 4),
    "redirections": "<" * MEGABYTE,
    "arrays": "a=(" * (MEGABYTE // 3),
    "expansions": "${" * (MEGABYTE // 2),
    "backticks": "`" * MEGABYTE,
    "backslashes": "\\" * MEGABYTE,
    "globs": "*" * MEGABYTE,
    "pipes": "ls|" * (MEGABYTE // 3),
    "ands": "ls&&" * (MEGABYTE // 4) + "ls",
    "ifs": "if " * (MEGABYTE // 3),
    "cases": "case a in " * (MEGABYTE // 10),
    "negations": "! " * (MEGABYTE // 2),
    "arithmetic": "$((" * (MEGABYTE // 3),
    "everything": "a|&;()<>\"'`$ " * (MEGABYTE // 14),
    "nul": "\0" * MEGABYTE,
    "blank": " " * MEGABYTE,
    "newlines": "\n" * MEGABYTE,
}


@pytest.mark.parametrize("size", [MEGABYTE, 32_000, 8_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_large_input_answers_in_under_a_second(shape: str, size: int, repo: Path) -> None:
    command = SHAPES[shape][:size]
    start = time.process_time()
    effects = classify(command, root=repo)
    assert time.process_time() - start < 1
    if size == MEGABYTE:
        assert not any(effect.understood for effect in effects)
        assert effects


EXPENSIVE = {
    "nested loops": "".join(f"for {c} in {{1..99}}; do " for c in "abcd")
    + "ls src; "
    + "done; " * 4,
    "nested while": "while true; do " * 20 + "cd src; " + "done; " * 20,
    "long pipeline": "cat README.md" + " | sort" * 4500,
    "deep scripts": "bash -c " * 500 + "ls",
    "many globs": "cat " + "src/* " * 4500,
    "deep globs": "cat " + "/".join("*" * 50),
    "starry globs": "cat " + "*" * 200 + "z",
    "many variables": "".join(f"v{i}=$v{i - 1}x;" for i in range(3000)),
    "doubling variable": "x=aaaaaaaa;" + 'x="$x$x";' * 3000 + "ls $x",
    "brace product": "echo " + "{1..9}" * 9,
    "recursive reads": "grep -r x . ; " * 290,
    "branches": "if true; then cd src; else cd ..; fi; " * 1000,
    "many tests": "[ -f README.md ] && " * 3000 + "ls",
    "sed script": "sed '" + "p;" * 15000 + "' README.md",
    "sed addresses": "sed '" + "1," * 15000 + "' README.md",
    "awk script": "awk '" + "$1 > 1 " * 4000 + "'",
    "quoted newlines": "echo '" + "\n" * 30000 + "'",
    "here-document": "cat <<E\n" + "x $y `\n" * 4000 + "E\n",
    "assignment words": "a=b " * 8000 + "ls",
    "env chain": "env " * 8000 + "ls",
    "case items": "case a in " + "b) ls;; " * 900 + "esac",
    "functions": "f() { ls; }; " * 480,
}


@pytest.mark.parametrize("shape", EXPENSIVE)
def test_expensive_input_answers_in_under_a_second(shape: str, repo: Path) -> None:
    start = time.process_time()
    classify(EXPENSIVE[shape], root=repo)
    assert time.process_time() - start < 1


FRAGMENTS = st.sampled_from(
    [
        "ls",
        "cat",
        "echo",
        "git",
        "status",
        "log",
        "diff",
        "src",
        "README.md",
        "-la",
        "--",
        "/etc/passwd",
        "..",
        "~",
        "$x",
        '"$x"',
        "$(ls)",
        "`ls`",
        "<(ls)",
        ">",
        ">>",
        "<",
        "<<",
        "<<<",
        "2>&1",
        "&>",
        "|",
        "||",
        "&",
        "&&",
        ";",
        ";;",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "[[",
        "]]",
        "if",
        "then",
        "else",
        "fi",
        "for",
        "f",
        "in",
        "do",
        "done",
        "while",
        "case",
        "esac",
        "!",
        "time",
        "function",
        "f()",
        "coproc",
        "'",
        '"',
        "\\",
        "\\'",
        "*",
        "?",
        "[a]",
        "{a,b}",
        "{1..3}",
        "$'a'",
        "${x:-y}",
        "${x@P}",
        "$((1))",
        "a=b",
        "export",
        "cd",
        "sed",
        "s/a/b/",
        "awk",
        "{print}",
        "find",
        "-exec",
        "{}",
        "\\;",
        "+",
        "xargs",
        "bash",
        "-c",
        "eval",
        "#",
        "EOF",
        "-n",
        "1",
        "é",
        "😀",
        "\u202e",
        " ",
        "\n",
        "\t",
        "\\\n",
        "\r",
        "\x00",
        "",
        "'a b'",
        '"a b"',
        "<<EOF\nx\nEOF\n",
    ]
)
COMMANDS = st.one_of(
    st.text(max_size=60),
    st.lists(FRAGMENTS, max_size=14).map(" ".join),
    st.lists(FRAGMENTS, max_size=14).map("".join),
)
FAST = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FAST
@given(command=COMMANDS)
@example(command="\ud800")
@example(command="")
def test_no_input_makes_it_raise(command: str, repo: Path) -> None:
    for effect in classify(command, root=repo):
        if effect.path is not None and effect.path.startswith("/"):
            assert effect.kind is not EffectKind.READ or _is_outside(effect.path, repo)


def _is_outside(path: str, root: Path) -> bool:
    return root not in Path(path).parents


PASSING = st.sampled_from(
    ["ls", "cat README.md", "git status", "grep -rn x src", "echo hi", "cd src", "y=1", "true",
     "for f in a b; do echo $f; done", "[ -f README.md ]", "sed -n 1p README.md"]
)  # fmt: skip
UNKNOWN = st.sampled_from(
    ["make", "rm README.md", "./x", "$x", "python3 x.py", "eval ls", "cat /etc/passwd", "> out",
     "echo $(make)", "curl x.example", "f() { ls; }", "ls $x", "FOO=1 ls", "cat <(make)", "git push",
     "sudo ls", "find . -delete", "sort -o x README.md", "cd /", "echo `make`", "'unclosed"]
)  # fmt: skip
FRAMES = st.sampled_from(
    ["{a}; {u}", "{u}; {a}", "{a} && {u}", "{a} || {u}", "{u} && {a}", "{u} || {a}", "{a} | {u}",
     "{u} | {a}", "{a} & {u}", "{u} & {a}", "{a}\n{u}", "{u}\n{a}", "({a}; {u})", "{{ {a}; {u}; }}",
     "if {a}; then {u}; fi", "if {u}; then {a}; fi", "if {a}; then {a}; else {u}; fi",
     "while {a}; do {u}; done", "while {u}; do {a}; done", "for i in 1 2; do {a}; {u}; done",
     "case x in x) {a};; y) {u};; esac", "{a}; echo $({u})", "{a}; echo \"$({u})\"",
     "{a}; cat <({u})", "! {u}; {a}", "bash -c {q}; {a}", "{a} |& {u}", "( {u} ) ; {a}",
     "until {u}; do {a}; done", "{a}; x=$({u})", "if {a}; then {a}; elif {u}; then {a}; fi"]
)  # fmt: skip

MARK = re.compile(r"\{\{|\}\}|\{[auq]\}")


@FAST
@given(frames=st.lists(FRAMES, min_size=1, max_size=3), a=PASSING, u=UNKNOWN)
def test_composing_with_the_unknown_never_passes(
    frames: list[str], a: str, u: str, allowed: Callable[[str], bool]
) -> None:
    assert allowed(a)
    assert not allowed(u)
    whole = u
    for frame in frames:
        parts = {"{a}": a, "{u}": whole, "{q}": shlex.quote(whole), "{{": "{", "}}": "}"}
        whole = MARK.sub(lambda mark, parts=parts: parts[mark.group()], frame)
    assert not allowed(whole)


@FAST
@given(left=COMMANDS, right=COMMANDS, joint=st.sampled_from(["\n", " ; ", " && ", " || ", " | "]))
def test_a_whole_passes_only_if_its_parts_do(
    left: str, right: str, joint: str, allowed: Callable[[str], bool]
) -> None:
    """For parts that are understood alone, so that the joint is one."""
    if allowed(left + joint + right) and left.strip() and right.strip():
        open_end = left.count("'") % 2 or left.count('"') % 2 or "#" in left or "\\" in left
        if not open_end and "<<" not in left and not _spans(left):
            assert allowed(left)


def _spans(left: str) -> bool:
    """Whether a construct opened on the left may be closed on the right."""
    words = ("if", "for", "while", "case", "until", "select", "(", "{", "`", "[[", "do", "$", "cd")
    return any(word in left for word in words)
