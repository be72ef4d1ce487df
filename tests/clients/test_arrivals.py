"""The schedule is the study's, is random in the right way, and survives being split between client processes."""

import math
import random
from array import array
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.arrivals import ARRIVALS, ArrivalPlan, all_at_once, arrival_times, constant, poisson, share

CLIENTS = (1, 2, 5, 10)
RATE = 50.0


def merged(times: Sequence[int], clients: int) -> tuple[int, ...]:
    """What a server sees of `clients` processes that each send their share."""
    return tuple(sorted(time for index in range(clients) for _, time in share(times, index, clients)))


def ks_distance(gaps_s: Sequence[float], rate: float) -> float:
    """Kolmogorov-Smirnov: the largest distance between the gaps' distribution and Exp(rate)."""
    n = len(gaps_s)
    expected = [1 - math.exp(-rate * gap) for gap in sorted(gaps_s)]
    return max(max((i + 1) / n - p, p - i / n) for i, p in enumerate(expected))


def dispersion(times: Sequence[int], windows: int) -> float:
    """Variance over mean of the number of arrivals in `windows` equal windows."""
    width = times[-1] / windows
    counts = [0] * windows
    for time in times[:-1]:
        counts[min(windows - 1, int(time / width))] += 1
    mean = sum(counts) / windows
    return sum((count - mean) ** 2 for count in counts) / (windows - 1) / mean


def chi_squared(p: float, df: int) -> float:
    """The `p` quantile of chi-squared, by Wilson and Hilferty (within 0.1 % at 100 degrees of freedom and more)."""
    spread = 2 / (9 * df)
    return df * (1 - spread + NormalDist().inv_cdf(p) * math.sqrt(spread)) ** 3


def test_poisson_is_the_study() -> None:
    times = poisson(40, 4, 12)
    assert len(times) == 40
    assert round(times[-1] / 1e9, 3) == 8.647
    draw = random.Random(12)
    assert times[0] == round(draw.expovariate(4) * 1e9)


def test_rounding_is_once_at_the_end() -> None:
    draw, total = random.Random(7), 0.0
    for time in poisson(2_000, 30, 7):
        total += draw.expovariate(30)
        assert time == round(total * 1e9)


def test_constant_and_at_once() -> None:
    assert constant(4, 4) == (250_000_000, 500_000_000, 750_000_000, 1_000_000_000)
    assert constant(3, 3) == (333_333_333, 666_666_667, 1_000_000_000)
    assert all_at_once(3) == (0, 0, 0)


@pytest.mark.parametrize(
    ("plan", "times"),
    [
        (ArrivalPlan("poisson", 4, 12), poisson(40, 4, 12)),
        (ArrivalPlan("constant", 4, 12), constant(40, 4)),
        (ArrivalPlan("at-once"), all_at_once(40)),
    ],
)
def test_a_plan_names_its_schedule(plan: ArrivalPlan, times: tuple[int, ...]) -> None:
    assert arrival_times(plan, 40) == times
    assert plan.kind in ARRIVALS


def test_the_seed_decides() -> None:
    assert poisson(100, 4, 1) == poisson(100, 4, 1) != poisson(100, 4, 2)
    assert poisson(100, 4, 1) == poisson(200, 4, 1)[:100]


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_a_bad_rate_is_refused(kind: str, rate: float | None) -> None:
    with pytest.raises(ValueError, match=r"^a rate is a number of requests per second above 0, not \S+$"):
        ArrivalPlan(kind, rate)
    if rate is not None:
        with pytest.raises(ValueError, match="above 0"):
            poisson(3, rate, 1)
        with pytest.raises(ValueError, match="above 0"):
            constant(3, rate)


@pytest.mark.parametrize("n", [0, -3])
@pytest.mark.parametrize("kind", ARRIVALS)
def test_no_requests_are_refused(kind: str, n: int) -> None:
    with pytest.raises(ValueError, match=f"^a schedule has at least 1 request, not {n}$"):
        arrival_times(ArrivalPlan(kind, 1), n)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no arrivals called 'poison'; there are poisson, constant, at-once$"):
        ArrivalPlan("poison", 1)


@pytest.mark.parametrize("rate", [1e-9, 5e-324])
def test_a_schedule_of_years_is_refused(rate: float) -> None:
    for kind in ("poisson", "constant"):
        with pytest.raises(ValueError, match=r"over a year$"):
            arrival_times(ArrivalPlan(kind, rate), 3)


@pytest.mark.parametrize("clients", [1, 2, 8])
def test_the_union_is_identical_byte_for_byte(clients: int) -> None:
    times = poisson(1_001, RATE, 12)
    union = sorted(pair for index in range(clients) for pair in share(times, index, clients))
    assert [i for i, _ in union] == list(range(1_001))
    assert array("q", [time for _, time in union]).tobytes() == array("q", times).tobytes()


@given(st.lists(st.integers(0, 2**53), max_size=200), st.integers(1, 50))
def test_shares_partition_the_ids(times: list[int], of: int) -> None:
    shares = [share(times, index, of) for index in range(of)]
    assert sorted(pair for part in shares for pair in part) == list(enumerate(times))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(i % of == index for index, part in enumerate(shares) for i, _ in part)


@pytest.mark.parametrize(("index", "of"), [(2, 2), (-1, 2), (0, 0), (0, -1)])
def test_a_client_outside_the_crowd_is_refused(index: int, of: int) -> None:
    with pytest.raises(ValueError, match="a client's index is from 0 to"):
        share((1, 2), index, of)


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("seed", [1, 2, 12])
def test_merged_gaps_are_exponential(clients: int, seed: int) -> None:
    times = merged(poisson(5_000, RATE, seed), clients)
    gaps = [(after - before) / 1e9 for before, after in pairwise((0, *times))]
    assert ks_distance(gaps, RATE) < 1.628 / math.sqrt(5_000)  # critical value at 1 %


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("seed", [1, 2, 12])
def test_merged_counts_are_dispersed_like_poisson(clients: int, seed: int) -> None:
    windows = 500
    df = windows - 1
    index = dispersion(merged(poisson(5_000, RATE, seed), clients), windows)
    assert chi_squared(0.005, df) < index * df < chi_squared(0.995, df)


def test_clients_seeded_alike_would_be_caught() -> None:
    """The two tests above can fail: five processes with the same seed send in fives."""
    alike = tuple(sorted(poisson(1_000, RATE / 5, 12) * 5))
    gaps = [(after - before) / 1e9 for before, after in pairwise((0, *alike))]
    assert ks_distance(gaps, RATE) > 0.5
    assert dispersion(alike, 500) > 4
