"""Each requirement that a headless run must meet has a test that names it.

`pytest -k c45` runs the tests of one. A test names its requirements in its own name (`test_c45_…`)
or in the first line of its docstring.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
NOT_HERE = {
    "C61": "no endpoint says how long it keeps a prefix",
    "C62": "there are no skills",
    "C63": "there are no sub-agents",
    "C67": "about the terminal interface",
}
WANTED = {
    *(f"K{number}" for number in range(1, 31)),
    *(f"C{number}" for number in (*range(10, 23), *range(39, 51), *range(59, 73))),
}


def named(path: Path) -> set[str]:
    """The requirements that the tests of a file name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            words = f"{node.name.replace('_', ' ').upper()} {first}"
            found |= set(re.findall(r"(?<![A-Za-z0-9])[KC]\d+(?![A-Za-z0-9])", words))
    return found


def test_every_requirement_has_a_test_with_its_name() -> None:
    found = {name for path in TESTS.rglob("test_*.py") for name in named(path)}
    assert sorted(WANTED - found - NOT_HERE.keys()) == []
    assert sorted(NOT_HERE.keys() & found) == [], "it has a test now"
