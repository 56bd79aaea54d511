"""Twenty tasks written by hand over slices of real modules: those of Python's standard library.

The slices are cut from the running Python, so that nothing of it is copied here; the callers and
tests around them are ours. Code like this is not what K3-nano was trained on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path

from .code import Function
from .families import with_default, with_parameter
from .hidden import (
    hidden_constant,
    hidden_default,
    hidden_deprecated,
    hidden_fix,
    hidden_parameter,
    hidden_rename,
)
from .task import (
    AddParameter,
    Deprecated,
    Family,
    Fix,
    Goal,
    Rename,
    SetConstant,
    SetDefault,
    Task,
)

Files = Mapping[str, str]


def take(module: str, *names: str, head: str = "") -> str:
    """Top-level definitions of a module as they stand in its source, after `head`."""
    # Not through the import system: some of these modules are frozen into the interpreter.
    library = Path(get_path("stdlib"))
    path = library / module / "__init__.py"
    path = path if path.is_file() else library / f"{module}.py"
    source = path.read_bytes().decode()
    lines = source.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        name = _name(node)
        if name in names and name not in found:
            found[name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    missing = [name for name in names if name not in found]
    if missing:
        raise LookupError(f"{module} of this Python has no {', '.join(missing)}")
    values = [found[name] for name in names if not found[name].startswith(("def ", "class "))]
    blocks = [found[name] for name in names if found[name].startswith(("def ", "class "))]
    top = "\n".join(part for part in (head, *values) if part)
    return "\n\n\n".join(part for part in (top, *blocks) if part) + "\n"


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


def _tests(module: str, names: str, **cases: Sequence[str]) -> str:
    """A test file: each case is an expression that must be true."""
    blocks = [
        f"    def test_{name}(self):\n"
        + "\n".join(f"        self.assertTrue({expression})" for expression in expressions)
        for name, expressions in cases.items()
    ]
    title = module.rpartition(".")[2].capitalize()
    return (
        f"import unittest\n\nfrom {module} import {names}\n\n\n"
        f"class Test{title}(unittest.TestCase):\n" + "\n\n".join(blocks) + "\n"
    )


@dataclass(frozen=True)
class _Written:
    family: Family
    words: str
    goal: Goal
    files: Callable[[], Files]
    module: str = ""
    """Where the subject is defined."""
    answer: str = ""


# --- repositories --------------------------------------------------------------------------------


def _colors() -> Files:
    return {
        "colors.py": take("colorsys", "ONE_THIRD", "ONE_SIXTH", "TWO_THIRD", "rgb_to_hls",
                          "hls_to_rgb", "_v"),
        "palette.py": (
            "from colors import hls_to_rgb, rgb_to_hls\n\n\n"
            "def lighten(color, amount):\n"
            '    """The color with more lightness, at most 1."""\n'
            "    h, l, s = rgb_to_hls(*color)\n"
            "    return hls_to_rgb(h, min(1.0, l + amount), s)\n"
        ),
        "test_colors.py": _tests(
            "colors", "hls_to_rgb, rgb_to_hls",
            grey=["rgb_to_hls(0.5, 0.5, 0.5) == (0.0, 0.5, 0.0)"],
            back=["hls_to_rgb(0.0, 0.5, 0.0) == (0.5, 0.5, 0.5)"],
        ),
    }  # fmt: skip


def _quoted() -> Files:
    head = 'ESCAPE = b"="\nHEX = b"0123456789ABCDEF"'
    return {
        "mail/__init__.py": "",
        "mail/printable.py": take("quopri", "MAXLINESIZE", "needsquoting", "quote", "ishex", "unhex",
                                  head=head),
        "mail/lines.py": (
            "from mail.printable import MAXLINESIZE, ishex, unhex\n\n\n"
            "def fits(line):\n    return len(line) <= MAXLINESIZE\n\n\n"
            "def value(pair):\n"
            "    digits = [bytes((one,)) for one in pair]\n"
            "    return unhex(pair) if all(ishex(one) for one in digits) else None\n"
        ),
        "test_printable.py": _tests(
            "mail.printable", "ishex, quote, unhex",
            hex=['ishex(b"a")', 'not ishex(b"g")', 'unhex(b"1f") == 31'],
            quote=['quote(b"=") == b"=3D"'],
        ),
    }  # fmt: skip


def _days() -> Files:
    return {
        "days.py": take("calendar", "isleap", "leapdays", "weekday",
                        head="import datetime\n\nEPOCH = 1970"),
        "spans.py": (
            "from days import EPOCH, isleap, leapdays, weekday\n\n\n"
            "def length(year):\n    leap = isleap(year)\n    return 366 if leap else 365\n\n\n"
            "def since_epoch(year):\n    extra = leapdays(EPOCH, year)\n"
            "    return 365 * (year - EPOCH) + extra\n\n\n"
            "def first_day(year):\n    day = weekday(year, 1, 1)\n    return day\n"
        ),
        "test_days.py": _tests(
            "days", "isleap, leapdays, weekday",
            leap=["isleap(2000)", "isleap(2024)", "not isleap(1900)", "not isleap(2023)"],
            leapdays=["leapdays(2000, 2005) == 2"],
            weekday=["weekday(2024, 2, 29) == 3"],
        ),
    }  # fmt: skip


def _matching() -> Files:
    return {
        "matching.py": take("difflib", "get_close_matches",
                            head="from difflib import SequenceMatcher\nfrom heapq import nlargest as _nlargest"),
        "spelling.py": (
            "from matching import get_close_matches\n\nKNOWN = [\"open\", \"close\", \"print\"]\n\n\n"
            "def suggest(word):\n    found = get_close_matches(word, KNOWN)\n    return found\n"
        ),
        "test_matching.py": _tests(
            "matching", "get_close_matches",
            close=['get_close_matches("opne", ["open", "shut"], 1, 0.5) == ["open"]'],
        ),
    }  # fmt: skip


def _pages() -> Files:
    return {
        "pages/markup.py": take("html", "escape"),
        "pages/__init__.py": "",
        "pages/titles.py": (
            "from .markup import escape\n\n\n"
            "def title(text):\n    safe = escape(text)\n    return f\"<h1>{safe}</h1>\"\n"
        ),
        "test_markup.py": _tests(
            "pages.markup", "escape", escape=['escape("<a>", False) == "&lt;a&gt;"']
        ),
    }  # fmt: skip


def _paths() -> Files:
    return {
        "paths.py": take("genericpath", "commonprefix", head="import os"),
        "groups.py": (
            "from paths import commonprefix\n\n\n"
            "def group(names):\n    start = commonprefix(names)\n    return start, len(names)\n\n\n"
            "def shared(one, other):\n    found = commonprefix([one, other])\n    return len(found)\n"
        ),
        "test_groups.py": _tests("groups", "group, shared",
                                 group=['group(["abc", "abd"]) == ("ab", 2)'],
                                 shared=['shared("xy", "z") == 0']),
    }  # fmt: skip


def _shells() -> Files:
    old = '\n\ndef quote_word(s):\n    """Deprecated: use quote."""\n    return quote(s)\n'
    return {
        "shells.py": take("shlex", "_find_unsafe", "quote", head="import re") + old,
        "commands.py": (
            "from shells import quote_word\n\n\n"
            "def remove(name):\n    safe = quote_word(name)\n    return f\"rm {safe}\"\n"
        ),
        "copies.py": (
            "import shells\n\n\n"
            "def copy(name, target):\n    first = shells.quote_word(name)\n"
            "    return f\"cp {first} {target}\"\n"
        ),
        "test_shells.py": _tests(
            "shells", "quote", quote=["quote(\"a b\") == \"'a b'\"", 'quote("ab") == "ab"']
        ),
    }  # fmt: skip


def _graphs() -> Files:
    return {
        "graphs.py": take("graphlib", "CycleError"),
        "order.py": (
            "from graphs import CycleError\n\n\n"
            "def check(edges):\n"
            '    """Refuse an edge from a node to itself."""\n'
            "    for start, end in edges:\n        if start == end:\n"
            "            raise CycleError(start)\n    return True\n"
        ),
        "test_order.py": (
            "import unittest\n\nfrom graphs import CycleError\nfrom order import check\n\n\n"
            "class TestOrder(unittest.TestCase):\n"
            "    def test_check(self):\n        self.assertTrue(check([(1, 2)]))\n"
            "        with self.assertRaises(CycleError):\n            check([(1, 1)])\n"
        ),
    }


def _modes() -> Files:
    return {
        "modes.py": take("stat", "S_IFDIR", "S_IFREG", "S_IFLNK", "S_IFMT", "S_ISDIR", "S_ISREG"),
        "kinds.py": (
            "import modes\n\n\ndef kind(mode):\n    bits = modes.S_IFMT(mode)\n"
            '    return "link" if bits == modes.S_IFLNK else "other"\n'
        ),
        "test_modes.py": _tests("modes", "S_IFMT, S_ISDIR, S_ISREG",
                                kinds=["S_ISDIR(0o040755)", "not S_ISREG(0o040755)"],
                                bits=["S_IFMT(0o100644) == 0o100000"]),
    }  # fmt: skip


def _bits() -> Files:
    return {
        "bits.py": take("ipaddress", "_count_righthand_zero_bits"),
        "test_bits.py": _tests(
            "bits", "_count_righthand_zero_bits",
            _count_righthand_zero_bits=["_count_righthand_zero_bits(8, 32) == 3",
                                        "_count_righthand_zero_bits(0, 16) == 16"],
        ),
    }  # fmt: skip


def _two_limits() -> Files:
    more = {
        "mail/base.py": (
            "MAXLINESIZE = 57\n\n\ndef chunks(data):\n"
            "    return [data[i : i + MAXLINESIZE] for i in range(0, len(data), MAXLINESIZE)]\n"
        )
    }
    return {**_quoted(), **more}


WRITTEN: tuple[_Written, ...] = (
    _Written("rename", "Rename hls_to_rgb to rgb_from_hls.",
             Rename("hls_to_rgb", "rgb_from_hls"), _colors, "colors"),
    _Written("rename", "rename the constant ONE_THIRD to THIRD",
             Rename("ONE_THIRD", "THIRD"), _colors, "colors"),
    _Written("rename", "ishex should be called is_hex_digit",
             Rename("ishex", "is_hex_digit"), _quoted, "mail.printable"),
    _Written("rename", "Rename the class CycleError to CyclicGraphError everywhere.",
             Rename("CycleError", "CyclicGraphError"), _graphs, "graphs"),
    _Written("rename", "Please give S_IFMT the name file_format",
             Rename("S_IFMT", "file_format"), _modes, "modes"),
    _Written("value", "Set MAXLINESIZE to 72.",
             SetConstant("MAXLINESIZE", "72"), _quoted, "mail.printable"),
    _Written("value", "Change EPOCH to 1980",
             SetConstant("EPOCH", "1980"), _days, "days"),
    _Written("value", "Set MAXLINESIZE in mail/base.py to 60",
             SetConstant("MAXLINESIZE", "60", "mail/base.py"), _two_limits, "mail.base"),
    _Written("value", "Make the default of quote in escape False.",
             SetDefault("escape", "False", "quote"), _pages, "pages.markup"),
    _Written("value", "Set the default of cutoff in get_close_matches to 0.8",
             SetDefault("get_close_matches", "0.8", "cutoff"), _matching, "matching"),
    _Written("fix", "test_leap fails. Fix the code.",
             Fix("isleap", "return year % 4 == 0 or (year % 100 != 0 or year % 400 == 0)",
                 "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"), _days, "days"),
    _Written("fix", "fix what makes test_group fail",
             Fix("commonprefix", "if c == s2[i]:", "if c != s2[i]:"), _paths, "paths"),
    _Written("fix", "test__count_righthand_zero_bits is red, fix the function",
             Fix("_count_righthand_zero_bits", "return max(bits, (~number & (number-1)).bit_length())",
                 "return min(bits, (~number & (number-1)).bit_length())"), _bits, "bits"),
    _Written("fix", "Make test_hex pass.",
             Fix("unhex", "bits = bits*8 + (ord(c) - i)", "bits = bits*16 + (ord(c) - i)"),
             _quoted, "mail.printable"),
    _Written("deprecated", "quote_word is deprecated: call quote instead. Keep its definition.",
             Deprecated("quote_word", "quote"), _shells, "shells"),
    _Written("parameter", "Add a parameter limit=100 to commonprefix and pass limit=50 where it is called",
             AddParameter("commonprefix", "limit", "100", "50"), _paths, "paths"),
    _Written("parameter", "give isleap a parameter julian=False and call it with julian=True",
             AddParameter("isleap", "julian", "False", "True"),
             lambda: {**_days(), "test_days.py": _tests("days", "weekday",
                                                        weekday=["weekday(2024, 2, 29) == 3"])},
             "days"),
    _Written("ask", "Set MAXLINESIZE to 64.",
             SetConstant("MAXLINESIZE", "64"), _two_limits, "mail.base", "mail/base.py"),
    _Written("ask", "Change the default of get_close_matches to 5.",
             SetDefault("get_close_matches", "5"), _matching, "matching", "n"),
    _Written("ask", "rename check to verify",
             Rename("check", "verify"),
             lambda: {**_graphs(), "limits.py": "def check(size):\n    return size < 100\n",
                      "test_order.py": "import unittest\n\nimport order\n\n\n"
                      "class TestOrder(unittest.TestCase):\n    def test_there(self):\n"
                      "        self.assertTrue(order)\n"},
             "order", "order.py"),
)  # fmt: skip


# --- tasks ---------------------------------------------------------------------------------------


def real_tasks() -> list[Task]:
    """All twenty. Raises LookupError where this Python lacks what a slice needs."""
    return [_task(number, written) for number, written in enumerate(WRITTEN)]


def _task(number: int, written: _Written) -> Task:
    files = dict(sorted(written.files().items()))
    home = next(path for path in files if path == written.module.replace(".", "/") + ".py")
    goal = written.goal
    if isinstance(goal, Fix):
        if files[home].count(goal.right) != 1:
            raise LookupError(f"{written.module} of this Python has another {goal.function}")
        right = files[home]
        files[home] = right.replace(goal.right, goal.wrong)
    after = {path: _solved(goal, path, text, home, written) for path, text in files.items()}
    solution = {path: text for path, text in after.items() if text != files[path]}
    hidden = _hidden(goal, files, solution, home, written)
    return Task(written.family, "test", number, "medium", files, written.words, goal, solution,
                hidden, written.answer)  # fmt: skip


def _solved(goal: Goal, path: str, text: str, home: str, written: _Written) -> str:
    """The text of a file in the solution."""
    match goal:
        case Rename(old, new):
            only = home if written.family == "ask" else path
            return re.sub(rf"\b{old}\b", new, text) if path == only else text
        case Deprecated(old, new):
            return text.replace(old, new) if path != home else text
        case SetConstant(name, value):
            return (
                re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", text) if path == home else text
            )
        case SetDefault(function, value, parameter):
            lines = text.splitlines(keepends=True)
            name = parameter or written.answer
            start = f"def {function}("
            return "".join(
                with_default(x, name, value) if x.startswith(start) else x for x in lines
            )
        case Fix(_function, wrong, right):
            return text.replace(wrong, right)
        case AddParameter(function, parameter, default, value):
            lines = text.splitlines(keepends=True)
            return "".join(with_parameter(x, function, parameter, default, value) for x in lines)
        case _:
            raise AssertionError(goal)


def _hidden(goal: Goal, files: Files, solution: Files, home: str, written: _Written) -> str:
    module = written.module
    match goal:
        case Rename(old, new):
            return hidden_rename(module, old, new, only=home if written.family == "ask" else "")
        case Deprecated(old, new):
            return hidden_deprecated(module, old, new, list(solution), home)
        case SetConstant(name, value):
            return hidden_constant([module], name, value)
        case SetDefault(function, value, parameter):
            return hidden_default(module, function, parameter or written.answer, value)
        case Fix(function):
            return hidden_fix(module, _function(solution[home], function))
        case AddParameter(function, parameter, default, value):
            return hidden_parameter(module, function, parameter, default, value)
        case _:
            raise AssertionError(goal)


_CASES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "isleap": (("1900",), ("2000",), ("2023",), ("2024",), ("2100",)),
    "commonprefix": (('["abc", "abd"]',), ('["a", "b"]',), ('["same", "same"]',)),
    "_count_righthand_zero_bits": (("8", "32"), ("0", "16"), ("7", "4"), ("1 << 20", "8")),
    "unhex": (('b"ff"',), ('b"10"',), ('b"1F"',)),
}


def _function(text: str, name: str) -> Function:
    """A function of a module, for the hidden tests to compare with."""
    lines = text.splitlines()
    node = next(n for n in ast.parse(text).body if _name(n) == name)
    assert isinstance(node, ast.FunctionDef)
    body = [line.removeprefix("    ") for line in lines[node.body[0].lineno - 1 : node.end_lineno]]
    uses_os = ["import os"] if "os." in "\n".join(body) else []
    parameters = tuple(argument.arg for argument in node.args.args)
    return Function(name, parameters, "", (*uses_os, *body), _CASES[name])
