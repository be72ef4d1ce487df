"""Nearest rank: the value at rank ceil(q n), counted from 1; a value that was measured, never one in between."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.statistics import Spread, median, nearest_rank, spread

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200)
SHARES = st.floats(0, 1, exclude_min=True)


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
    assert spread([float(n) for n in range(100, 0, -1)]) == Spread(100, 50, 95, 99, 100)
    assert spread([7.0]) == Spread(1, 7, 7, 7, 7)
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
