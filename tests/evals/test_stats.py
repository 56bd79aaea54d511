"""Wilson's interval against published values and against its own definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.evals.stats import Rate, Z, wilson


# Newcombe (1998), Statistics in Medicine 17, table I, method 3.
@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)  # fmt: skip
def test_published_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_are_where_the_score_test_turns(counts: tuple[int, int]) -> None:
    """By definition an end p satisfies |k/n - p| = z sqrt(p (1 - p) / n)."""
    successes, trials = counts
    share = successes / trials
    low, high = wilson(successes, trials)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            spread = Z * math.sqrt(end * (1 - end) / trials)
            assert abs(share - end) == pytest.approx(spread, rel=1e-6)


def test_nothing_tried_and_nonsense() -> None:
    assert Rate(0, 0).rate is None
    assert Rate(0, 0).interval == (0.0, 1.0)
    with pytest.raises(ValueError, match="cannot be"):
        wilson(3, 2)
