"""How sure one can be of a mean difference between two things that were measured in pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.statistics import CONFIDENCE, Interval

FEWEST_PAIRS, BOOTSTRAP_PAIRS = 5, 30
RESAMPLES, RESAMPLING_SEED = 9_999, 1
STUDENT, BOOTSTRAP = "paired Student t", "bootstrap t"

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of differences, None of none; its 95 % interval and the method that made it, None below five."""

    mean: float | None
    interval: Interval | None
    method: str | None


def mean_difference(differences: Sequence[float]) -> Mean:
    """The mean of these, one a pair: with Student's t from five up, with the bootstrap from 30 up if it has
    one."""
    if not differences:
        return Mean(None, None, None)
    values = np.array(differences)
    mean, n = float(values.mean()), len(differences)
    if n < FEWEST_PAIRS:
        return Mean(mean, None, None)
    resampled = bootstrap_t(values) if n >= BOOTSTRAP_PAIRS else None
    low, high = resampled or student_t(values)
    return Mean(mean, (float(low), float(high)), STUDENT if resampled is None else BOOTSTRAP)


def student_t(samples: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Both ends of Student's interval for the mean along the last axis, of at least two values."""
    from scipy.special import stdtrit

    n = samples.shape[-1]
    half = stdtrit(n - 1, (1 + confidence) / 2) * standard_error(samples)
    mean = samples.mean(axis=-1)
    return mean - half, mean + half


def bootstrap_t(
    samples: Array, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[Array, Array] | None:
    """Both ends of the bootstrap-t interval for the mean of one sample: Student's, but with the quantiles of t from
    resamples, so that a skewed sample has a skewed interval. The same sample always has the same one.

    A resample of one value only has an infinite t. None where they are so many that an end would be infinite, as when
    almost all values are equal. Source: Efron and Tibshirani, An Introduction to the Bootstrap, chapter 12.
    """
    mean, error = samples.mean(), standard_error(samples)
    drawn = np.random.default_rng(RESAMPLING_SEED).choice(samples, (resamples, len(samples)))
    above, errors = drawn.mean(axis=-1) - mean, standard_error(drawn)
    t = np.divide(above, errors, out=np.copysign(np.inf, above), where=errors > 0)
    tail = (1 - confidence) / 2
    low, high = np.quantile(t, (tail, 1 - tail), method="inverted_cdf")
    return (mean - high * error, mean - low * error) if np.isfinite([low, high]).all() else None


def standard_error(samples: Array) -> Array:
    """Of the mean along the last axis."""
    error: Array = samples.std(axis=-1, ddof=1) / np.sqrt(samples.shape[-1])
    return error
