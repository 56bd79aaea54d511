from __future__ import annotations

from typing import Any

import pytest

from unabridged.tools.symbols import Symbols

A = b"""class Shop:
    def price(self, item):
        "What it costs."
        return lookup(item)


def lookup(item):
    return 1
"""


@pytest.fixture
def shop(bench: Any) -> Any:
    bench.put("src/a.py", A)
    bench.put("b.rb", b"lookup(1)\n")
    return bench


async def test_definitions(shop: Any) -> None:
    assert (await shop.run(Symbols(), name="price")).text == (
        "1 definition of price:\n"
        "src/a.py\n"
        "  2-4: def price(self, item)  (in Shop)  — What it costs."
    )


async def test_references(shop: Any) -> None:
    assert (await shop.run(Symbols(), name="lookup", what="references")).text == (
        "2 references of lookup; 1 file with the name in other languages, use `search` for them:\n"
        "b.rb\n"
        "  1: lookup(1)\n"
        "src/a.py\n"
        "  4: return lookup(item)  (in Shop.price)"
    )


async def test_callers(shop: Any) -> None:
    text = (await shop.run(Symbols(), name="lookup", what="callers", path="src")).text
    assert text == "1 caller of lookup:\nsrc/a.py\n  Shop.price: line 4"


async def test_nothing_found_and_a_cut_are_said(shop: Any) -> None:
    assert (await shop.run(Symbols(), name="absent")).text == "0 definitions of absent."
    text = (await shop.run(Symbols(), name="lookup", what="references", limit=1)).text
    assert text.endswith("… 3 more lines: raise `limit` or give `path`")


async def test_effects_and_refusals(shop: Any) -> None:
    assert shop.effects(Symbols(), name="x", path="src") == [("read", "src")]
    assert "outside the repository" in await shop.refused(Symbols(), name="x", path="..")
    for name in ("def f", "f()", " ", "."):
        assert "is no identifier" in await shop.refused(Symbols(), name=name)
    assert "does not exist" in await shop.refused(Symbols(), name="x", path="missing")
