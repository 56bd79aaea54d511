"""Rates with their uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Z = 1.959963984540054
"""Of a 95 % interval."""


@dataclass(frozen=True)
class Rate:
    """So many of so many."""

    successes: int
    trials: int

    @property
    def rate(self) -> float | None:
        """From 0 to 1; None of nothing."""
        return self.successes / self.trials if self.trials else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval: it stays inside 0 to 1 and is honest for few trials."""
        return wilson(self.successes, self.trials)

    def to_json(self) -> dict[str, Any]:
        """As a report holds it."""
        low, high = self.interval
        rate = self.rate
        return {
            "rate": None if rate is None else round(rate, 4),
            "interval": [round(low, 4), round(high, 4)],
            "successes": self.successes,
            "trials": self.trials,
        }


def wilson(successes: int, trials: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval for a proportion (E. B. Wilson, 1927).

    Without trials everything is possible: (0, 1). Raises ValueError when more succeeded than were
    tried.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} cannot be")
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    middle = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = 0.0 if successes == 0 else max(0.0, (middle - spread) / scale)
    high = 1.0 if successes == trials else min(1.0, (middle + spread) / scale)
    return low, high
