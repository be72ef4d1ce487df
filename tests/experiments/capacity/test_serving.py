"""What the twin makes of rates, against queues whose waits are known by arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.capacity.plan import CapacitySettings
from experiments.capacity.search import STEP, Effort, Hunt
from experiments.capacity.serving import Crowds, Served, holds
from experiments.objectives import outcome, parse_objective
from experiments.plan import arrivals
from experiments.statistics import nearest_rank
from experiments.twin.cells import SimulatedServer
from worker.options import Server
from worker.profile import CostProfile, DecodePoint, ReadCost

SETTINGS = CapacitySettings(
    Server(engine="paced"), (), (), (), None, "poisson", 10, "emails", None, tuple(range(12, 22)), 4096, None
)
SERVICE_S = 0.1
# A step takes 10 ms, however many write: ten tokens are a service of 0.1 s.
FLAT = SimulatedServer(CostProfile("flat", "", (DecodePoint(1, 0, 0.01), DecodePoint(64, 0, 0.01)), ReadCost(0, 0, 0)))


def served(policy: str, *objectives: str, kind: str = "poisson") -> Served:
    cell = replace(SETTINGS.cell(), arrivals=kind)
    return Served(policy, FLAT, [parse_objective(each) for each in objectives], Crowds(cell))


def replies(rate: float, requests: int, seed: int) -> list[float]:
    """Whole replies one at a time, by Lindley's recursion."""
    times = np.array(arrivals(replace(SETTINGS.cell(), rate=rate, requests=requests, seed=seed))) / 1e9
    waits = [0.0]
    for before, after in pairwise(times):
        waits.append(max(0.0, waits[-1] + SERVICE_S - (after - before)))
    return [wait + SERVICE_S for wait in waits]


def highest_by_lindley(limit_s: float, requests: int, seed: int) -> float:
    """The highest rate at which p95 of the whole reply is below the limit, to a thousandth."""
    low, high = 0.01 / SERVICE_S, 1 / SERVICE_S
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        p95 = nearest_rank(sorted(replies(middle, requests, seed)), 0.95)
        low, high = (middle, high) if p95 < limit_s else (low, middle)
    return low


@pytest.mark.parametrize("seed", [12, 13, 14])
def test_one_at_a_time_serves_as_many_as_lindley_says(seed: int) -> None:
    """With constant service this is M/D/1."""
    found = Hunt(served("one", "reply.p95<300ms"), [seed]).look(1_000, 1)
    truth = highest_by_lindley(0.3, 1_000, seed)
    assert found.rates[0] == pytest.approx(truth, rel=0.0115)
    assert 4 < truth < 9


def test_the_interval_holds_what_a_million_requests_say() -> None:
    """The long run is Lindley's recursion as a running minimum, of arrivals that the search never saw."""
    gaps = np.random.default_rng(5).exponential(size=1_000_000)

    def p95(rate: float) -> float:
        walk = np.concatenate(([0.0], np.cumsum(SERVICE_S - gaps / rate)))
        return float(np.quantile(walk - np.minimum.accumulate(walk), 0.95)) + SERVICE_S

    low, high = 1.0, 10.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if p95(middle) < 0.3 else (low, middle)
    found = Hunt(served("one", "reply.p95<300ms"), range(12, 22)).settled(Effort(within=0.1))
    assert found.estimate is not None and found.estimate.interval is not None
    assert found.estimate.interval[0] < low < found.estimate.interval[1]


def test_even_arrivals_do_not_wait_until_nothing_more_can_be_done() -> None:
    """D/D/1: every reply takes the service alone, up to the rate that is its inverse."""
    found = Hunt(served("one", "reply.p99<101ms", kind="constant"), [12]).look(500, 1)
    assert found.bounded
    assert 10 / STEP < found.rates[0] <= 10


@pytest.mark.parametrize("seed", [12, 13])
def test_more_seats_never_serve_fewer_where_steps_cost_the_same(seed: int) -> None:
    """Whoever is admitted sooner ends sooner, and nobody is slowed down by that."""
    rates = [
        Hunt(served(f"continuous:seats={seats}", "reply.p95<300ms"), [seed]).look(500, 1).rates[0]
        for seats in (1, 2, 4, 8)
    ]
    assert rates == sorted(rates)
    assert rates[-1] > 3 * rates[0]


def test_the_most_is_seats_over_service() -> None:
    assert served("continuous:seats=4").most(4_000, 12) == pytest.approx(4 / SERVICE_S, rel=0.01)


def test_whatever_holds_when_nothing_more_gets_done_is_no_capacity() -> None:
    """Time per token is the same at any load: without the bound any rate would do on a sample that is short enough."""
    trial = served("one", "tpot.p99<20ms")
    assert trial.meets(1_000.0, 30, 12)  # too few requests to see that the queue grows
    assert Hunt(trial, [12]).look(30, 1).rates[0] <= 10


def test_requests_apart_meet_nobody() -> None:
    figures = served("continuous:seats=8", "reply.p99<1s").alone(12)
    assert figures.reply.max == pytest.approx(SERVICE_S)
    assert (figures.peak_seats, figures.load_state) == (1, "stable")


def test_a_crowd_at_a_rate_is_that_of_a_rush_at_this_rate() -> None:
    cell = SETTINGS.cell()
    ours = Crowds(cell).at(3.7, 200, 15).times
    theirs = arrivals(replace(cell, rate=3.7, requests=200, seed=15))
    assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) <= 2


@given(st.lists(st.floats(0, 10), min_size=1, max_size=400), st.sampled_from(["p50", "p95", "p99"]))
def test_an_objective_holds_where_the_percentile_is_below_the_limit(values: Sequence[float], percentile: str) -> None:
    found = outcome(parse_objective(f"reply.{percentile}<3s"), values)
    assert holds(found) == (nearest_rank(sorted(values), int(percentile[1:]) / 100) < 3)
