"""Whether a cell's queue grew as long as requests came: stable, overloaded, or not determined."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from experiments.analysis import CellRecords
from experiments.thresholds import THRESHOLDS, Thresholds
from protocol.records import RequestRecord

STABLE, OVERLOADED, NOT_DETERMINED = "stable", "overloaded", "not determined"
NEVER = np.iinfo(np.int64).min

Times = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Lives:
    """The requests that a router received, in order of receipt: nanoseconds on its clock, NEVER for what did not
    happen; whether they were rejected, and cancelled. `full` is how many its queue holds if it was full at some time,
    else 0."""

    received: Times
    admitted: Times
    ended: Times
    rejected: Flags
    cancelled: Flags
    full: int

    @property
    def left(self) -> Times:
        """When they stopped waiting."""
        return np.where(self.admitted == NEVER, self.ended, self.admitted)


def lives_of(cell: CellRecords) -> Lives:
    """Of the records of a cell."""
    came = sorted([r for r in cell.requests if r.received is not None], key=lambda r: r.received or 0)
    received, admitted, ended = (
        np.array([NEVER if (at := getattr(r, name)) is None else at for r in came], dtype=np.int64)
        for name in ("received", "admitted", "ended")
    )
    rejected, cancelled = (np.array([r.end == end for r in came], dtype=np.bool_) for end in ("rejected", "cancelled"))
    return Lives(received, admitted, ended, rejected, cancelled, full_queue(cell))


def full_queue(cell: CellRecords) -> int:
    """How many the queue holds if it was full at some time, else 0."""
    was_full = cell.router is not None and cell.queue is not None and cell.queue.longest >= cell.router.queue
    return cell.router.queue if was_full and cell.router is not None else 0


def load_state(cell: CellRecords, limits: Thresholds = THRESHOLDS) -> str:
    """Overloaded, if more than a tenth was turned away by a full queue or ran out of time in it; if a queue that was
    full stayed over half full while the last quarter of the requests came; or if the number in the system *rose
    steadily*, and when the last request came more were waiting than the server ever held at once, so that the next
    boarding could not take them. Stable, if that number did not rise, and no more than the server holds (or a tenth of
    all) were waiting at the end. Anything between is not determined, as are few requests, arrivals that are over before
    the first replies, and a server with free seats that still fills up.

    Counted is how many requests each one finds in the system when it comes. Their mean *rose*, if that of the last
    quarter of the requests is above the first's by more than a tenth of all requests; steadily, if every quarter's is
    above the one before. At `u` times its capacity a server falls behind by 1 - 1/u of a request with each that comes,
    so the means rise by 3/4 (1 - 1/u) of them all: a tenth at 1.15 times the capacity.
    """
    return state_of(lives_of(cell), limits)


def state_of(lives: Lives, limits: Thresholds = THRESHOLDS) -> str:
    """The same, of the requests alone."""
    count = len(lives.received)
    if count < limits.load_fewest:
        return NOT_DETERMINED
    few = limits.load_share * count
    if _turned_away(lives) > few:
        return OVERLOADED
    if lives.received[-1] - lives.received[0] < limits.load_services * _service_ns(lives):
        return NOT_DETERMINED
    means, backlog, held = _found_means(lives), _backlog(lives), _held(lives)
    if lives.full and means[-1] - held > lives.full / 2:
        return OVERLOADED
    rose = means[-1] - means[0] > few
    if rose and means == sorted(set(means)) and backlog > held:
        return OVERLOADED
    return STABLE if not rose and backlog <= max(held, few) else NOT_DETERMINED


def turned_away(cell: CellRecords) -> int:
    """How many requests were rejected while the queue was full, or whose time was over when they had waited longer
    than they were served."""
    return _turned_away(lives_of(cell))


def _turned_away(lives: Lives) -> int:
    left, known = lives.left, (lives.left != NEVER) & (lives.ended != NEVER)
    rejected = lives.rejected & (lives.admitted == NEVER)
    mostly_waited = lives.cancelled & known & (left - lives.received > lives.ended - left)
    return int(rejected.sum()) * bool(lives.full) + int(mostly_waited.sum())


def left_queue(request: RequestRecord) -> int | None:
    """When a request stopped waiting, on the router's clock."""
    return request.ended if request.admitted is None else request.admitted


def _service_ns(lives: Lives) -> float:
    served = (lives.admitted != NEVER) & (lives.ended != NEVER)
    return float(np.median((lives.ended - lives.admitted)[served])) if served.any() else 0.0


def _found_means(lives: Lives) -> list[float]:
    """How many were in the system as each one came: means of the four quarters."""
    ends = np.sort(lives.ended[lives.ended != NEVER])
    found = np.arange(len(lives.received)) - np.searchsorted(ends, lives.received, side="right")
    bounds = [len(found) * quarter // 4 for quarter in range(5)]
    return [int(found[begin:end].sum()) / (end - begin) for begin, end in pairwise(bounds)]


def _backlog(lives: Lives) -> int:
    """How many waited when the last one came, itself among them if it had to."""
    return int(((lives.left == NEVER) | (lives.left > lives.received[-1])).sum())


def _held(lives: Lives) -> int:
    """The most that were admitted and had not ended, at any time."""
    begins = lives.admitted[lives.admitted != NEVER]
    ends = lives.ended[(lives.admitted != NEVER) & (lives.ended != NEVER)]
    times, changes = np.concatenate((begins, ends)), np.repeat([1, -1], [len(begins), len(ends)])
    held = np.cumsum(changes[np.lexsort((changes, times))])
    return int(held.max(initial=0))
