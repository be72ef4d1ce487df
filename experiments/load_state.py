"""Whether a cell's queue grew as long as requests came: stable, overloaded, or not determined."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from experiments.analysis import CellRecords
from experiments.thresholds import THRESHOLDS, Thresholds
from protocol.records import RequestRecord

STABLE, OVERLOADED, NOT_DETERMINED = "stable", "overloaded", "not determined"


def load_state(cell: CellRecords, limits: Thresholds = THRESHOLDS) -> str:
    """Overloaded, if more than a tenth was turned away by a full queue or ran out of time in it; or if the number in
    the system *rose steadily*, and when the last request came more were waiting than the server ever held at once, so
    that the next boarding could not take them. Stable, if that number did not rise, and no more than the server holds
    (or a tenth of all) were waiting at the end. Anything between is not determined, as are few requests, arrivals that
    are over before the first replies, and a server with free seats that still fills up.

    Counted is how many requests each one finds in the system when it comes. Their mean *rose*, if that of the last
    quarter of the requests is above the first's by more than a tenth of all requests; steadily, if every quarter's is
    above the one before. At `u` times its capacity a server falls behind by 1 - 1/u of a request with each that comes,
    so the means rise by 3/4 (1 - 1/u) of them all: a tenth at 1.15 times the capacity.
    """
    came = sorted([r for r in cell.requests if r.received is not None], key=lambda r: r.received or 0)
    if len(came) < limits.load_fewest:
        return NOT_DETERMINED
    few = limits.load_share * len(came)
    if turned_away(cell) > few:
        return OVERLOADED
    if _arrivals_ns(came) < limits.load_services * _service_ns(came):
        return NOT_DETERMINED
    means, backlog, held = _found_means(came), _backlog(came), _held(came)
    rose = means[-1] - means[0] > few
    if rose and means == sorted(set(means)) and backlog > held:
        return OVERLOADED
    return STABLE if not rose and backlog <= max(held, few) else NOT_DETERMINED


def turned_away(cell: CellRecords) -> int:
    """How many requests were rejected while the queue was full, or whose time was over when they had waited longer
    than they were served."""
    full = cell.router is not None and cell.queue is not None and cell.queue.longest >= cell.router.queue
    rejected = sum(r.end == "rejected" and r.admitted is None and r.received is not None for r in cell.requests)
    return rejected * full + sum(r.end == "cancelled" and _mostly_waited(r) for r in cell.requests)


def _mostly_waited(request: RequestRecord) -> bool:
    left, received, ended = left_queue(request), request.received, request.ended
    return left is not None and received is not None and ended is not None and left - received > ended - left


def left_queue(request: RequestRecord) -> int | None:
    """When a request stopped waiting, on the router's clock."""
    return request.ended if request.admitted is None else request.admitted


def _arrivals_ns(came: Sequence[RequestRecord]) -> int:
    return (came[-1].received or 0) - (came[0].received or 0)


def _service_ns(came: Sequence[RequestRecord]) -> float:
    return median([r.ended - r.admitted for r in came if r.admitted is not None and r.ended is not None] or [0])


def _found_means(came: Sequence[RequestRecord]) -> list[float]:
    """How many were in the system as each one came: means of the four quarters."""
    ends = sorted(r.ended for r in came if r.ended is not None)
    found = [number - bisect_right(ends, r.received or 0) for number, r in enumerate(came)]
    bounds = [len(found) * quarter // 4 for quarter in range(5)]
    return [fmean(found[begin:end]) for begin, end in pairwise(bounds)]


def _backlog(came: Sequence[RequestRecord]) -> int:
    """How many waited when the last one came, itself among them if it had to."""
    last = came[-1].received or 0
    return sum((left := left_queue(r)) is None or left > last for r in came)


def _held(came: Sequence[RequestRecord]) -> int:
    """The most that were admitted and had not ended, at any time."""
    begins = [(r.admitted, 1) for r in came if r.admitted is not None]
    ends = [(r.ended, -1) for r in came if r.admitted is not None and r.ended is not None]
    held = most = 0
    for _, change in sorted(begins + ends):
        held += change
        most = max(most, held)
    return most
