"""From the steps that a worker recorded to a cost profile: what decoding and reading take on this machine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from statistics import median
from typing import Any

import numpy as np

from experiments.statistics import nearest_rank
from protocol.clock import MS, seconds
from protocol.records import StepRecord
from worker.profile import CostProfile, DecodePoint, ReadCost

# Between two steps of a busy worker lies its own work; a longer pause means that it had nothing to do.
PAUSE = 5 * MS
# A part of the cost is kept if it takes this much off the relative error.
EARNED = 0.01
# Of more row counts than these are a curve's corners; between them it is straight.
CORNERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CONTEXT_BUCKET = 16
# Of a step that also decodes, reading must be this share for its cost to be told.
READ_SHARE = 0.2

Matrix = np.ndarray[Any, np.dtype[np.float64]]


class FitError(ValueError):
    """Steps from which no cost can be told; one line that says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One step: rows that decoded, the longest context in tokens, prompts and tokens of the chunk it read, seconds."""

    rows: int
    context: int
    prompts: int
    tokens: int
    s: float


@dataclass(frozen=True, slots=True)
class Residual:
    """How far a profile is from steps alike: `kind` is "decode" (by rows) or "read" (by prompts, with or without rows
    that decode), or "all". Seconds are medians, errors shares of what was measured."""

    kind: str
    size: int | None
    steps: int
    measured_s: float
    fitted_s: float
    median: float
    p95: float


def fit_profile(name: str, source: str, cells: Iterable[Sequence[StepRecord]]) -> CostProfile:
    """The costs in these cells' steps. Raises FitError when nothing was decoded alone, or nothing was read.

    A decode step costs by its rows, and by its context where that explains something: straight lines through the
    medians of steps alike, with the least relative error, never falling with context. Reading costs a part for each
    chunk, prompt and token, none of them negative; of a step that also decodes it is what decoding does not explain.
    """
    found = [sample for steps in cells for sample in samples(steps)]
    alone = [each for each in found if each.rows and not each.prompts]
    if not alone or not any(each.prompts for each in found):
        raise FitError("no profile can be fitted: it takes steps that only decode, and steps that read")
    decoding = CostProfile(name, source, fit_decoding(alone), ReadCost(0, 0, 0))
    chunks = [(each.prompts, each.tokens, left) for each in found if (left := _reading_s(each, decoding)) is not None]
    if not chunks:
        raise FitError("no profile can be fitted: in no step did reading take longer than decoding alone")
    most = {"most_prompts": max(p for p, _, _ in chunks), "most_tokens": max(t for _, t, _ in chunks)}
    return replace(decoding, read=replace(fit_reading(chunks), **most))


def samples(steps: Sequence[StepRecord]) -> list[Sample]:
    """What each step of a cell did. A prompt's last token is fed to its first decode step, and counted as read in the
    step before that: as many of those counted as read are no chunk as were read in the step before."""
    made, before = [], 0
    for step, cost in durations(steps):
        fed = min(before, step.reading, step.prompt_tokens)
        before = step.reading - fed
        if step.decoding or before:
            made.append(Sample(step.decoding, step.context, before, step.prompt_tokens - fed, cost))
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
    corners = _corners({each.rows for each in alone})
    flat, flat_error = _solved(alone, corners, None)
    low, high = min(each.context for each in alone), max(each.context for each in alone)
    if high - low >= CONTEXT_BUCKET:
        sloped, error = _solved(alone, corners, (low, high))
        if error < flat_error - EARNED**2:
            near, far = sloped[: len(corners)], sloped[: len(corners)] + sloped[len(corners) :]
            curves = ((low, near), (high, far))
            return tuple(
                DecodePoint(rows, c, float(s)) for c, curve in curves for rows, s in zip(corners, curve, strict=True)
            )
    return tuple(DecodePoint(rows, 0, float(s)) for rows, s in zip(corners, flat, strict=True))


def _corners(rows: set[int]) -> list[int]:
    """All row counts if there are few; else corners among them, the smallest and the largest included."""
    if len(rows) <= len(CORNERS) // 2:
        return sorted(rows)
    return sorted({min(rows), max(rows), *(each for each in CORNERS if min(rows) <= each <= max(rows))})


def _solved(alone: Sequence[Sample], corners: Sequence[int], span: tuple[int, int] | None) -> tuple[Matrix, float]:
    """Seconds at each corner, and with a span of contexts what they rise from its begin to its end; and the mean square
    of the relative errors. Least squares, none below 0, steps alike taken as their median."""
    from scipy.optimize import nnls

    groups: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for each in alone:
        groups[each.rows, each.context // CONTEXT_BUCKET if span else 0].append(each)
    middles = np.array([median(each.s for each in group) for group in groups.values()])
    rows = [group[0].rows for group in groups.values()]
    basis = np.array([np.interp(r, corners, unit) for r in rows for unit in np.eye(len(corners))])
    basis = basis.reshape(len(rows), len(corners))
    if span is not None:
        at = np.array([median(each.context for each in group) for group in groups.values()])
        basis = np.hstack([basis, basis * ((at - span[0]) / (span[1] - span[0]))[:, None]])
    weights = np.sqrt([len(group) for group in groups.values()])
    costs, _ = nnls(basis * (weights / middles)[:, None], weights)
    errors = (basis @ costs) / middles - 1
    return costs, float(np.average(errors**2, weights=weights**2))


# --- reading ---


def _reading_s(sample: Sample, decoding: CostProfile) -> float | None:
    """What a step's reading took; None where it read nothing, or too little to tell."""
    if not sample.prompts:
        return None
    left = sample.s - (decoding.decode_s(sample.rows, sample.context) if sample.rows else 0.0)
    return left if left > READ_SHARE * sample.s else None


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
    per_chunk, per_prompt, per_token = (float(part) for part in best)
    return ReadCost(per_chunk, per_prompt, per_token)


def _parts(scaled: Matrix, used: tuple[int, ...]) -> Matrix:
    parts = np.zeros(3)
    parts[list(used)] = np.linalg.lstsq(scaled[:, used], np.ones(len(scaled)), rcond=None)[0]
    return parts


def _error(scaled: Matrix, parts: Matrix) -> float:
    """Mean square of the relative errors."""
    return float(np.mean((scaled @ parts - 1) ** 2))


# --- how good it is ---


def residuals(profile: CostProfile, cells: Iterable[Sequence[StepRecord]]) -> list[Residual]:
    """How far the profile is from these steps: by rows decoding, by prompts reading, and over all of them."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for each in [sample for steps in cells for sample in samples(steps)]:
        fitted = (profile.decode_s(each.rows, each.context) if each.rows else 0.0) + profile.read_s(
            each.prompts, each.tokens
        )
        groups[("read", each.prompts) if each.prompts else ("decode", each.rows)].append((each.s, fitted))
    found = [_residual(kind, size, pairs) for (kind, size), pairs in sorted(groups.items())]
    return [*found, _residual("all", None, [pair for pairs in groups.values() for pair in pairs])]


def _residual(kind: str, size: int | None, pairs: Sequence[tuple[float, float]]) -> Residual:
    errors = sorted(abs(fitted / measured - 1) for measured, fitted in pairs if measured > 0) or [0.0]
    measured_s, fitted_s = median(measured for measured, _ in pairs), median(fitted for _, fitted in pairs)
    ranks = nearest_rank(errors, 0.5), nearest_rank(errors, 0.95)
    return Residual(kind, size, len(pairs), measured_s, fitted_s, *ranks)
