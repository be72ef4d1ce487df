"""From the steps that a worker recorded to a cost profile: what decoding and reading take on this machine."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from statistics import median
from typing import Any

import numpy as np

from experiments.statistics import nearest_rank
from protocol.clock import MS, seconds
from protocol.records import StepRecord
from worker.profile import CostProfile, DecodePoint, ReadCost, StartCost, pairs

# Between two steps of a busy worker lies its own work; a longer pause means that it had nothing to do.
PAUSE = 5 * MS
# A part of the cost is kept if it takes this much off the relative error.
EARNED = 0.01
# Of more row counts than these are a curve's corners; between them it is straight.
CORNERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CONTEXT_BUCKET = 16
# Of fewer steps than these, one that was disturbed decides.
SEVERAL = 5
# Of a step that also decodes, reading must be this share for its cost to be told.
READ_SHARE = 0.2
PARTS = 4

Matrix = np.ndarray[Any, np.dtype[np.float64]]


class FitError(ValueError):
    """Steps from which no cost can be told; one line that says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One step: rows that decoded, the longest context in tokens, prompts of the chunk it read and tokens of the
    longest of them, prompts that got their last token (`started`; `joined` in the step before), seconds."""

    rows: int
    context: int
    prompts: int
    longest: int
    started: int
    joined: int
    s: float

    @property
    def only_decodes(self) -> bool:
        return bool(self.rows) and not (self.prompts or self.started or self.joined)

    @property
    def settles(self) -> bool:
        """Whether this step just decodes, among others those that have joined: part of what their start costs."""
        return bool(self.joined) and not (self.prompts or self.started)


@dataclass(frozen=True, slots=True)
class Residual:
    """How far a profile is from steps alike: `kind` is "decode" (by rows), "read" or "start" (by prompts, with or
    without rows that decode), or "all". Seconds are medians, errors shares of what was measured."""

    kind: str
    size: int | None
    steps: int
    measured_s: float
    fitted_s: float
    median: float
    p95: float


def fit_profile(name: str, source: str, cells: Iterable[Sequence[StepRecord]]) -> CostProfile:
    """The costs in these cells' steps. Raises FitError when nothing was decoded alone, or nothing was read.

    A decode step costs by its rows, and by rows times context where that explains something: straight lines through the
    medians of steps alike, with the least relative error, never falling with context. Reading costs a part for each
    chunk, prompt, token and pair of tokens, and prompts that start to decode a part for the step and one for each; none
    is negative. Of a step that also decodes it is what decoding does not explain.
    """
    several = [samples(steps) for steps in cells]
    found = [sample for cell in several for sample in cell]
    alone = [each for each in found if each.only_decodes]
    if not alone or not any(each.prompts for each in found):
        raise FitError("no profile can be fitted: it takes steps that only decode, and steps that read")
    decoding = CostProfile(name, source, fit_decoding(alone), ReadCost(0, 0, 0))
    start = fit_starting([each for cell in several for each in _starts(cell, decoding)])
    started = replace(decoding, start=start)
    chunks = [(each.prompts, each.longest, left) for each in found if (left := _reading_s(each, started)) is not None]
    if not chunks:
        raise FitError("no profile can be fitted: in no step did reading take longer than decoding alone")
    return replace(started, read=fit_reading(chunks))


def samples(steps: Sequence[StepRecord]) -> list[Sample]:
    """What each step of a cell did. A prompt's last token is fed to its first decode step, and counted as read in the
    step before that: as many of those counted as read are no chunk as were read in the step before."""
    made, before, joined = [], 0, 0
    for step, cost in durations(steps):
        fed = min(before, step.reading, step.prompt_tokens)
        before = step.reading - fed
        if step.decoding or step.reading:
            made.append(Sample(step.decoding, step.context, before, step.longest_read, fed, joined, cost))
        joined = fed
    return made


def durations(steps: Sequence[StepRecord]) -> list[tuple[StepRecord, float]]:
    """Each step and its cost in seconds, counted from the end of the step before as long as the worker was busy: so
    the worker's own work between two steps is part of what they cost."""
    firsts = [(steps[0], seconds(steps[0].end - steps[0].begin))] if steps else []
    rest = [
        (step, seconds(step.end - (before.end if step.begin - before.end < PAUSE else step.begin)))
        for before, step in pairwise(steps)
    ]
    return firsts + rest


