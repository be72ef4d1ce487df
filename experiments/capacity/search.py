"""The highest rate at which a server meets what was promised: seed by seed, with as many requests as it takes. Pure."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from experiments.paired import mean_difference
from experiments.statistics import Interval

# Rates lie on one grid of 1 %, so that two servers which do the same have the same answer.
STEP = 1.01
REACH = 700  # steps from the top down to a thousandth of it
STRIDE, NEAR = 32, 2  # steps to look ahead, at first: from nowhere, and from a good guess

FOUND: Final = "found"
NONE: Final = "none"
NOT_DETERMINED: Final = "not determined"
State = Literal["found", "none", "not determined"]


class Trial(Protocol):
    """One server in front of crowds that differ in their seeds; rates are requests a second."""

    def most(self, requests: int, seed: int) -> float:
        """The replies a second that it gets done when all its requests wait: no higher rate can last."""

    def meets(self, rate: float, requests: int, seed: int) -> bool:
        """Whether this crowd is served as was promised."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Requests of a seed, at first and at most: they are doubled until the answer is sure `within` that share. Servers
    are told apart roughly by the first `rough_seeds` of all `seeds`."""

    fewest: int = 500
    most: int = 16_000
    rough_seeds: int = 5
    seeds: int = 10
    within: float = 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """The highest rate over several seeds, each with so many `requests`: the geometric mean of their `rates` and its
    95 % interval; None where a seed has no such rate. It is `bounded` where at most seeds the objectives still hold
    at the most that the server gets done."""

    requests: int
    rates: tuple[float, ...]
    rate: float | None
    interval: Interval | None
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the search for one server came to. A rate that is `not determined` is the last estimate; `reason` says why
    there is no better one."""

    state: State
    estimate: Estimate | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Versus:
    """The highest rate of one server over another's, on the same arrivals: the geometric mean over seeds and its 95 %
    interval, `shown` to differ where that leaves out 1."""

    requests: int
    ratio: float
    interval: Interval | None
    shown: bool


def rate_of(step: int) -> float:
    """The grid's rate, in requests a second."""
    return STEP**step


def step_below(rate: float) -> int:
    """The highest step that is not above this rate."""
    return math.floor(math.log(rate) / math.log(STEP) + 1e-9)


def highest(meets: Callable[[int], bool], top: int, guess: int | None = None) -> int | None:
    """The highest step up to `top` that meets, where all below it do and none above; None if none does in `REACH`.
    Each step is asked for once."""
    at, stride = (top, STRIDE) if guess is None else (min(guess, top), NEAR)
    around = _upwards(meets, at, top, stride) if meets(at) else _downwards(meets, at, top - REACH, stride)
    if around is None:
        return None
    low, high = around
    return low + bisect_left(range(low + 1, high), True, key=lambda step: not meets(step))


def _upwards(meets: Callable[[int], bool], low: int, top: int, stride: int) -> tuple[int, int]:
    """A step that meets, and a higher one that does not: above the top none does."""
    while low < top:
        ahead = min(low + stride, top)
        if not meets(ahead):
            return low, ahead
        low, stride = ahead, 2 * stride
    return low, top + 1


def _downwards(meets: Callable[[int], bool], high: int, bottom: int, stride: int) -> tuple[int, int] | None:
    """A step that does not meet, and a lower one that does; None if none above the bottom does."""
    while high > bottom:
        behind = max(high - stride, bottom)
        if meets(behind):
            return behind, high
        high, stride = behind, 2 * stride
    return None


@dataclass(slots=True)
class Hunt:
    """The search for one server's highest rate; what each seed came to is kept, by requests of a seed."""

    trial: Trial
    seeds: Sequence[int]
    _steps: dict[int, list[int | None]] = field(default_factory=dict)
    _tops: dict[int, list[int]] = field(default_factory=dict)

    def look(self, requests: int, seeds: int) -> Estimate:
        """Over the first so many seeds, with so many requests each."""
        steps, tops = self._steps.setdefault(requests, []), self._tops.setdefault(requests, [])
        for seed in self.seeds[len(steps) : seeds]:
            top = step_below(self.trial.most(requests, seed))
            steps.append(self._highest(requests, seed, top))
            tops.append(top)
        return _estimate(requests, steps, sum(map(_equal, steps, tops)) > len(steps) / 2)

    def _highest(self, requests: int, seed: int, top: int) -> int | None:
        def meets(step: int) -> bool:
            return self.trial.meets(rate_of(step), requests, seed)

        return highest(meets, top, self._guess(requests))

    def _guess(self, requests: int) -> int | None:
        """What this seed came to with half as many requests, or else the last one with as many."""
        here, before = self._steps[requests], self._steps.get(requests // 2, [])
        return before[len(here)] if len(here) < len(before) else here[-1] if here else None

    def settled(self, effort: Effort) -> Capacity:
        """The answer with as many requests as it takes, or why there is none."""
        before = self.look(effort.fewest, effort.seeds)
        while before.rate is not None:
            now = self.look(2 * before.requests, effort.seeds)
            unsure = doubt(before, now, effort.within)
            if unsure is None:
                return Capacity(FOUND, now)
            if 2 * now.requests > effort.most:
                size = f"with {now.requests:,} requests for each of {len(now.rates)} seeds"
                return Capacity(NOT_DETERMINED, now, f"{size} {unsure}")
            before = now
        return Capacity(NONE, None, "some crowds are not served as promised at any rate")

    def against(self, other: "Hunt") -> Versus | None:
        """This server's highest rate over the other's, at the largest crowds that both have met; None if there are
        none."""
        both = [n for n in {*self._steps} & {*other._steps} if None not in (*self._steps[n], *other._steps[n])]
        if not both:
            return None
        requests = max(both)
        pairs = zip(self._steps[requests], other._steps[requests], strict=False)
        ratio, interval = _mean([ours - theirs for ours, theirs in pairs])  # type: ignore[operator]
        return Versus(requests, ratio, interval, interval is not None and not interval[0] <= 1 <= interval[1])


def doubt(before: Estimate, now: Estimate, within: float) -> str | None:
    """Why an estimate is not good enough yet, beside the one with half as many requests; None if it is."""
    if now.rate is None or before.rate is None:
        return "some crowds are not served as promised at any rate"
    if now.interval is None:
        return "there are too few seeds for an interval"
    half, change = now.interval[1] / now.rate - 1, now.rate / before.rate - 1
    if half > within:
        return f"the interval is still ±{half:.0%}"
    return f"the rate still changes by {change:+.0%} from half as many" if abs(change) > within else None


def _estimate(requests: int, steps: Sequence[int | None], bounded: bool) -> Estimate:
    known = [step for step in steps if step is not None]
    rates = tuple(map(rate_of, known))
    if len(known) < len(steps):
        return Estimate(requests, rates, None, None)
    return Estimate(requests, rates, *_mean(known), bounded)


def _mean(steps: Sequence[int]) -> tuple[float, Interval | None]:
    """The geometric mean of what these steps stand for, and its interval."""
    found = mean_difference([step * math.log(STEP) for step in steps])
    interval = None if found.interval is None else (math.exp(found.interval[0]), math.exp(found.interval[1]))
    return math.exp(found.mean or 0.0), interval


def _equal(step: int | None, top: int) -> bool:
    return step == top
