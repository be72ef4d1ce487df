"""What many measured values say: percentiles by nearest rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """How `n` values in seconds lie; None where there are none."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


def nearest_rank(ranked: Sequence[float], q: float) -> float:
    """The value at rank ceil(q*n), counted from 1, of sorted values. Raises ValueError for no values or q outside
    (0, 1]."""
    if not ranked or not 0 < q <= 1:
        raise ValueError(f"no {q:g} quantile of {len(ranked)} values")
    return ranked[math.ceil(q * len(ranked)) - 1]


def median(values: Sequence[float]) -> float | None:
    """The typical value: nearest rank at one half; None of no values."""
    return nearest_rank(sorted(values), 0.5) if values else None


def spread(values: Sequence[float]) -> Spread:
    """Count, nearest-rank percentiles and maximum of the values."""
    if not values:
        return Spread(0, None, None, None, None)
    ranked = sorted(values)
    p50, p95, p99 = (nearest_rank(ranked, q) for q in (0.5, 0.95, 0.99))
    return Spread(len(ranked), p50, p95, p99, ranked[-1])
