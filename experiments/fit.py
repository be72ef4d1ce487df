"""From the steps that a worker recorded to a cost profile: what decoding and reading take on this machine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from statistics import median
from typing import Any

import numpy as np

from protocol.clock import MS, seconds
from protocol.records import StepRecord
from worker.profile import CostProfile, DecodePoint, ReadCost

# Between two steps of a busy worker lies its own work; a longer pause means that it had nothing to do.
PAUSE = 5 * MS
# A part of the reading cost is kept if it takes this much off the relative error.
EARNED = 0.01

Matrix = np.ndarray[Any, np.dtype[np.float64]]


class FitError(ValueError):
    """Steps from which no cost can be told; one line that says why."""


def fit_profile(name: str, source: str, cells: Iterable[Sequence[StepRecord]]) -> CostProfile:
    """The costs in these cells' steps. Raises FitError when nothing was decoded or read alone.

    A step of R rows costs the median over all such steps that read nothing, whatever their context. Reading costs a
    part for each chunk, prompt and token that comes closest, none of them negative.
    """
    timed = [(step, cost) for steps in cells for step, cost in durations(steps)]
    decoding: dict[int, list[float]] = defaultdict(list)
    for step, cost in timed:
        if step.decoding and not step.reading:
            decoding[step.decoding].append(cost)
    chunks = [(s.reading, s.prompt_tokens, cost) for s, cost in timed if not s.decoding and s.prompt_tokens > s.reading]
    if not decoding or not chunks:
        raise FitError("no profile can be fitted: it takes steps that only decode and steps that only read")
    points = tuple(DecodePoint(rows, 0, median(costs)) for rows, costs in sorted(decoding.items()))
    return CostProfile(name, source, points, fit_reading(chunks))


def durations(steps: Sequence[StepRecord]) -> list[tuple[StepRecord, float]]:
    """Each step and its cost in seconds, counted from the end of the step before as long as the worker was busy: so
    the worker's own work between two steps is part of what they cost."""
    firsts = [(steps[0], seconds(steps[0].end - steps[0].begin))] if steps else []
    rest = [
        (step, seconds(step.end - (before.end if step.begin - before.end < PAUSE else step.begin)))
        for before, step in pairwise(steps)
    ]
    return firsts + rest


def fit_reading(chunks: Sequence[tuple[int, int, float]]) -> ReadCost:
    """Seconds for a chunk, a prompt and a token, from chunks of (prompts, tokens, seconds): least squares of the
    relative errors, each part at least 0.

    A further part must earn its place, since prompts of one length cannot tell a prompt's cost from its tokens'. With
    three parts every choice of which are 0 can simply be tried.
    """
    rows = np.array([[1.0, prompts, tokens] for prompts, tokens, _ in chunks])
    scaled = rows / np.array([[cost] for _, _, cost in chunks])
    best, least = np.zeros(3), np.inf
    for size in (1, 2, 3):
        tried = [_parts(scaled, used) for used in combinations(range(3), size)]
        error, parts = min(
            [(_error(scaled, parts), tuple(parts)) for parts in tried if parts.min() >= 0], default=(np.inf, ())
        )
        if error < least - EARNED**2:
            best, least = np.array(parts), error
    return ReadCost(*(float(part) for part in best))


def _parts(scaled: Matrix, used: tuple[int, ...]) -> Matrix:
    parts = np.zeros(3)
    parts[list(used)] = np.linalg.lstsq(scaled[:, used], np.ones(len(scaled)), rcond=None)[0]
    return parts


def _error(scaled: Matrix, parts: Matrix) -> float:
    """Mean square of the relative errors."""
    return float(np.mean((scaled @ parts - 1) ** 2))
