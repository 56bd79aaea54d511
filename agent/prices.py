"""What tokens cost, for models whose price is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .events import Usage


class Rates(Protocol):
    """US dollars for a million tokens."""

    @property
    def input(self) -> float:
        """Prompt tokens that were not cached."""
        ...

    @property
    def cached(self) -> float:
        """Prompt tokens that were."""
        ...

    @property
    def output(self) -> float:
        """Completion tokens, reasoning included."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """`Rates` as a vendor lists them."""

    input: float
    cached: float
    output: float
    source: str
    as_of: str
    """ISO date."""


PRICES: Mapping[str, Listed] = {
    "kimi-k3": Listed(
        3.00,
        0.30,
        15.00,
        source="https://platform.kimi.ai/docs/pricing/chat-k3",
        as_of="2026-11-30",
    ),
}
"""By the name an endpoint gives the model. Names that several vendors use at several prices, and
names of subscription plans, are left out: no price is better than a wrong one."""


def rates(model: str, overrides: Mapping[str, Rates] | None = None) -> Rates | None:
    """The rates of a model: from the settings, else as listed, else None."""
    return (overrides or {}).get(model) or PRICES.get(model)


def cost(model: str, usage: Usage, overrides: Mapping[str, Rates] | None = None) -> float | None:
    """US dollars for the tokens of one request; None when the model's price is unknown."""
    known = rates(model, overrides)
    if known is None:
        return None
    fresh = usage.prompt - usage.cached
    millionths = fresh * known.input + usage.cached * known.cached + usage.completion * known.output
    return millionths / 1e6
