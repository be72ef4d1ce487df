"""The clock: waits never end early, and the truth about another clock lies within the bound that is stated."""

import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import clock
from protocol.clock import MS, SECOND, Offset, ceil_ms, estimate_offset, now, sleep_until, spin_before, wake_lag

pytestmark = pytest.mark.alone

durations = st.integers(-(10**12), 10**15)
delays = st.integers(0, 10**9)
offsets = st.integers(-(10**15), 10**15)


@pytest.mark.parametrize(
    ("duration_ns", "ms"),
    [(0, 0), (1, 1), (900_000, 1), (MS, 1), (MS + 1, 2), (SECOND, 1_000), (-1, 0), (-SECOND, 0)],
)
def test_ceil_ms(duration_ns: int, ms: int) -> None:
    assert ceil_ms(duration_ns) == ms


@given(durations)
def test_ceil_ms_is_the_shortest_wait_that_is_long_enough(duration_ns: int) -> None:
    ms = ceil_ms(duration_ns)
    assert ms * MS >= duration_ns
    assert ms == 0 or (ms - 1) * MS < duration_ns


@given(st.integers(-(10**15), 10**15))
def test_microseconds_survive_seconds(microseconds: int) -> None:
    time_ns = microseconds * 1_000
    assert abs(clock.nanoseconds(clock.seconds(time_ns)) - time_ns) < 1_000


# --- waiting ---


class FakeTime:
    """A clock that only sleeping moves, each sleep later than asked by the next of `lags`."""

    def __init__(self, lags: Sequence[int]) -> None:
        self.at, self.lags = 0, iter(lags)

    def now(self) -> int:
        return self.at

    def sleep(self, duration_s: float) -> None:
        self.at += round(duration_s * SECOND) + next(self.lags)

    def replace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clock, "now", self.now)
        monkeypatch.setattr(clock, "time", SimpleNamespace(sleep=self.sleep))


@pytest.mark.parametrize(
    ("lags", "p99"),
    [
        ([1_000] * 200, 1_000),
        ([1_000] * 197 + [10_000] + [90_000] * 2, 10_000),
        ([90_000] * 2 + [1_000] * 198, 1_000),
        ([-1_000] * 200, 0),
    ],
    ids=["steady", "p99-is-the-third-largest", "two-outliers", "never-negative"],
)
def test_the_wake_lag_is_the_p99_of_sleeps(monkeypatch: pytest.MonkeyPatch, lags: Sequence[int], p99: int) -> None:
    FakeTime(lags).replace(monkeypatch)
    assert wake_lag() == p99


@pytest.mark.parametrize(
    ("lag", "scheduling", "spin"),
    [
        (0, "default", 0),
        (0, "real-time", 500_000),
        (100_000, "short turns", 150_000),
        (300_000, "short turns", 200_000),
        (300_000, "real-time", 500_000),
        (10 * MS, "real-time", MS // 2),
    ],
)
def test_who_may_not_run_first_spins_less(lag: int, scheduling: str, spin: int) -> None:
    assert spin_before(lag, scheduling) == spin


@pytest.mark.parametrize("wait_ns", [1, 50_000, 3 * MS])
def test_sleep_until_is_never_early(wait_ns: int) -> None:
    due = now() + wait_ns
    sleep_until(due)
    assert now() >= due


def test_sleep_until_goes_on_after_waking_early(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime([-900_000, -50_000, 0])
    fake.replace(monkeypatch)
    sleep_until(MS)
    assert fake.at == MS


def test_sleep_until_a_past_time_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTime([]).replace(monkeypatch)
    sleep_until(0)
    sleep_until(-SECOND)


def run_alone(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30).stdout


def test_quiet_collector_ends_collection() -> None:
    code = (
        "import gc; from protocol.clock import quiet_collector; print(gc.isenabled(), gc.get_freeze_count() > 0);"
        "quiet_collector(); print(gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    assert run_alone(code).splitlines() == ["True False", "False True"]


# --- two clocks ---


def exchange(sent: int, there: int, back: int, offset: int) -> tuple[int, int, int]:
    """A ping sent at `sent`, answered after `there` by a clock that is `offset` ahead, and received `back` later."""
    return sent, sent + there + offset, sent + there + back


@given(offsets, st.lists(st.tuples(st.integers(0, 10**15), delays, delays), min_size=1, max_size=30))
def test_the_truth_is_within_the_bound(true_offset: int, trips: list[tuple[int, int, int]]) -> None:
    found = estimate_offset(exchange(*trip, true_offset) for trip in trips)
    assert found is not None
    assert abs(found.offset - true_offset) <= found.bound


@given(st.lists(st.tuples(delays, delays), min_size=1, max_size=30), offsets)
def test_the_smallest_round_trip_sets_the_bound(trips: list[tuple[int, int]], true_offset: int) -> None:
    found = estimate_offset([exchange(0, there, back, true_offset) for there, back in trips])
    assert found is not None
    assert found.bound == (min(there + back for there, back in trips) + 1) // 2


def test_a_quick_exchange_beats_slow_ones() -> None:
    slow, quick = exchange(0, 9 * MS, MS, 7 * MS), exchange(50 * MS, 1_000, 1_000, 7 * MS)
    assert estimate_offset([slow, quick, slow]) == Offset(7 * MS, 1_000)


def test_no_exchange_no_offset() -> None:
    assert estimate_offset([]) is None


@pytest.mark.parametrize(
    ("offset", "ours"),
    [
        (Offset(0, 0), 1_000),
        (Offset(5, 5), 1_000),
        (Offset(-5, 5), 1_000),
        (Offset(6, 5), 994),
        (Offset(-6, 5), 1_006),
    ],
)
def test_a_peers_stamp_moves_only_when_the_clocks_differ_for_sure(offset: Offset, ours: int) -> None:
    assert offset.to_ours(1_000) == ours


@given(offsets, delays, delays, st.integers(0, 10**15))
def test_to_ours_errs_by_twice_the_bound_at_most(true_offset: int, there: int, back: int, at: int) -> None:
    found = estimate_offset([exchange(0, there, back, true_offset)])
    assert found is not None
    assert abs(found.to_ours(at + true_offset) - at) <= 2 * found.bound
