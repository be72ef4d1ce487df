"""Before a request is due its client looks into no message, but all are read in the end, however dense the schedule."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clients.sender import QUIET, quiet_times
from protocol.clock import MS


def test_two_milliseconds_or_half_the_gap() -> None:
    assert quiet_times([10 * MS, 20 * MS, 21 * MS, 21 * MS]) == [8 * MS, 18 * MS, 20 * MS + MS // 2, 21 * MS]
    assert quiet_times([]) == []


@given(st.lists(st.integers(0, 10**9)).map(sorted))
def test_half_of_the_time_at_least_is_for_reading(dues: list[int]) -> None:
    quiet = quiet_times(dues)
    assert all(0 <= due - since <= QUIET for due, since in zip(dues, quiet, strict=True))
    assert all(
        since - before >= (due - before) // 2 for (before, due), since in zip(pairwise(dues), quiet[1:], strict=True)
    )
