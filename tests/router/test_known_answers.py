"""One at a time with a fixed service is a queue whose waits theory knows."""

import pytest

from clients.arrivals import poisson
from experiments.practice import one_at_a_time
from protocol.clock import seconds
from tests.virtual import VirtualRush
from worker.profile import CostProfile, DecodePoint, ReadCost

SERVICE_S = 0.02
FIXED = CostProfile("fixed", "a test", (DecodePoint(1, 0, SERVICE_S),), ReadCost(0.0, 0.0, 0.0))


def mean_wait(load: float, seed: int, requests: int = 5_000) -> float:
    """Seconds in the queue, on average, in virtual time."""
    rush = VirtualRush("one", poisson(requests, load / SERVICE_S, seed), FIXED, max_tokens=1)
    rush.run()
    waits = [r.admitted - r.received for r in rush.records if getattr(r, "admitted", None) is not None]
    assert len(waits) == requests
    return seconds(sum(waits)) / requests


@pytest.mark.parametrize("seed", [12, 13, 14])
def test_waits_are_those_of_m_d_1(seed: int) -> None:
    """load * service / (2 (1 - load)): at half load, half a service."""
    assert mean_wait(0.5, seed) == pytest.approx(0.5 * SERVICE_S / (2 * (1 - 0.5)), rel=0.10)


def test_waits_are_those_of_lindley_on_the_same_arrivals() -> None:
    arrivals = [seconds(at) for at in poisson(2_000, 0.8 / SERVICE_S, 12)]
    expected = one_at_a_time(arrivals, [SERVICE_S] * len(arrivals)).waits
    assert mean_wait(0.8, 12, 2_000) == pytest.approx(sum(expected) / len(expected), rel=1e-6)
