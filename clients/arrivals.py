"""When requests come: the whole seeded schedule, made before the start and split between client processes."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

ARRIVALS = {
    "poisson": "random arrivals, independent of each other, at a mean rate",
    "constant": "one arrival after another at equal gaps",
    "at-once": "every request at time zero",
}

LONGEST_S = 366 * 86_400


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """How requests arrive: a name in `ARRIVALS`, requests per second ("at-once" has no rate), the seed of "poisson".

    Raises ValueError for an unknown kind or a rate that is not above 0 and finite.
    """

    kind: str
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ARRIVALS:
            raise ValueError(f"no arrivals called {self.kind!r}; there are {', '.join(ARRIVALS)}")
        if self.kind != "at-once":
            _checked_rate(self.rate)


def arrival_times(plan: ArrivalPlan, n: int) -> tuple[int, ...]:
    """The intended times of `n` requests, ascending, in nanoseconds from schedule zero; a time's index is the id.

    Raises ValueError for n < 1 and for a schedule longer than a year.
    """
    if plan.kind == "at-once":
        return all_at_once(n)
    rate = _checked_rate(plan.rate)
    return constant(n, rate) if plan.kind == "constant" else poisson(n, rate, plan.seed)


def poisson(n: int, rate: float, seed: int) -> tuple[int, ...]:
    """`n` arrivals in nanoseconds with exponential gaps of mean 1/`rate` seconds; the first gap counts.

    The generator is the reference study's, gap for gap. Raises ValueError as `arrival_times` does.
    """
    draw, rate = random.Random(seed), _checked_rate(rate)
    return _whole([*accumulate(draw.expovariate(rate) for _ in range(_checked_n(n)))])


def constant(n: int, rate: float) -> tuple[int, ...]:
    """`n` arrivals in nanoseconds, 1/`rate` seconds apart; the first gap counts, as in `poisson`.

    So every request is due when it is on average under `poisson`. Raises ValueError as `arrival_times` does.
    """
    rate = _checked_rate(rate)
    return _whole([i / rate for i in range(1, _checked_n(n) + 1)])


def all_at_once(n: int) -> tuple[int, ...]:
    """`n` arrivals at time zero. Raises ValueError for n < 1."""
    return (0,) * _checked_n(n)


def share(times: Sequence[int], index: int, of: int) -> tuple[tuple[int, int], ...]:
    """Client `index`'s part of a schedule that `of` clients send: every `of`-th request, as (id, time) pairs.

    A client gets nothing when there are more clients than requests. Raises ValueError unless 0 <= index < of.
    """
    if not 0 <= index < of:
        raise ValueError(f"a client's index is from 0 to {of - 1} when there are {of}, not {index}")
    return tuple((i, times[i]) for i in range(index, len(times), of))


def _checked_rate(rate: float | None) -> float:
    if rate is None or not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"a rate is a number of requests per second above 0, not {rate}")
    return rate


def _checked_n(n: int) -> int:
    if n < 1:
        raise ValueError(f"a schedule has at least 1 request, not {n}")
    return n


def _whole(seconds: list[float]) -> tuple[int, ...]:
    """Times as whole nanoseconds, rounded here and nowhere before, so that errors do not add up."""
    if not seconds[-1] <= LONGEST_S:
        raise ValueError(f"{len(seconds)} requests at this rate take {seconds[-1]:.3g} s, over a year")
    return tuple(round(s * 1e9) for s in seconds)
