"""Nearest rank: the value at rank ceil(q n), counted from 1; a value that was measured, never one in between. How sure
one can be of it is arithmetic of the binomial distribution, told here by counting heads."""

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.statistics import (
    PERCENTILES,
    Spread,
    early_stop,
    median,
    nearest_rank,
    rank_interval,
    samples_needed,
    smallest_for_interval,
    spread,
)

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200)
SHARES = st.floats(0, 1, exclude_min=True)
QS = st.sampled_from([*PERCENTILES.values()])


@pytest.mark.parametrize(
    ("q", "value"), [(0.001, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.95, 95), (0.99, 99), (0.991, 100), (1, 100)]
)
def test_of_a_hundred(q: float, value: int) -> None:
    assert nearest_rank(range(1, 101), q) == value


@pytest.mark.parametrize(
    ("values", "p50", "p95"),
    [([3.0], 3, 3), ([1.0, 2.0], 1, 2), ([1.0, 2.0, 3.0], 2, 3), ([float(n) for n in range(1, 41)], 20, 38)],
)
def test_of_few(values: list[float], p50: float, p95: float) -> None:
    assert (nearest_rank(values, 0.5), nearest_rank(values, 0.95)) == (p50, p95)


@pytest.mark.parametrize(("percent", "q"), [(50, 0.5), (95, 0.95), (99, 0.99)])
def test_no_rounding_error_moves_a_rank(percent: int, q: float) -> None:
    for n in range(1, 2_001):
        assert nearest_rank(range(1, n + 1), q) == math.ceil(Fraction(percent, 100) * n)


@pytest.mark.parametrize("q", [0, -0.5, 1.01, float("nan")])
def test_a_quantile_lies_above_0_and_up_to_1(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        nearest_rank([1.0], q)


def test_nothing_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="0 values"):
        nearest_rank([], 0.5)


def test_the_typical_value_is_the_lower_of_two() -> None:
    assert median([9.0, 1.0]) == 1
    assert median([9.0, 1.0, 5.0]) == 5
    assert median([]) is None


def test_a_spread() -> None:
    hundred = spread([float(n) for n in range(100, 0, -1)])
    assert hundred == Spread(100, 50, 95, 99, 100, (40, 61), (90, 100), None, 50.5)
    assert spread([7.0]) == Spread(1, 7, 7, 7, 7, mean=7)
    assert spread([]) == Spread(0, None, None, None, None)


@given(VALUES, SHARES, SHARES)
def test_higher_quantiles_are_not_lower(values: list[float], a: float, b: float) -> None:
    ranked = sorted(values)
    low, high = nearest_rank(ranked, min(a, b)), nearest_rank(ranked, max(a, b))
    assert ranked[0] <= low <= high <= ranked[-1]
    assert low in values


@given(VALUES, SHARES)
def test_at_least_the_share_lies_at_or_below_it(values: list[float], q: float) -> None:
    value = nearest_rank(sorted(values), q)
    assert sum(other <= value for other in values) >= q * len(values) * (1 - 1e-12)
    assert sum(other < value for other in values) < q * len(values) * (1 + 1e-12)


@given(VALUES)
def test_percentiles_are_monotone_and_never_above_the_maximum(values: list[float]) -> None:
    made = spread(values)
    assert made.p50 is not None
    assert made.p95 is not None
    assert made.p99 is not None
    assert made.p50 <= made.p95 <= made.p99 <= max(values) == made.max


# --- rank intervals ---


def heads(k: int, n: int, p: Fraction) -> Fraction:
    """The probability of at most k heads in n throws."""
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1)), Fraction(0))


@pytest.mark.parametrize(("percent", "fewest"), [(50, 6), (95, 72), (99, 368)])
def test_fewest_values_with_an_interval(percent: int, fewest: int) -> None:
    q = percent / 100
    assert smallest_for_interval(q) == fewest
    assert rank_interval(range(fewest - 1), q) is None
    assert rank_interval(range(1, fewest + 1), q) is not None
    assert rank_interval([], q) is None


