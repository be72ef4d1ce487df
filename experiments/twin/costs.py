"""What steps take by a cost profile: decode steps, one alone or many after another, and the chunks that are read."""

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from protocol.clock import SECOND, nanoseconds
from worker.paced import CONTEXT
from worker.profile import CostProfile, interpolate

Floats = np.ndarray[Any, np.dtype[np.float64]]
LONGER = 1_024


class Step(NamedTuple):
    """What one decode step takes, in seconds and in whole nanoseconds, and whether that was measured."""

    s: float
    ns: int
    measured: bool


class Chunk(NamedTuple):
    """What reading one chunk takes, and starting to decode, in seconds; and whether that was measured."""

    s: float
    measured: bool


# So many steps one after another: their number; nanoseconds of the first, of the longest of the others (0: there are
# none), and of all; how many lie outside what was measured.
Stretch = tuple[int, int, int, int, int]


@dataclass(slots=True)
class StepCosts(ABC):
    """The costs of `profile`, which may reach further than `measured` does; each is worked out once. Decode steps go by
    rows at once, and context of the longest row, which grows by one with every step."""

    by_context: ClassVar[bool]
    """Whether the context makes a difference."""

    profile: CostProfile
    measured: CostProfile
    chunk: Callable[[int, int, int], Chunk] = field(init=False)
    """Of so many prompts, of the longest of them so many tokens, where so many others start to decode."""

    def __post_init__(self) -> None:
        self.chunk = cache(self._chunk)

    def _chunk(self, prompts: int, longest: int, started: int) -> Chunk:
        s = self.profile.start_s(started) + self.profile.read_s(prompts, longest)
        return Chunk(s, self.measured.read.covers(prompts, longest))

    @abstractmethod
    def step(self, rows: int, context: int) -> Step: ...

    @abstractmethod
    def stretch(self, rows: int, context: int, most: int, until: int | None = None) -> Stretch:
        """As few steps as take `until` nanoseconds or more, at most `most`; without a time, `most`."""


def step_costs(profile: CostProfile, measured: CostProfile) -> StepCosts:
    contexts = {point.context for point in profile.decode}
    return FlatCosts(profile, measured) if len(contexts) == 1 else SlopedCosts(profile, measured)


@dataclass(slots=True)
class FlatCosts(StepCosts):
    """Where context makes no difference."""

    by_context: ClassVar[bool] = False
    _of_rows: Callable[[int], Step] = field(init=False)

    def __post_init__(self) -> None:
        StepCosts.__post_init__(self)
        self._of_rows = cache(self._step)

    def _step(self, rows: int) -> Step:
        cost = self.profile.decode_s(rows, 0)
        return Step(cost, nanoseconds(cost), self.measured.covers(rows, 0))

    def step(self, rows: int, context: int) -> Step:
        return self._of_rows(rows)

    def stretch(self, rows: int, context: int, most: int, until: int | None = None) -> Stretch:
        _, each, measured = self._of_rows(rows)
        if until is not None and until < most * each:
            most = -(-until // each)
        return most, each, each if most > 1 else 0, most * each, 0 if measured else most


@dataclass(slots=True)
class Totals:
    """For one number of rows: a step's seconds at every context from 0 on, and what all steps before it take, in
    nanoseconds, and how many of those were not measured."""

    each: "array[float]"
    before: "array[int]"
    unmeasured: "array[int]"


@dataclass(slots=True)
class SlopedCosts(StepCosts):
    """Where a longer context costs more: totals beforehand, as far as they were asked for."""

    by_context: ClassVar[bool] = True
    _totals: dict[int, Totals] = field(default_factory=dict, init=False)

    def step(self, rows: int, context: int) -> Step:
        known = self._up_to(rows, context + 1)
        ns = known.before[context + 1] - known.before[context]
        return Step(known.each[context], ns, known.unmeasured[context + 1] == known.unmeasured[context])

    def stretch(self, rows: int, context: int, most: int, until: int | None = None) -> Stretch:
        known = self._up_to(rows, context + most)
        before, end = known.before, context + most
        if until is not None:
            end = bisect_left(before, before[context] + until, context, end)
        rest = known.each[context + 1 : end]
        return (
            end - context,
            before[context + 1] - before[context],
            nanoseconds(max(rest)) if rest else 0,
            before[end] - before[context],
            known.unmeasured[end] - known.unmeasured[context],
        )

    def _up_to(self, rows: int, context: int) -> Totals:
        known = self._totals.get(rows)
        if known is None or len(known.each) <= context:
            known = self._totals[rows] = self._made(rows, min(2 * context + LONGER, 2 * CONTEXT))
        return known

    def _made(self, rows: int, most: int) -> Totals:
        costs = curve(self.profile, rows, most)
        each_ns = np.rint(costs * SECOND).astype(np.int64)
        missed = ~covered(self.measured, rows, most)
        return Totals(array("d", costs.tobytes()), _sums(each_ns), _sums(missed.astype(np.int64)))


def curve(profile: CostProfile, rows: int, most: int) -> Floats:
    """Seconds of a step at every context below `most`: what `decode_s` says of each, to the last bit."""
    points = [(context, interpolate(curve, rows)) for context, curve in profile.curves.items()]
    xs, ys = np.array([x for x, _ in points], dtype=np.float64), np.array([y for _, y in points])
    at = np.arange(most, dtype=np.float64)
    right = np.clip(np.searchsorted(xs, at, side="right"), 1, len(xs) - 1)
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    between = y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    inside: Floats = np.where(at < xs[0], ys[0], np.where(at >= xs[-1], ys[-1], between))
    return inside


def covered(profile: CostProfile, rows: int, most: int) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Whether the profile was measured for such a step, at every context below `most`."""
    changes = sorted({0, *(p.context for p in profile.decode), *(p.context + 1 for p in profile.decode)})
    starts = [context for context in changes if context < most]
    lengths = np.diff([*starts, most])
    return np.repeat([profile.covers(rows, context) for context in starts], lengths)


def _sums(values: "np.ndarray[Any, np.dtype[np.int64]]") -> "array[int]":
    return array("q", np.concatenate(([0], np.cumsum(values))).astype(np.int64).tobytes())
