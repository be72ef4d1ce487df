"""What many measured values say: percentiles by nearest rank, and how sure one can be of them."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95
OBJECTIVE_CONFIDENCE = 0.99
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

Interval = tuple[float, float]
State = Literal["met", "missed", "not determined"]


@dataclass(frozen=True, slots=True)
class Spread:
    """How `n` values in seconds lie; None where there are none. The intervals hold the true percentile with 95 %
    confidence; None where n is too small for one. `mean` is of all values."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    p50_interval: Interval | None = None
    p95_interval: Interval | None = None
    p99_interval: Interval | None = None
    mean: float | None = None


def nearest_rank(ranked: Sequence[float], q: float) -> float:
    """The value at rank ceil(q*n), counted from 1, of sorted values. Raises ValueError for no values or q outside
    (0, 1]."""
    if not ranked or not 0 < q <= 1:
        raise ValueError(f"no {q:g} quantile of {len(ranked)} values")
    return ranked[math.ceil(q * len(ranked)) - 1]


def rank_interval(ranked: Sequence[float], q: float, confidence: float = CONFIDENCE) -> Interval | None:
    """The values between which the q quantile of what was sampled lies with this confidence, from sorted values.

    How many of n values lie below the quantile is binomial (n, q), whatever their distribution; each end is the rank
    beyond which the count lies with at most half the remaining probability. None where no rank is that far out: p95
    needs 72 values, p99 368.
    """
    n, tail = len(ranked), (1 - confidence) / 2
    low, above = _binomial_rank(n, q, tail), _binomial_rank(n, q, 1 - tail)
    return (ranked[low - 1], ranked[above]) if low >= 1 and above < n else None


def overlap(one: Interval | None, other: Interval | None) -> bool | None:
    """Whether two intervals have a value in common; None where one of them is not known."""
    return None if one is None or other is None else one[0] <= other[1] and other[0] <= one[1]


def smallest_for_interval(q: float, confidence: float = CONFIDENCE) -> int:
    """The fewest values that have a rank interval for the q quantile; of fewer, all may well lie on one side of it."""
    tail = (1 - confidence) / 2
    return math.ceil(math.log(tail) / math.log(max(q, 1 - q)))


def samples_needed(q: float, misses: int, confidence: float = OBJECTIVE_CONFIDENCE) -> int:
    """The fewest samples with which so many misses still show that a share of q meets the limit.

    MLPerf's early stopping: the smallest n with P(X <= misses) <= 1 - confidence for X binomial (n, 1 - q). If more
    than 1 - q missed in the long run, so few misses would be that unlikely. At 99 %: p99 662 with one; p95 90 with
    none, 130 with one.
    """
    enough = misses + 1
    while not _enough(enough, q, misses, confidence):
        enough *= 2
    return bisect_left(range(enough), True, key=lambda n: _enough(n, q, misses, confidence))


def early_stop(n: int, misses: int, q: float, confidence: float = OBJECTIVE_CONFIDENCE) -> State:
    """What `misses` of `n` samples say of the q quantile: met where so few, missed where so many would be that
    unlikely if it were the other way round."""
    from scipy.special import bdtrc

    if n > 0 and _enough(n, q, misses, confidence):
        return "met"
    # bdtrc(k, ...) is the probability of more than k.
    return "missed" if misses > 0 and bdtrc(misses - 1, n, 1 - q) <= 1 - confidence else "not determined"


def median(values: Sequence[float]) -> float | None:
    """The typical value: nearest rank at one half; None of no values."""
    return nearest_rank(sorted(values), 0.5) if values else None


def spread(values: Sequence[float]) -> Spread:
    """Count, nearest-rank percentiles with their intervals, and maximum of the values."""
    return ranked_spread(sorted(values))


def ranked_spread(ranked: Sequence[float]) -> Spread:
    """That of sorted values."""
    if not ranked:
        return Spread(0, None, None, None, None)
    p50, p95, p99 = (nearest_rank(ranked, q) for q in PERCENTILES.values())
    around50, around95, around99 = (rank_interval(ranked, q) for q in PERCENTILES.values())
    mean = math.fsum(ranked) / len(ranked)
    return Spread(len(ranked), p50, p95, p99, ranked[-1], around50, around95, around99, mean)


def _binomial_rank(n: int, q: float, share: float) -> int:
    """The smallest k with P(X <= k) >= share for X binomial (n, q)."""
    from scipy.special import bdtr

    return bisect_left(range(n), share, key=lambda k: bdtr(k, n, q))


def _enough(n: int, q: float, misses: int, confidence: float) -> bool:
    from scipy.special import bdtr

    return misses < n and bool(bdtr(misses, n, 1 - q) <= 1 - confidence)
