"""The study's practice: what a learner computes by hand of a batch, a load test, a queue and a bus.

Plain numbers in and out: times in seconds from the start of the test, and counts. Nothing here reads a run.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.statistics import median


@dataclass(frozen=True, slots=True)
class BatchSpeed:
    """Tokens per second that a batch wrote, in total and per reply."""

    total: float
    per_reply: float


def batch_speed(replies: int, tokens_each: int, seconds: float) -> BatchSpeed:
    """Speed of `replies` that started together and had `tokens_each` tokens each after `seconds`, reading included.

    Raises ValueError for fewer than one reply or token, and for seconds that are not above 0.
    """
    if replies < 1 or tokens_each < 1 or not seconds > 0:
        raise ValueError(f"{replies} replies of {tokens_each} tokens in {seconds} s have no speed")
    total = replies * tokens_each / seconds
    return BatchSpeed(total, total / replies)


def typical(values: Sequence[float]) -> float:
    """The nearest-rank median: the value at rank ceil(n/2) of the sorted values, so always one of them.

    Raises ValueError for no values.
    """
    middle = median(values)
    if middle is None:
        raise ValueError("the median of no values")
    return middle


@dataclass(frozen=True, slots=True)
class LoadTest:
    """What a load test tells, in the columns of the study's table; seconds.

    `first_word`, `writing` and `whole_reply` are medians, each of its own column: they need not add up.
    `all_done` counts from time zero, not from the first arrival.
    """

    first_word: float
    longest_wait: float
    writing: float
    whole_reply: float
    all_done: float


def load_test(arrivals: Sequence[float], first_words: Sequence[float], last_words: Sequence[float]) -> LoadTest:
    """The typical request, from the times at which each one arrived and got its first and its last word.

    Raises ValueError for no requests, for columns of different lengths, and for a request out of order.
    """
    times = list(zip(arrivals, first_words, last_words, strict=True))
    for row in times:
        if not row[0] <= row[1] <= row[2]:
            raise ValueError(f"arrival, first word and last word are out of order: {row}")
    waits = [first - arrival for arrival, first, _ in times]
    return LoadTest(
        first_word=typical(waits),
        longest_wait=max(waits),
        writing=typical([last - first for _, first, last in times]),
        whole_reply=typical([last - arrival for arrival, _, last in times]),
        all_done=max(last_words),
    )


@dataclass(frozen=True, slots=True)
class Queue:
    """What became of each request, in order of arrival; seconds. `waits` are from arrival to start."""

    waits: tuple[float, ...]
    starts: tuple[float, ...]
    first_words: tuple[float, ...]
    last_words: tuple[float, ...]


def one_at_a_time(arrivals: Sequence[float], services: Sequence[float], to_first_word: float = 0.0) -> Queue:
    """The queue of a server that starts the next request when the last one has finished.

    `services` are the times that each request takes alone, and `to_first_word` the part of it before the first word.
    Lindley's recursion: a request waits as long as the one before it did, and for that one's service, less the gap
    between the two arrivals, and never less than nothing.
    Raises ValueError for arrivals out of order, columns of different lengths, and a service before its first word.
    """
    _check_order(arrivals)
    if not 0 <= to_first_word <= min(services, default=to_first_word):
        raise ValueError(f"a first word after {to_first_word} s lies outside the service")
    starts: list[float] = []
    free = 0.0
    for arrival, service in zip(arrivals, services, strict=True):
        starts.append(max(arrival, free))
        free = starts[-1] + service
    return Queue(
        waits=tuple([start - arrival for start, arrival in zip(starts, arrivals, strict=True)]),
        starts=tuple(starts),
        first_words=tuple([start + to_first_word for start in starts]),
        last_words=tuple([start + service for start, service in zip(starts, services, strict=True)]),
    )


@dataclass(frozen=True, slots=True)
class Bus:
    """One static batch: when it left and was back, in seconds, and how many were aboard."""

    leaves: float
    back: float
    aboard: int


def buses(arrivals: Sequence[float], batch_s: Callable[[int], float], n: int = 8, wait: float = 0.5) -> tuple[Bus, ...]:
    """The static batches of the study's server: a bus of `n` seats that leaves full, or when the oldest passenger has
    waited `wait` seconds, and not before it is back from the last tour.

    `batch_s` tells the seconds that a batch of so many takes. Who arrives at the moment it leaves is aboard.
    Raises ValueError for arrivals out of order, a bus without seats and a negative wait.
    """
    _check_order(arrivals)
    if n < 1 or not wait >= 0:
        raise ValueError(f"no bus has {n} seats and waits {wait} s")
    tours: list[Bus] = []
    served, back = 0, 0.0
    while served < len(arrivals):
        full = arrivals[served + n - 1] if served + n <= len(arrivals) else float("inf")
        leaves = max(back, min(full, arrivals[served] + wait))
        aboard = min(n, bisect_right(arrivals, leaves) - served)
        back = leaves + batch_s(aboard)
        tours.append(Bus(leaves, back, aboard))
        served += aboard
    return tuple(tours)


def _check_order(arrivals: Sequence[float]) -> None:
    if not all(before <= after for before, after in pairwise([0.0, *arrivals])):
        raise ValueError("arrivals are times from 0 on, in order")
