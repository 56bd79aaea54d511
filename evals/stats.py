"""Rates with their uncertainty."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
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


def pass_at_k(successes: Sequence[int], trials: Sequence[int], k: int) -> float | None:
    """Mean over tasks of the chance that at least one of k trials succeeds, without bias.

    1 - C(n - c, k) / C(n, k) for each task (Chen et al., 2021, arXiv 2107.03374). None where a
    task has fewer than k trials.
    """
    return _over_tasks(successes, trials, k, lambda c, n: 1 - math.comb(n - c, k) / math.comb(n, k))


def pass_hat_k(successes: Sequence[int], trials: Sequence[int], k: int) -> float | None:
    """Mean over tasks of the chance that all of k trials succeed: C(c, k) / C(n, k).

    pass^k of tau-bench (Yao et al., 2024, arXiv 2406.12045): what counts when nobody checks. None
    where a task has fewer than k trials.
    """
    return _over_tasks(successes, trials, k, lambda c, n: math.comb(c, k) / math.comb(n, k))


def _over_tasks(
    successes: Sequence[int], trials: Sequence[int], k: int, chance: Callable[[int, int], float]
) -> float | None:
    if not trials or min(trials) < k:
        return None
    values = [chance(c, n) for c, n in zip(successes, trials, strict=True)]
    return sum(values) / len(values)


def cluster_bootstrap(
    clusters: Sequence[Sequence[float]], *, seed: int = 0, draws: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean over all values when whole clusters are drawn.

    Values of a cluster (the trials of a task, or the tasks of a family) are alike, and treating
    them as independent gives intervals that are too narrow. Raises ValueError without clusters.
    """
    if not clusters:
        raise ValueError("there is no cluster to draw from")
    rng = random.Random(seed)  # noqa: S311 - not a secret
    sums = [(sum(one), len(one)) for one in clusters]
    means: list[float] = []
    for _ in range(draws):
        drawn = rng.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    tail = (1 - level) / 2
    return quantile(means, tail), quantile(means, 1 - tail)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order, interpolated between neighbours. Raises IndexError of none."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True)
class McNemar:
    """Two arms on the same tasks."""

    only_first: int
    """Tasks that only the first arm solved."""
    only_second: int
    both: int
    neither: int
    p_value: float
    """Exact, two-sided."""

    @property
    def difference(self) -> float:
        """Rate of the second arm less that of the first."""
        pairs = self.only_first + self.only_second + self.both + self.neither
        return (self.only_second - self.only_first) / pairs if pairs else 0.0

    def to_json(self) -> dict[str, Any]:
        """As a report holds it."""
        return {**self.__dict__, "difference": round(self.difference, 4)}


def mcnemar(pairs: Sequence[tuple[bool, bool]]) -> McNemar:
    """McNemar's test on pairs, exact: how often a fair coin splits the discordant ones so unevenly
    (Q. McNemar, 1947)."""
    first = sum(a and not b for a, b in pairs)
    second = sum(b and not a for a, b in pairs)
    n = first + second
    tail = sum(math.comb(n, i) for i in range(min(first, second) + 1)) / 2**n
    return McNemar(
        first, second, sum(a and b for a, b in pairs), sum(not a and not b for a, b in pairs),
        min(1.0, 2 * tail),
    )  # fmt: skip


def paired_tasks(discordance: float, difference: float, *, power: float = 0.8) -> int:
    """Tasks that a paired comparison needs to see a difference at the 5 % level.

    Args:
        discordance: share of tasks that only one of the arms solves.
        difference: between the rates, to be seen.
        power: chance to see it.

    From the normal approximation (Connor, 1987). Raises ValueError for what cannot be.
    """
    if not 0 < abs(difference) <= discordance <= 1:
        raise ValueError(f"a difference of {difference} within a discordance of {discordance}")
    beta = NormalDist().inv_cdf(power)
    root = Z * math.sqrt(discordance) + beta * math.sqrt(discordance - difference**2)
    return math.ceil((root / difference) ** 2)


def most_after_none(trials: int, level: float = 0.95) -> float:
    """The highest rate that no violation in so many trials leaves open: 1 - (1 - level)^(1/n)."""
    return 1 - (1 - level) ** (1 / trials) if trials else 1.0


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P-values adjusted for how many there are (Holm, 1979); in the order given."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for rank, (name, p) in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - rank) * p))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}
