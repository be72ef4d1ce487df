"""Intervals for a mean difference: by hand from the table of Student's t, and by how often they hold the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.paired import (
    BOOTSTRAP,
    BOOTSTRAP_PAIRS,
    FEWEST_PAIRS,
    STUDENT,
    Mean,
    bootstrap_t,
    mean_difference,
    standard_error,
    student_t,
)
from tests.bench.coverage import TRUTH, covered, drawn, resampled

TRIALS = 2_000


def test_students_interval_by_hand() -> None:
    """1 to 5: mean 3, deviation sqrt(2.5), standard error sqrt(0.5); t of 4 degrees is 2.776."""
    low, high = student_t(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert (low, high) == pytest.approx((3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5), abs=1e-3)


def test_many_intervals_at_once_are_the_same() -> None:
    samples = drawn("normal", 10, 3)
    lows, highs = student_t(samples)
    for row, low, high in zip(samples, lows, highs, strict=True):
        assert (low, high) == pytest.approx(student_t(row))


def test_below_five_the_mean_alone() -> None:
    assert mean_difference([]) == Mean(None, None, None)
    assert mean_difference([-9.0]) == Mean(-9, None, None)
    assert mean_difference([9.0, 9.2, 8.8, 9.0]) == Mean(9, None, None)


@pytest.mark.parametrize(
    ("n", "method"), [(FEWEST_PAIRS, STUDENT), (BOOTSTRAP_PAIRS - 1, STUDENT), (BOOTSTRAP_PAIRS, BOOTSTRAP)]
)
def test_how_many_pairs_take_which_method(n: int, method: str) -> None:
    found = mean_difference([float(value) for value in range(n)])
    assert found.method == method
    assert found.interval is not None
    assert found.interval[0] < found.mean == (n - 1) / 2 < found.interval[1]


def test_the_same_sample_has_the_same_interval() -> None:
    values = [float(value) for value in drawn("lognormal", 40, 1)[0]]
    assert mean_difference(values) == mean_difference(values)


@pytest.mark.parametrize("n", [FEWEST_PAIRS, BOOTSTRAP_PAIRS])
def test_equal_differences_leave_no_doubt(n: int) -> None:
    assert mean_difference([-0.5] * n).interval == (-0.5, -0.5)


def test_where_most_values_are_equal_the_bootstrap_has_no_end() -> None:
    """Of 29 equal values and another, a third of all resamples lack the other: Student's t has to do."""
    values = [0.0] * 29 + [1.0]
    found = mean_difference(values)
    assert bootstrap_t(np.array(values)) is None
    assert (found.method, found.interval) == (STUDENT, pytest.approx(student_t(np.array(values))))


def test_a_skewed_sample_has_a_skewed_interval() -> None:
    ends = bootstrap_t(np.exp(np.linspace(-2, 2, 40)))
    assert ends is not None
    mean = np.exp(np.linspace(-2, 2, 40)).mean()
    assert ends[1] - mean > 1.2 * (mean - ends[0]) > 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=FEWEST_PAIRS, max_size=BOOTSTRAP_PAIRS - 1))
def test_an_interval_holds_the_mean_and_turns_with_its_sign(values: list[float]) -> None:
    found, mirrored = mean_difference(values), mean_difference([-value for value in values])
    assert found.interval is not None
    assert mirrored.interval is not None
    slack = 1e-6 + 1e-9 * max(map(abs, values))
    assert found.interval[0] - slack <= found.mean <= found.interval[1] + slack
    assert mirrored.interval == pytest.approx((-found.interval[1], -found.interval[0]), abs=slack)


def test_over_ten_seeds_it_covers_the_truth_as_often_as_it_says() -> None:
    assert 0.93 <= covered(student_t, drawn("normal", 10, TRIALS), TRUTH["normal"]) <= 0.97


def test_on_skewed_data_it_covers_less_and_the_bootstrap_more() -> None:
    """So it is not a surprise: see tests/bench/coverage.py for the figures."""
    skewed = drawn("lognormal", BOOTSTRAP_PAIRS, 300)
    student = covered(student_t, skewed, TRUTH["lognormal"])
    bootstrap = covered(resampled, skewed, TRUTH["lognormal"])
    assert 0.80 <= student < bootstrap <= 0.99


def test_the_error_of_a_mean() -> None:
    assert standard_error(np.array([[1.0, 3.0], [2.0, 2.0]])) == pytest.approx([1, 0])
