"""The one clock of every stamp, waiting that does not oversleep, and how far apart two processes' clocks are."""

import gc
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

now = time.monotonic_ns

MS = 1_000_000
SECOND = 1_000_000_000
# A process without priority that spins longer has used up its turn when it matters, and waits for those who compute.
# One with priority had better be awake for as long as reading a message takes: it reads none once it spins.
MIN_SPIN = {"real-time": MS // 2, "short turns": 0, "default": 0}
MAX_SPIN = {"real-time": MS // 2, "short turns": MS // 5, "default": MS // 5}


def ceil_ms(duration_ns: int) -> int:
    """A poll timeout that never ends before `duration_ns` is over: whole milliseconds, rounded up, at least 0."""
    return max(0, -(-duration_ns // MS))


def seconds(duration_ns: int) -> float:
    """Nanoseconds as seconds."""
    return duration_ns / SECOND


def nanoseconds(duration_s: float) -> int:
    """Seconds as nanoseconds, rounded to the nearest."""
    return round(duration_s * SECOND)


# --- waiting ---


def wake_lag(sleeps: int = 200) -> int:
    """By how many nanoseconds sleeps of 1 ms end late here and now, p99 by nearest rank; at least 0."""
    lags = []
    for _ in range(sleeps):
        due = now() + MS
        time.sleep(0.001)
        lags.append(now() - due)
    return max(0, sorted(lags)[math.ceil(0.99 * sleeps) - 1])


def spin_before(lag: int, scheduling: str) -> int:
    """Nanoseconds to spin before a due time, where sleeps end `lag` late: half as much again, within limits."""
    return min(MAX_SPIN[scheduling], max(MIN_SPIN[scheduling], lag * 3 // 2))


def sleep_until(due: int) -> None:
    """Sleep until `due`, without spinning; late by the machine's wake-up lag alone."""
    while (left := due - now()) > 0:
        time.sleep(left / SECOND)


def quiet_collector() -> None:
    """Collect what is garbage now and never again: for loops whose pauses would be measured."""
    gc.collect()
    gc.freeze()
    gc.disable()


# --- two clocks ---


@dataclass(frozen=True, slots=True)
class Offset:
    """A peer's clock minus ours, in nanoseconds: the truth lies within `offset` plus or minus `bound`."""

    offset: int
    bound: int

    def to_ours(self, peer_time: int) -> int:
        """A stamp of the peer on our clock. Within its bound, the peer's clock is taken to be the same as ours:
        the processes of one host share it, and a correction would only add the estimate's own error."""
        return peer_time if abs(self.offset) <= self.bound else peer_time - self.offset


def estimate_offset(exchanges: Iterable[tuple[int, int, int]]) -> Offset | None:
    """From exchanges `(sent, at, received)` (ours, the peer's, ours) by the one with the smallest round trip.

    The peer answered somewhere inside the round trip, so half of it bounds the error. None without exchanges.
    """
    best = min(exchanges, key=lambda exchange: exchange[2] - exchange[0], default=None)
    if best is None:
        return None
    sent, at, received = best
    return Offset(offset=at - (sent + received) // 2, bound=(received - sent + 1) // 2)
