"""Statistics against published values, other libraries and their own definitions."""

from __future__ import annotations

import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unabridged.evals.stats import (
    Rate,
    Z,
    cluster_bootstrap,
    holm,
    mcnemar,
    most_after_none,
    paired_tasks,
    pass_at_k,
    pass_hat_k,
    quantile,
    wilson,
)


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


# --- k trials ------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 3, 6])
def test_pass_at_k_against_every_choice(trials: int) -> None:
    for successes in range(trials + 1):
        results = [True] * successes + [False] * (trials - successes)
        for k in range(1, trials + 1):
            draws = list(combinations(results, k))
            some = sum(any(draw) for draw in draws) / len(draws)
            every = sum(all(draw) for draw in draws) / len(draws)
            assert pass_at_k([successes], [trials], k) == pytest.approx(some)
            assert pass_hat_k([successes], [trials], k) == pytest.approx(every)


def test_pass_at_k_is_a_mean_over_tasks_and_needs_k_trials() -> None:
    assert pass_at_k([0, 5], [5, 5], 1) == 0.5
    # HumanEval's formula with n = 200, c = 13, k = 10, worked out as a product.
    product = math.prod(1 - 10 / n for n in range(200 - 13 + 1, 201))
    assert pass_at_k([13], [200], 10) == pytest.approx(1 - product)
    assert pass_at_k([1], [2], 3) is None
    assert pass_hat_k([], [], 1) is None


# --- intervals -----------------------------------------------------------------------------------


def test_bootstrap_against_the_normal_approximation() -> None:
    # 400 tasks of one trial: the interval must be about p +- 1.96 sqrt(p (1 - p) / n).
    clusters = [[1.0]] * 280 + [[0.0]] * 120
    low, high = cluster_bootstrap(clusters, draws=4000)
    half = Z * math.sqrt(0.7 * 0.3 / 400)
    assert (low, high) == pytest.approx((0.7 - half, 0.7 + half), abs=0.01)


def test_alike_trials_do_not_narrow_the_interval() -> None:
    tasks = [[1.0], [0.0]] * 10
    alone = cluster_bootstrap(tasks)
    copied = cluster_bootstrap([one * 8 for one in tasks])
    assert alone == copied
    independent = cluster_bootstrap([[value] for one in tasks for value in one * 8])
    assert independent[1] - independent[0] < (copied[1] - copied[0]) / 2
    assert cluster_bootstrap(tasks, seed=3) == cluster_bootstrap(tasks, seed=3)
    with pytest.raises(ValueError, match="no cluster"):
        cluster_bootstrap([])


# The figures of `statistics.quantiles(method="inclusive")`, which interpolates in the same way.
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_quantiles_against_the_library(values: list[float]) -> None:
    ordered = sorted(values)
    own = [quantile(ordered, share / 4) for share in (1, 2, 3)]
    assert own == pytest.approx(
        statistics.quantiles(values, n=4, method="inclusive"), rel=1e-9, abs=1e-6
    )


# --- pairs ---------------------------------------------------------------------------------------


# Exact p-values of R 4's binom.test(b, b + c), two-sided; 5/15 is the textbook 0.0414.
@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        (5, 15, 0.04139),
        (0, 6, 0.03125),
        (1, 9, 0.02148),
        (10, 10, 1.0),
        (0, 0, 1.0),
        (2, 12, 0.01294),
    ],
)
def test_mcnemar(first: int, second: int, p: float) -> None:
    pairs = (
        [(True, False)] * first
        + [(False, True)] * second
        + [(True, True)] * 30
        + [(False, False)] * 4
    )
    found = mcnemar(pairs)
    assert (found.only_first, found.only_second, found.both, found.neither) == (
        first,
        second,
        30,
        4,
    )
    assert found.p_value == pytest.approx(p, abs=5e-5)
    assert found.difference == pytest.approx((second - first) / len(pairs))


# Connor (1987), and the calculators that follow it: 80 % power at 5 %.
@pytest.mark.parametrize(
    ("discordance", "difference", "tasks"), [(0.2, 0.1, 155), (0.3, 0.2, 57), (0.1, 0.1, 77)]
)
def test_power(discordance: float, difference: float, tasks: int) -> None:
    assert paired_tasks(discordance, difference) == tasks
    with pytest.raises(ValueError, match="within a discordance"):
        paired_tasks(0.1, 0.2)


@pytest.mark.parametrize(
    ("trials", "most"), [(10, 0.2589), (20, 0.1391), (35, 0.0820), (60, 0.0487), (0, 1.0)]
)
def test_no_violation_leaves_this_open(trials: int, most: float) -> None:
    assert most_after_none(trials) == pytest.approx(most, abs=5e-5)


def test_holm() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