# --- decoding ---


def fit_decoding(alone: Sequence[Sample]) -> tuple[DecodePoint, ...]:
    """Points of a profile, from steps that only decode: of one context, 0, where contexts explain nothing."""
    corners = _corners(Counter(each.rows for each in alone))
    flat, flat_error = _solved(alone, corners, None)
    low, high = min(each.context for each in alone), max(each.context for each in alone)
    if high - low >= CONTEXT_BUCKET:
        sloped, error = _solved(alone, corners, low)
        if error < flat_error - EARNED**2:
            slope = float(sloped[-1])
            return tuple(
                DecodePoint(rows, context, float(s) + slope * rows * (context - low))
                for context in (low, high)
                for rows, s in zip(corners, sloped, strict=False)
            )
    return tuple(DecodePoint(rows, 0, float(s)) for rows, s in zip(corners, flat, strict=True))


def _corners(steps: Mapping[int, int]) -> list[int]:
    """The row counts of several steps, or if these are many, corners among them; the smallest and the largest of all
    included."""
    rows = {min(steps), max(steps), *(count for count, several in steps.items() if several >= SEVERAL)}
    if len(rows) <= len(CORNERS) // 2:
        return sorted(rows)
    return sorted({min(rows), max(rows), *(each for each in CORNERS if min(rows) <= each <= max(rows))})


