"""The practice functions give the study's figures, and what the product measures of the same crowd in virtual time."""

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.arrivals import poisson
from experiments.analysis import CellSummary, by_cell
from experiments.practice import Queue, batch_speed, buses, load_test, one_at_a_time, typical
from experiments.reference import SWEEP, TYPICAL
from protocol.records import RequestRecord
from tests.virtual import CELL, STUDY_PROFILE, STUDY_PROMPT, STUDY_TOKENS, VirtualRush
from worker.profile import load_profile

PROFILE = load_profile(STUDY_PROFILE)
READ, STEP = 0.12, 0.81 / 128
REPLY = READ + 128 * STEP
PER_REPLY = {1: 138, 2: 114, 4: 60, 8: 37, 16: 22, 32: 15, 64: 7}

rates, seeds, sizes = st.floats(0.5, 8), st.integers(0, 10_000), st.integers(1, 24)


def study_arrivals(rate: float) -> list[float]:
    draw = random.Random(12)
    return [*accumulate(draw.expovariate(rate) for _ in range(40))]


def batch_s(replies: int, tokens: int = STUDY_TOKENS) -> float:
    return PROFILE.read_s(replies, STUDY_PROMPT) + tokens * PROFILE.decode_s(replies, STUDY_PROMPT)


def virtual(spec: str, arrivals: tuple[int, ...], tokens: int) -> tuple[CellSummary, list[RequestRecord]]:
    """The product's own run: its figures, and its requests in order of arrival."""
    rush = VirtualRush(spec, arrivals, max_tokens=tokens)
    return rush.run(), by_cell(rush.records)[CELL].requests


def in_seconds(requests: list[RequestRecord], stamp: str) -> list[float]:
    return [getattr(request, stamp) / 1e9 for request in requests]


# --- the batch ---


@pytest.mark.parametrize("replies", SWEEP)
def test_the_studys_sweep(replies: int) -> None:
    """Within 1 %: its seconds are rounded, and a few of its replies were shorter than 128 tokens."""
    speed = batch_speed(replies, 128, SWEEP[replies].done_s)
    assert speed.total == pytest.approx(SWEEP[replies].tokens_per_s, rel=0.01)
    assert speed.per_reply == pytest.approx(PER_REPLY[replies], abs=1)


@pytest.mark.parametrize("wrong", [(0, 128, 1.0), (1, 0, 1.0), (1, 128, 0.0), (1, 128, float("nan"))])
def test_nothing_written_has_no_speed(wrong: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="have no speed"):
        batch_speed(*wrong)


# --- the load test ---


def test_the_typical_value_is_one_of_the_values() -> None:
    assert typical([4, 1, 3, 2]) == 2
    assert typical([5, 1, 3]) == 3
    with pytest.raises(ValueError, match="the median of no values"):
        typical([])


def test_the_columns_of_a_load_test_need_not_add_up() -> None:
    """First words after 1, 2 and 6 s, writing for 9, 1 and 2 s, whole replies in 10, 3 and 8 s."""
    told = load_test([0, 1, 2], [1, 3, 8], [10, 4, 10])
    assert (told.first_word, told.writing, told.whole_reply) == (2, 2, 8)
    assert (told.longest_wait, told.all_done) == (6, 10)


def test_what_is_no_load_test() -> None:
    for columns in (([], [], []), ([0], [1], []), ([1], [0], [2]), ([0], [2], [1]), ([0], [float("nan")], [1])):
        with pytest.raises(ValueError, match=r"argument 3|no values|out of order"):
            load_test(*columns)


@settings(max_examples=25)
@given(st.sampled_from(["one", "static", "continuous:seats=6"]), rates, seeds, sizes)
def test_a_load_test_is_what_the_product_says(spec: str, rate: float, seed: int, requests: int) -> None:
    cell, served = virtual(spec, poisson(requests, rate, seed), 16)
    told = load_test(*[in_seconds(served, stamp) for stamp in ("intended", "first_received", "last_received")])
    assert told.first_word == pytest.approx(cell.ttft.p50)
    assert told.longest_wait == pytest.approx(cell.ttft.max)
    assert told.writing == pytest.approx(cell.writing.p50)
    assert told.whole_reply == pytest.approx(cell.reply.p50)
    assert told.all_done == pytest.approx(cell.done_s)


# --- one at a time ---


def test_a_queue_by_hand() -> None:
    """The second waits for the first, the third finds nobody."""
    queue = one_at_a_time([1, 2, 9], [3, 2, 1], to_first_word=0.5)
    assert queue == Queue(waits=(0, 2, 0), starts=(1, 4, 9), first_words=(1.5, 4.5, 9.5), last_words=(4, 6, 10))


