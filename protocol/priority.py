"""How a process gets to run when it must: timers that do not slip, a turn before those who compute, cores awake."""

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from protocol.clock import MS

SHORT_TURN = MS // 10
# A request that leaves late cannot be mended; but the router does not wait for a client that spins until one is due.
SPIN_RANK, ROUTER_RANK, CLIENT_RANK = 1, 2, 3
LONGEST_WAKE_UP = Path("/dev/cpu_dma_latency")


def tighten_timers() -> None:
    """Ask Linux to wake this process on time: its default lets timers slip by 50 microseconds."""
    if sys.platform == "linux":
        pr_set_timerslack = 29
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1, 0, 0, 0)


@contextlib.contextmanager
def spinning(scheduling: str) -> Iterator[None]:
    """While this lasts, a client that runs first by `scheduling` runs after the router: it has no work but to wait."""
    if scheduling != "real-time":
        yield
        return
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(SPIN_RANK))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(CLIENT_RANK))


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


def stay_on_one_core() -> None:
    """Keep this process, and the threads it starts from now on, on the last core it may use, where Linux offers that.

    For a process with priority whose threads hand each other every message: on one core that is a switch, between two
    it wakes the other core up, and twice as many messages pass.
    """
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@contextlib.contextmanager
def on_the_wire(rank: int) -> Iterator[None]:
    """Threads that start while this lasts run first, at this rank, on the core of `stay_on_one_core`, where that is
    allowed; the calling thread is afterwards as it was before.

    For the threads that carry a process's messages to and from the router: where all of them share its core, no other
    core has to be woken to pass a message on. A round trip takes a sixth less.
    """
    if sys.platform != "linux":
        yield
        return
    before, cores = (os.sched_getscheduler(0), os.sched_getparam(0)), os.sched_getaffinity(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(rank))
    except PermissionError:
        yield
        return
    stay_on_one_core()
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)
        os.sched_setaffinity(0, cores)


def stay_in_memory() -> bool:
    """Ask that what this process has in memory now is kept there, its code too; whether that was granted (root, or a
    limit on memlock). What a process that mostly waits has not touched for seconds may be gone, and takes milliseconds
    to fetch."""
    if sys.platform != "linux":
        return False
    current_pages = 1
    return int(ctypes.CDLL(None).mlockall(current_pages)) == 0


@contextlib.contextmanager
def cores_awake() -> Iterator[bool]:
    """While this lasts, idle cores spin instead of falling asleep; whether that could be had (Linux, root).

    Waking a core takes longer than passing a message on. Cores that compute do not notice.
    """
    try:
        promise = os.open(LONGEST_WAKE_UP, os.O_WRONLY)
    except OSError:
        yield False
        return
    try:
        os.write(promise, bytes(4))  # microseconds
        yield True
    finally:
        os.close(promise)
