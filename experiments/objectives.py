"""Service objectives: what was promised to a share of the requests, and whether a cell kept it."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.statistics import PERCENTILES, State, early_stop, samples_needed

METRICS = ("ttft", "reply", "tpot", "gap", "queue_wait", "writing")
UNITS = {"ms": 1e-3, "s": 1.0}
SPELLING = re.compile(r"(\w+)\.(\w+)\s*<\s*([0-9]*\.?[0-9]+)\s*([a-z]+)")


@dataclass(frozen=True, slots=True)
class Objective:
    """A `percentile` of a `metric` below `limit_s` seconds; `text` as it was asked for."""

    text: str
    metric: str
    percentile: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an objective in a cell: of `n` requests that say something of it, so many `misses`. `needed` are
    the requests that would show it met with that many misses."""

    objective: str
    state: State
    misses: int
    n: int
    needed: int


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many `requests` met every objective, as a share of those `offered`, and for each second in which requests
    were offered; None where all came at once."""

    requests: int
    offered: int
    share: float
    per_s: float | None


def parse_objective(text: str) -> Objective:
    """An objective from `METRIC.PERCENTILE<LIMIT`, such as `ttft.p95<1s`. Raises ValueError, in one line that names
    what is known."""
    found = SPELLING.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"--objective is METRIC.PERCENTILE<LIMIT such as ttft.p95<1s or tpot.p50<40ms; not {text!r}")
    metric, percentile, number, unit = found.groups()
    for word, known, what in (
        (metric, METRICS, "metric"),
        (percentile, PERCENTILES, "percentile"),
        (unit, UNITS, "unit"),
    ):
        if word not in known:
            raise ValueError(f"--objective {text}: unknown {what} {word!r}; choose from {', '.join(known)}")
    limit_s = float(number) * UNITS[unit]
    if not 0 < limit_s < math.inf:
        raise ValueError(f"--objective {text}: the limit must be above 0")
    return Objective(text.strip(), metric, percentile, limit_s)


def check_objectives(texts: Sequence[str]) -> None:
    """Raises ValueError, in one line, for what is no objective, and for a percentile that has two."""
    made = [parse_objective(text) for text in texts]
    if len({(each.metric, each.percentile) for each in made}) != len(made):
        raise ValueError(f"--objective names a percentile twice: {', '.join(texts)}")


def outcome(objective: Objective, values: Sequence[float | None]) -> Outcome:
    """What these requests say of an objective: one value in seconds each, infinity for a request that failed, None for
    one that has nothing to say, such as the time per token of a reply of one token."""
    known = [value for value in values if value is not None]
    return decided(objective, sum(value >= objective.limit_s for value in known), len(known))


def decided(objective: Objective, misses: int, n: int) -> Outcome:
    """What so many misses among n requests say of an objective; nothing when there are none."""
    q = PERCENTILES[objective.percentile]
    return Outcome(objective.text, early_stop(n, misses, q), misses, n, samples_needed(q, misses))


def goodput(
    objectives: Sequence[Objective], requests: Sequence[Sequence[float | None]], offered_s: float
) -> Goodput | None:
    """Requests that met every objective, of all that were offered over `offered_s` seconds; a row holds one request's
    value for each objective. A request is judged by the values it has, and one without any meets nothing. None where
    no request has any."""
    known = [[(v, o.limit_s) for v, o in zip(row, objectives, strict=True) if v is not None] for row in requests]
    if not any(known):
        return None
    good = sum(bool(row) and all(value < limit for value, limit in row) for row in known)
    return Goodput(good, len(requests), good / len(requests), good / offered_s if offered_s > 0 else None)