def test_the_studys_queue_at_four_per_second() -> None:
    arrivals = study_arrivals(4)
    queue = one_at_a_time(arrivals, [REPLY] * 40, READ + STEP)
    told = load_test(arrivals, queue.first_words, queue.last_words)
    assert told.first_word == pytest.approx(14.03, abs=0.005)
    assert told.all_done == pytest.approx(37.4, abs=0.05)
    assert told.first_word == pytest.approx(TYPICAL["one"].ttft, rel=0.02)
    assert told.longest_wait == pytest.approx(TYPICAL["one"].longest, rel=0.02)
    assert told.writing == pytest.approx(TYPICAL["one"].writing, rel=0.02)
    assert told.whole_reply == pytest.approx(TYPICAL["one"].reply, rel=0.02)
    assert told.all_done == pytest.approx(TYPICAL["one"].done, rel=0.02)


@pytest.mark.parametrize(
    ("arrivals", "services", "to_first_word"),
    [([1, 0], [1, 1], 0), ([-1], [1], 0), ([0, 1], [1], 0), ([0], [1], 2), ([0], [-1], 0), ([0], [1], -1)],
)
def test_what_is_no_queue(arrivals: list[float], services: list[float], to_first_word: float) -> None:
    with pytest.raises(ValueError, match=r"in order|argument 2|outside the service"):
        one_at_a_time(arrivals, services, to_first_word)


@settings(max_examples=25)
@given(rates, seeds, sizes, st.integers(1, 16))
def test_the_queue_is_the_products(rate: float, seed: int, requests: int, tokens: int) -> None:
    _, served = virtual("one", poisson(requests, rate, seed), tokens)
    queue = one_at_a_time(in_seconds(served, "intended"), [batch_s(1, tokens)] * requests, READ + STEP)
    assert queue.starts == pytest.approx(in_seconds(served, "admitted"), abs=1e-6)
    assert queue.first_words == pytest.approx(in_seconds(served, "first_received"), abs=1e-6)
    assert queue.last_words == pytest.approx(in_seconds(served, "last_received"), abs=1e-6)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10))))
def test_the_waits_follow_lindley(requests: list[tuple[float, float]]) -> None:
    gaps, services = [gap for gap, _ in requests], [service for _, service in requests]
    waits, wait = [], 0.0
    for gap, before in zip(gaps, [0.0, *services], strict=False):
        wait = max(0.0, wait + before - gap)
        waits.append(wait)
    assert one_at_a_time([*accumulate(gaps)], services).waits == pytest.approx(waits, abs=1e-9)


# --- the static bus ---


def test_buses_by_hand() -> None:
    """A tour takes 10 s. The first bus waits 2 s for its oldest, the second leaves full, the third as it is back."""
    left = buses([0, 1, 2, 15, 15, 16, 16, 17], lambda aboard: 10, n=3, wait=2)
    assert [(bus.leaves, bus.back, bus.aboard) for bus in left] == [(2, 12, 3), (16, 26, 3), (26, 36, 2)]


def test_the_studys_buses() -> None:
    left = buses(study_arrivals(4), batch_s)
    assert [bus.aboard for bus in left] == [2, 7, 8, 8, 8, 7]
    assert left[-1].back == pytest.approx(18.6, abs=0.05)
    assert left[-1].back == pytest.approx(TYPICAL["static"].done, rel=0.06)


@pytest.mark.parametrize("wrong", [([1.0, 0.0], 8, 0.5), ([0.0], 0, 0.5), ([0.0], 8, -1), ([0.0], 8, float("nan"))])
def test_what_is_no_bus(wrong: tuple[list[float], int, float]) -> None:
    arrivals, n, wait = wrong
    with pytest.raises(ValueError, match=r"in order|no bus has"):
        buses(arrivals, batch_s, n, wait)


@settings(max_examples=25)
@given(rates, seeds, sizes, st.integers(1, 8), st.floats(0, 2))
def test_the_buses_are_the_products(rate: float, seed: int, requests: int, n: int, wait: float) -> None:
    cell, served = virtual(f"static:n={n},wait={wait!r}", poisson(requests, rate, seed), 16)
    left = buses(in_seconds(served, "intended"), lambda aboard: batch_s(aboard, 16), n, wait)
    assert [bus.aboard for bus in left] == cell.departures
    leaves = [bus.leaves for bus in left for _ in range(bus.aboard)]
    assert leaves == pytest.approx(in_seconds(served, "admitted"), abs=1e-6)
    assert left[-1].back == pytest.approx(cell.done_s, abs=1e-6)
