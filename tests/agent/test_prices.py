from __future__ import annotations

from datetime import date

import pytest

from unabridged.agent.events import Usage
from unabridged.agent.prices import PRICES, Listed, cost, rates

USAGE = Usage(prompt=1_000_000, cached=900_000, completion=10_000)


def test_price_of_k3() -> None:
    # 100k fresh at $3, 900k cached at $0.30, 10k out at $15 per million
    assert cost("kimi-k3", USAGE) == pytest.approx(0.30 + 0.27 + 0.15)


def test_a_million_tokens_cold_and_cached() -> None:
    assert cost("kimi-k3", Usage(prompt=1_000_000, cached=0, completion=0)) == pytest.approx(3.0)
    warm = Usage(prompt=1_000_000, cached=1_000_000, completion=0)
    assert cost("kimi-k3", warm) == pytest.approx(0.3)


def test_unknown_model_has_no_price() -> None:
    assert cost("k4", USAGE) is None
    assert rates("k4") is None


def test_settings_win_and_add() -> None:
    own = Listed(1.0, 0.0, 0.0, source="own", as_of="2026-01-01")
    assert cost("kimi-k3", USAGE, {"kimi-k3": own}) == pytest.approx(0.1)
    assert cost("mine", USAGE, {"mine": own}) == pytest.approx(0.1)


def test_every_price_has_date_and_source() -> None:
    for listed in PRICES.values():
        date.fromisoformat(listed.as_of)
        assert listed.source.startswith("https://")
        assert listed.cached <= listed.input <= listed.output
