"""Gates: by how much a run may be worse than another before `headway compare` fails."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.objectives import METRICS, UNITS
from experiments.statistics import PERCENTILES

TOKENS, GOODPUT = "tokens_per_s", "goodput"
PERCENT = "%"
SPELLING = re.compile(r"(\w+)(?:\.(\w+))?\s*([<>])\s*([+-]?)([0-9]*\.?[0-9]+)\s*(%|[a-z]*)")
FORM = "METRIC.PERCENTILE>+N% such as ttft.p95>+10%, tokens_per_s<-5%, goodput<90% or reply.p50>2s"


@dataclass(frozen=True, slots=True)
class Gate:
    """What fails: a `figure` above (or below) a `limit`. With `change` the limit is of the difference from the first
    run, with `relative` as a share of that run's figure; without either it is of the second run's figure itself, in
    seconds, tokens a second, or for goodput a share of the requests. `text` as it was asked for."""

    text: str
    figure: str
    above: bool
    limit: float
    change: bool
    relative: bool


def parse_gate(text: str) -> Gate:
    """A gate from its text. Raises ValueError, in one line that says what to write."""
    found = SPELLING.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"--fail-if is {FORM}; not {text!r}")
    metric, percentile, sign, change, number, unit = found.groups()
    _check_figure(text, metric, percentile)
    _check_unit(text, metric, change, unit)
    limit = float(number) * (0.01 if unit == PERCENT else UNITS.get(unit, 1.0)) * (-1 if change == "-" else 1)
    if not math.isfinite(limit):
        raise ValueError(f"--fail-if {text}: the limit is too large")
    figure = f"{metric}.{percentile}" if percentile else metric
    return Gate(text.strip(), figure, sign == ">", limit, bool(change), bool(change) and unit == PERCENT)


def _check_figure(text: str, metric: str, percentile: str | None) -> None:
    if metric not in (*METRICS, TOKENS, GOODPUT):
        known = ", ".join((*METRICS, TOKENS, GOODPUT))
        raise ValueError(f"--fail-if {text}: unknown metric {metric!r}; choose from {known}")
    if metric in METRICS and percentile not in PERCENTILES:
        names = ", ".join(f"{metric}.{name}" for name in PERCENTILES)
        raise ValueError(f"--fail-if {text}: name a percentile: {names}")
    if metric not in METRICS and percentile is not None:
        raise ValueError(f"--fail-if {text}: {metric} has no percentiles; write {metric}")


def _check_unit(text: str, metric: str, change: str, unit: str) -> None:
    known, example = {TOKENS: ([""], "100"), GOODPUT: ([PERCENT], "90%")}.get(metric, ([*UNITS], "500ms or 2s"))
    if unit not in ([*known, PERCENT] if change else known):
        raise ValueError(f"--fail-if {text}: write a limit of {metric} as {example}, or as a change such as +10%")


def crossed(gate: Gate, before: float | None, after: float | None) -> bool | None:
    """Whether a gate fails for these figures of the first and the second run; None where one that it takes is
    missing."""
    value = _looked_at(gate, before, after)
    return None if value is None else value > gate.limit if gate.above else value < gate.limit


def _looked_at(gate: Gate, before: float | None, after: float | None) -> float | None:
    if after is None or not gate.change:
        return after
    if before is None:
        return None
    return relative_change(before, after) if gate.relative else after - before


def relative_change(before: float, after: float) -> float:
    """As a share of the first; infinite where that is 0 and the second is not."""
    if before == after:
        return 0.0
    return (after - before) / before if before else math.copysign(math.inf, after - before)


def check_gates(texts: Sequence[str]) -> list[Gate]:
    """All of them. Raises ValueError in one line."""
    return [parse_gate(text) for text in texts]
