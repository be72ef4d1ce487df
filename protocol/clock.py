"""The one clock of every stamp, waiting that does not oversleep, and how far apart two processes' clocks are."""

import ctypes
import gc
import math
import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

now = time.monotonic_ns

MS = 1_000_000
SECOND = 1_000_000_000
SHORT_TURN = MS // 10
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


def tighten_timers() -> None:
    """Ask Linux to wake this process on time: its default lets timers slip by 50 microseconds."""
    if sys.platform == "linux":
        pr_set_timerslack = 29
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1, 0, 0, 0)


class _SchedulerAttributes(ctypes.Structure):
    """`struct sched_attr` of Linux, in its first size."""

    _fields_ = (
        *(("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64)),
        *(("nice", ctypes.c_int32), ("priority", ctypes.c_uint32)),
        *(("runtime", ctypes.c_uint64), ("deadline", ctypes.c_uint64), ("period", ctypes.c_uint64)),
    )


def run_first(rank: int) -> str:
    """Ask that this process runs at once when it wakes, whatever computes meanwhile; how it is scheduled then.
    Among those that ask, a higher `rank` (from 1) comes first.

    "real-time" where that is allowed (root, or a limit on rtprio): for this it must sleep whenever it can. Else Linux
    6.12 or newer is asked for "short turns" of a tenth of a millisecond, which come before the long ones of those who
    compute, but may wait for the clock to tick. "default" where neither can be had.
    """
    if sys.platform != "linux":
        return "default"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(rank))
        return "real-time"
    except PermissionError:
        return "short turns" if _short_turns() else "default"


def _short_turns() -> bool:
    number = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
    if number is None:
        return False
    size, normal = ctypes.sizeof(_SchedulerAttributes), 0
    wanted = _SchedulerAttributes(size, normal, 0, os.nice(0), 0, SHORT_TURN, 0, 0)
    return int(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(wanted), 0)) == 0  # older kernels refuse, or ignore it


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
