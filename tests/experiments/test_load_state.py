"""Whether a queue grew: the study's servers at rates below and above what they can do, in virtual time."""

from dataclasses import replace

import pytest

from clients.arrivals import all_at_once, poisson
from experiments.analysis import CellRecords
from experiments.cell import QUEUE
from experiments.load_state import NOT_DETERMINED, OVERLOADED, STABLE, load_state, turned_away
from protocol.clock import SECOND
from protocol.records import QueueRecord, RequestRecord, RouterRecord
from tests.virtual import VirtualRush

SEEDS = (12, 13, 14, 15)


def served(
    spec: str, rate: float | None, seed: int = 12, requests: int = 40, timeout: float | None = None, queue: int = QUEUE
) -> CellRecords:
    arrivals = all_at_once(requests) if rate is None else poisson(requests, rate, seed)
    rush = VirtualRush(spec, arrivals, timeout=timeout, queue=queue)
    rush.run()
    return rush.cell


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spec", "rate", "state"),
    [
        ("one", 0.5, STABLE),
        ("one", 2, OVERLOADED),
        ("one", 4, OVERLOADED),
        ("static", 1, STABLE),
        ("static", 2, STABLE),
        ("continuous", 1, STABLE),
        ("continuous", 2, STABLE),
        ("continuous", 4, NOT_DETERMINED),
    ],
)
def test_the_studys_servers(spec: str, rate: float, state: str, seed: int) -> None:
    """One reply alone takes 0.93 s. Continuous at 4/s still fills its seats when the last request comes."""
    assert load_state(served(spec, rate, seed)) == state


def test_static_cannot_keep_up_at_the_highest_rate() -> None:
    """Eight replies in 2.6 s are 3.1 a second."""
    assert [load_state(served("static", 4, seed)) for seed in SEEDS] == [*[OVERLOADED] * 3, NOT_DETERMINED]


def test_a_longer_run_tells_what_a_short_one_cannot() -> None:
    assert load_state(served("static", 4, requests=120)) == OVERLOADED
    assert load_state(served("static", 8, requests=120)) == OVERLOADED


def test_no_trend_can_be_seen_in_few_requests_or_all_at_once() -> None:
    assert load_state(served("one", 4, requests=19)) == NOT_DETERMINED
    assert load_state(served("one", None)) == NOT_DETERMINED
    assert load_state(CellRecords()) == NOT_DETERMINED


def test_a_queue_that_people_leave_is_overloaded_although_it_stays_short() -> None:
    cell = served("one", 4, timeout=2.0)
    assert turned_away(cell) > 20
    assert load_state(cell) == OVERLOADED


def test_a_queue_that_cannot_grow_any_more_is_overloaded_although_few_are_rejected() -> None:
    """With its reading a bus takes 3.5 s, and 2.3 a second can be served: a queue of 30 is full in the end."""
    cell = served("static", 2.5, requests=500, queue=30)
    assert 0 < turned_away(cell) < 50
    assert load_state(cell) == OVERLOADED


def rejected(id: int) -> RequestRecord:
    return RequestRecord("cell", id, received=id * SECOND, ended=id * SECOND, end="rejected")


def test_who_is_rejected_counts_where_the_queue_was_full() -> None:
    """A prompt too long for the model is no sign of load."""
    router = RouterRecord("cell", "one", {}, 4, None, 1, "run", {})
    passed = [
        RequestRecord("cell", id, received=id * SECOND, admitted=id * SECOND, ended=id * SECOND + 1, end="completed")
        for id in range(27)
    ]
    full = CellRecords(router, QueueRecord("cell", 9, 4, 0, None), requests=[*passed, *map(rejected, range(27, 31))])
    assert (turned_away(full), load_state(full)) == (4, OVERLOADED)
    roomy = replace(full, queue=QueueRecord("cell", 9, 3, 0, None))
    assert (turned_away(roomy), load_state(roomy)) == (0, STABLE)
