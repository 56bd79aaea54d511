"""Definitions, references and callers, from the files as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unabridged.agent.context.errors import Cancelled
from unabridged.agent.context.symbols import find

from .conftest import Repo

FILES = {
    "a.py": (
        "class Shop:\n"
        "    def price(self, item):\n"
        '        "What it costs."\n'
        "        return lookup(item) + lookup (item)\n"
        "\n"
        "def lookup(item):\n"
        "    return 1\n"
        "\n"
        "lookups = lookup\n"
    ),
    "b/c.go": "package c\n\nfunc (s *Stall) price() int {\n\treturn lookup(3)\n}\n",
    "d.rb": "lookup(1)\n",
    "vendor/v.py": "def lookup(): pass\n",
    ".env": "lookup=1\n",
    "blob": b"lookup\0",
}


def test_definitions_references_and_calls(make_repo: Callable[..., Repo]) -> None:
    root = make_repo(FILES).root
    found = find(root, "lookup")
    assert [(d.file, d.declaration.line, d.declaration.end) for d in found.definitions] == [
        ("a.py", 6, 7)
    ]
    assert [(r.file, r.line, r.inside, r.call) for r in found.references] == [
        ("a.py", 4, "Shop.price", True),
        ("a.py", 9, "lookups", False),
        ("b/c.go", 4, "price", True),
        ("d.rb", 1, "", True),
    ]
    assert found.unparsed == ("d.rb",)
    assert [r.file for r in find(root, "lookup", under="b").references] == ["b/c.go"]


def test_a_scope_narrows(make_repo: Callable[..., Repo]) -> None:
    root = make_repo(FILES).root
    assert len(find(root, "price").definitions) == 2
    (only,) = find(root, "Shop.price").definitions
    assert (only.inside, only.declaration.doc) == ("Shop", "What it costs.")
    assert find(root, "Shop::price").definitions == (only,)
    assert not find(root, "nothing_of_this_name").references


def test_edits_count_at_once_and_it_can_be_stopped(make_repo: Callable[..., Repo]) -> None:
    repo = make_repo(FILES)
    repo.write("new.ts", "export function lookup() {}\n")
    assert [d.file for d in find(repo.root, "lookup").definitions] == ["a.py", "new.ts"]
    with pytest.raises(Cancelled):
        find(repo.root, "lookup", stop=lambda: True)