def _solved(alone: Sequence[Sample], corners: Sequence[int], low: int | None) -> tuple[Matrix, float]:
    """Seconds at each corner, and where contexts count from `low` what each row costs for each token of them; and the
    mean square of the relative errors. Least squares, none below 0, steps alike taken as their median."""
    from scipy.optimize import nnls

    groups: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for each in alone:
        groups[each.rows, 0 if low is None else each.context // CONTEXT_BUCKET].append(each)
    middles = np.array([median(each.s for each in group) for group in groups.values()])
    rows = np.array([group[0].rows for group in groups.values()])
    basis = np.array([np.interp(rows, corners, unit) for unit in np.eye(len(corners))]).T
    if low is not None:
        contexts = np.array([median(each.context for each in group) for group in groups.values()])
        basis = np.column_stack([basis, rows * (contexts - low)])
    weights = np.sqrt([len(group) for group in groups.values()])
    costs, _ = nnls(basis * (weights / middles)[:, None], weights)
    errors = (basis @ costs) / middles - 1
    return costs, float(np.average(errors**2, weights=weights**2))


# --- starting to decode ---


def _starts(cell: Sequence[Sample], decoding: CostProfile) -> list[tuple[int, float]]:
    """Prompts that start to decode together, and what that takes: what two steps take beyond their decoding, the one
    in which they get their last token, and the next, which finds them among the others."""
    return [
        (first.started, max(0.0, _beyond(first, decoding) + _beyond(second, decoding)))
        for first, second in pairwise(cell)
        if first.started and not first.prompts and second.settles
    ]


def _beyond(sample: Sample, decoding: CostProfile) -> float:
    return sample.s - (decoding.decode_s(sample.rows, sample.context) if sample.rows else 0.0)


def fit_starting(starts: Sequence[tuple[int, float]]) -> StartCost:
    """From (prompts, seconds): least squares over the medians of starts alike, no part below 0."""
    from scipy.optimize import nnls

    if not starts:
        return StartCost()
    groups: dict[int, list[float]] = defaultdict(list)
    for prompts, s in starts:
        groups[prompts].append(s)
    weights = np.sqrt([len(group) for group in groups.values()])
    basis = np.array([[1.0, prompts] for prompts in groups])
    middles = np.array([median(group) for group in groups.values()])
    costs, _ = nnls(basis * weights[:, None], middles * weights)
    return StartCost(float(costs[0]), float(costs[1]))


# --- reading ---


def _reading_s(sample: Sample, started: CostProfile) -> float | None:
    """What a step's reading took; None where it read nothing, or too little to tell."""
    if not sample.prompts:
        return None
    left = _beyond(sample, started) - started.start_s(sample.started)
    return left if left > READ_SHARE * sample.s else None


def fit_reading(chunks: Sequence[tuple[int, int, float]]) -> ReadCost:
    """From chunks of (prompts, tokens of the longest, seconds): least squares of the relative errors, no part below 0.

    A further part must earn its place, since prompts of one length cannot tell a prompt's cost from its tokens'. With
    so few parts every choice of which are 0 can simply be tried.
    """
    rows = np.array([[1.0, prompts, prompts * longest, pairs(prompts, longest)] for prompts, longest, _ in chunks])
    scaled = rows / np.array([[cost] for _, _, cost in chunks])
    best, least = np.zeros(PARTS), np.inf
    for size in range(1, PARTS + 1):
        tried = [_parts(scaled, used) for used in combinations(range(PARTS), size)]
        error, parts = min(
            [(_error(scaled, parts), tuple(parts)) for parts in tried if parts.min() >= 0], default=(np.inf, ())
        )
        if error < least - EARNED**2:
            best, least = np.array(parts), error
    chunk, prompt, token, pair = (float(part) for part in best)
    return ReadCost(
        *(chunk, prompt, token, pair),
        most_prompts=max(prompts for prompts, _, _ in chunks),
        most_tokens=max(prompts * longest for prompts, longest, _ in chunks),
    )


def _parts(scaled: Matrix, used: tuple[int, ...]) -> Matrix:
    parts = np.zeros(PARTS)
    parts[list(used)] = np.linalg.lstsq(scaled[:, used], np.ones(len(scaled)), rcond=None)[0]
    return parts


def _error(scaled: Matrix, parts: Matrix) -> float:
    """Mean square of the relative errors."""
    return float(np.mean((scaled @ parts - 1) ** 2))


# --- how good it is ---


def residuals(profile: CostProfile, cells: Iterable[Sequence[StepRecord]]) -> list[Residual]:
    """How far the profile is from these steps: by rows decoding, by prompts reading, and over all of them."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for cell in map(samples, cells):
        for each, after in zip(cell, [*cell[1:], None], strict=True):
            if each.settles:
                continue  # counted with the step before
            both = [each, after] if after is not None and after.settles else [each]
            groups[_kind(each)].append((sum(one.s for one in both), sum(_fitted(profile, one) for one in both)))
    found = [_residual(kind, size, pairs) for (kind, size), pairs in sorted(groups.items())]
    return [*found, _residual("all", None, [pair for pairs in groups.values() for pair in pairs])]


def _fitted(profile: CostProfile, sample: Sample) -> float:
    decoding = profile.decode_s(sample.rows, sample.context) if sample.rows else 0.0
    return decoding + profile.start_s(sample.started) + profile.read_s(sample.prompts, sample.longest)


def _kind(sample: Sample) -> tuple[str, int]:
    if sample.prompts:
        return "read", sample.prompts
    return ("start", sample.started) if sample.started else ("decode", sample.rows)


def _residual(kind: str, size: int | None, pairs: Sequence[tuple[float, float]]) -> Residual:
    errors = sorted(abs(fitted / measured - 1) for measured, fitted in pairs if measured > 0) or [0.0]
    measured_s, fitted_s = median(measured for measured, _ in pairs), median(fitted for _, fitted in pairs)
    ranks = nearest_rank(errors, 0.5), nearest_rank(errors, 0.95)
    return Residual(kind, size, len(pairs), measured_s, fitted_s, *ranks)
