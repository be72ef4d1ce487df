"""The search itself, on servers whose highest rates are known: what it finds, how sure it is, and when it gives up."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments.capacity.search import (
    FOUND,
    NONE,
    NOT_DETERMINED,
    REACH,
    STEP,
    Effort,
    Hunt,
    highest,
    rate_of,
    step_below,
)

SEEDS = range(10)
EFFORT = Effort(fewest=100, most=1_600)


@dataclass(slots=True)
class Known:
    """A server that serves up to `rate`, times what each seed's luck and so many requests make of it."""

    rate: float
    luck: float = 0.0
    per_request: float = 0.0
    shrinking: bool = True
    most_: float = 1_000.0
    asked: list[tuple[float, int, int]] = field(default_factory=list)

    def limit(self, requests: int, seed: int) -> float:
        size = math.sqrt(100 / requests) if self.shrinking else 1.0
        draw = np.random.default_rng(seed).standard_normal()
        return self.rate * math.exp(self.luck * size * draw) * (1 + self.per_request / requests)

    def most(self, requests: int, seed: int) -> float:
        return self.most_

    def meets(self, rate: float, requests: int, seed: int) -> bool:
        self.asked.append((rate, requests, seed))
        return rate < self.limit(requests, seed)


@given(
    top=st.integers(-500, 500),
    below=st.integers(0, REACH),
    guess=st.one_of(st.none(), st.integers(-1_500, 1_500)),
)
def test_the_highest_step_is_found_and_no_step_is_asked_for_twice(top: int, below: int, guess: int | None) -> None:
    asked: list[int] = []

    def meets(step: int) -> bool:
        asked.append(step)
        return step <= top - below

    if guess is not None:
        guess = max(guess, top - REACH)
    assert highest(meets, top, guess) == top - below
    assert len(set(asked)) == len(asked)
    assert max(asked) <= top


def test_a_server_that_meets_nothing_has_no_rate() -> None:
    assert highest(lambda step: False, 0) is None
    assert highest(lambda step: False, 0, guess=-5) is None


def test_a_good_guess_saves_most_questions() -> None:
    asked: list[int] = []
    assert highest(lambda step: asked.append(step) or step <= 200, 400, guess=201) == 200
    assert len(asked) <= 4


@given(rate=st.floats(1e-6, 1e6))
def test_a_rate_is_within_a_percent_of_its_step(rate: float) -> None:
    assert rate_of(step_below(rate)) <= rate * (1 + 1e-9)
    assert rate < rate_of(step_below(rate)) * STEP * (1 + 1e-9)


def test_an_estimate_is_the_geometric_mean_with_students_interval() -> None:
    found = Hunt(Known(20.0, luck=0.1), SEEDS).look(100, len(SEEDS))
    truth = [Known(20.0, luck=0.1).limit(100, seed) for seed in SEEDS]
    assert all(rate <= limit < rate * STEP**1.001 for rate, limit in zip(found.rates, truth, strict=True))
    logs = np.log(found.rates)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    assert found.rate == pytest.approx(math.exp(logs.mean()))
    assert found.interval == pytest.approx((math.exp(low), math.exp(high)))


def half_width(trial: Known, requests: int) -> float:
    """Of Student's interval for the logarithms of the true limits: nearly the share of the rate."""
    logs = np.log([trial.limit(requests, seed) for seed in SEEDS])
    return float(stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs))


@pytest.mark.parametrize("luck", [0.05, 0.1, 0.2])
def test_requests_are_doubled_until_luck_is_small_enough(luck: float) -> None:
    trial = Known(20.0, luck)
    enough = next(size for size in (200, 400, 800, 1_600) if half_width(trial, size) < EFFORT.within)
    found = Hunt(trial, SEEDS).settled(EFFORT)
    assert found.state == FOUND
    assert found.estimate is not None and found.estimate.interval is not None
    assert found.estimate.requests == enough
    assert found.estimate.interval[0] < 20 < found.estimate.interval[1] * STEP


def test_requests_are_doubled_until_the_start_counts_for_little() -> None:
    """With N requests 60/N too much is served: 60 and 30 % at 100 and 200, 7.5 and 3.75 % at 800 and 1,600."""
    found = Hunt(Known(20.0, per_request=60), SEEDS).settled(EFFORT)
    assert found.state == FOUND
    assert found.estimate is not None and found.estimate.rate is not None
    assert found.estimate.requests == 1_600
    assert found.estimate.rate == pytest.approx(20 * 1.0375, rel=0.01)


def test_luck_that_does_not_wear_off_is_not_determined() -> None:
    found = Hunt(Known(20.0, luck=0.3, shrinking=False), SEEDS).settled(EFFORT)
    assert found.state == NOT_DETERMINED
    assert found.reason is not None
    assert found.reason.startswith("with 1,600 requests for each of 10 seeds the interval is still ±")


def test_a_rate_that_goes_on_falling_is_not_determined() -> None:
    found = Hunt(Known(20.0, per_request=1_000), SEEDS).settled(EFFORT)
    assert found.state == NOT_DETERMINED
    assert found.reason == "with 1,600 requests for each of 10 seeds the rate still changes by -28% from half as many"


def test_a_crowd_that_is_never_served_well_leaves_no_rate() -> None:
    found = Hunt(Known(1e-9), SEEDS).settled(EFFORT)
    assert (found.state, found.estimate) == (NONE, None)


def test_no_rate_counts_above_what_the_server_gets_done() -> None:
    found = Hunt(Known(math.inf, most_=7.0), SEEDS).settled(EFFORT)
    assert found.estimate is not None and found.estimate.rate is not None
    assert found.estimate.bounded
    assert 7 / STEP < found.estimate.rate <= 7


def test_pairs_tell_apart_what_luck_hides() -> None:
    """Both have the same luck with the same seeds, which is far larger than the 12 % between them."""
    one, other = (Hunt(Known(rate, luck=0.4), SEEDS) for rate in (10.0, 11.2))
    ours, theirs = other.look(100, 10), one.look(100, 10)
    assert ours.interval is not None and theirs.interval is not None
    assert ours.interval[0] < theirs.interval[1]
    found = other.against(one)
    assert found is not None and found.interval is not None
    assert found.shown
    assert found.interval[0] < 1.12 < found.interval[1] * STEP
    assert found.ratio == pytest.approx(1.12, rel=0.01)


def test_servers_that_do_the_same_are_not_told_apart() -> None:
    one, other = (Hunt(Known(10.0, luck=0.4), SEEDS) for _ in range(2))
    other.look(100, 5)  # other guesses on the way change nothing
    found = [hunt.look(200, 10) for hunt in (one, other)]
    assert found[0] == found[1]
    versus = one.against(other)
    assert versus is not None
    assert (versus.ratio, versus.interval, versus.shown) == (1.0, (1.0, 1.0), False)


def test_servers_are_compared_on_the_largest_crowds_that_both_have_met() -> None:
    one, other = Hunt(Known(10.0), SEEDS), Hunt(Known(10.0), SEEDS)
    assert one.against(other) is None
    for hunt, sizes in ((one, (100, 200, 400)), (other, (100, 200))):
        for size in sizes:
            hunt.look(size, 10)
    found = one.against(other)
    assert found is not None and found.requests == 200