@pytest.mark.parametrize(("n", "percent"), [(6, 50), (20, 50), (100, 50), (72, 95), (100, 95), (400, 95), (500, 99)])
def test_an_interval_is_as_narrow_as_its_confidence_allows(n: int, percent: int) -> None:
    """Below the low end lies the quantile with at most 2.5 %, one rank further in with more; likewise above."""
    q, tail = Fraction(percent, 100), Fraction(25, 1000)
    ends = rank_interval(range(1, n + 1), percent / 100)
    assert ends is not None
    low, high = map(int, ends)
    assert heads(low - 1, n, q) <= tail < heads(low, n, q)
    assert 1 - heads(high - 1, n, q) <= tail < 1 - heads(high - 2, n, q)


def test_more_confidence_takes_a_wider_interval() -> None:
    assert rank_interval(range(1, 101), 0.5, 0.99) == (37, 64)


@given(VALUES, QS)
def test_an_interval_holds_its_percentile(values: list[float], q: float) -> None:
    ranked = sorted(values)
    ends = rank_interval(ranked, q)
    assert (ends is not None) == (len(values) >= smallest_for_interval(q))
    if ends is not None:
        assert ranked[0] <= ends[0] <= nearest_rank(ranked, q) <= ends[1] <= ranked[-1]


def test_an_interval_covers_the_true_median_as_often_as_it_says() -> None:
    """2,000 times 40 values of a skewed distribution: 95 % at least, as ranks are whole numbers."""
    drawn = np.sort(np.random.default_rng(12).lognormal(size=(2_000, 40)), axis=1)
    ends = rank_interval(range(40), 0.5)
    assert ends is not None
    low, high = map(int, ends)
    covered = np.mean((drawn[:, low] <= 1) & (drawn[:, high] >= 1))
    assert 0.95 <= covered <= 0.98


def test_roles_do_not_load_what_only_analysis_computes_with() -> None:
    """It takes a third of a second, and memory, in processes that must not be late."""
    look = "import sys, clients.cli, router.cli, experiments.rush_cli; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


# --- early stopping ---


@pytest.mark.parametrize(("q", "misses", "needed"), [(0.99, 1, 662), (0.95, 0, 90), (0.95, 1, 130)])
def test_early_stopping_is_mlperfs(q: float, misses: int, needed: int) -> None:
    assert samples_needed(q, misses) == needed
    assert early_stop(needed, misses, q) == "met"
    assert early_stop(needed - 1, misses, q) == "not determined"


@pytest.mark.parametrize("misses", [0, 1, 5, 30])
def test_one_sample_fewer_would_not_show_it(misses: int) -> None:
    needed, rare, doubt = samples_needed(0.95, misses), Fraction(1, 20), Fraction(1, 100)
    assert heads(misses, needed, rare) <= doubt < heads(misses, needed - 1, rare)


def test_missed_is_as_sure_as_met() -> None:
    """Of 20 requests one may miss; 5 or more miss 0.26 % of the time when 95 % are in time, 4 or more 1.6 %."""
    assert [early_stop(20, misses, 0.95) for misses in (0, 4, 5, 20)] == [
        "not determined",
        "not determined",
        "missed",
        "missed",
    ]
    assert early_stop(0, 0, 0.5) == "not determined"
    assert early_stop(1, 1, 0.95) == "not determined"
    assert early_stop(2, 2, 0.95) == "missed", "which one in 400 pairs would"


RANK = {"missed": 0, "not determined": 1, "met": 2}


@given(st.integers(0, 400), st.integers(0, 400), QS)
def test_a_miss_more_is_never_better_and_a_sample_in_time_never_worse(n: int, misses: int, q: float) -> None:
    misses = min(n, misses)
    state = RANK[early_stop(n, misses, q)]
    assert RANK[early_stop(n + 1, misses + 1, q)] <= state <= RANK[early_stop(n + 1, misses, q)]
    assert misses == n or RANK[early_stop(n, misses + 1, q)] <= state
