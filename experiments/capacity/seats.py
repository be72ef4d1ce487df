"""The same crowd served with every number of seats: what customers wait, and what that takes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis import CellSummary
from experiments.capacity.plan import CapacitySettings, kind_of, seats_of
from experiments.capacity.search import Effort
from experiments.capacity.serving import Served
from experiments.kv_families import kv_shape
from experiments.kv_size import cache_bytes
from experiments.load_state import OVERLOADED
from experiments.memory import longest_request
from experiments.model_config import load_config, weights_bytes
from experiments.seeds import over_seeds

MOST_REQUESTS = 2_000
USUAL = "p95"


def by_seats(
    tried: Sequence[tuple[Served, float, bool]], settings: CapacitySettings, rate: float, effort: Effort
) -> dict[str, Any]:
    """A row for each server: with it comes the highest rate that meets the objectives, 0 for none, and whether that is
    sure or roughly so. All are offered `rate`, rounded down. Raises OutsideProfile and PolicyFailed."""
    offered = rounded_down(rate)
    shown = {metric: asked_percentile(settings, metric) for metric in ("ttft", "reply")}
    memory = memory_by_seats(settings, [seats_of(served.policy) for served, _, _ in tried])
    rows = [
        {"seats": seats_of(served.policy), "rate": highest or None, "sure": sure}
        | _figures(served, settings.seeds[: effort.rough_seeds], min(MOST_REQUESTS, effort.most), offered, shown)
        | memory[seats_of(served.policy)]
        for served, highest, sure in tried
    ]
    return {"kind": kind_of(tried[0][0].policy), "offered": offered, "percentiles": shown, "rows": rows}


def rounded_down(rate: float) -> float:
    """To three significant digits: a promise is not rounded up."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / unit + 1e-9) * unit:.3g}")


def asked_percentile(settings: CapacitySettings, metric: str) -> str:
    """The highest that an objective names of a metric."""
    return max([each.percentile for each in settings.promised() if each.metric == metric], default=USUAL)


def _figures(
    served: Served, seeds: Sequence[int], requests: int, rate: float, shown: Mapping[str, str]
) -> dict[str, Any]:
    """Medians over a few seeds, and the longest gap of all. A queue that just grows has no percentiles: they depend on
    how long it lasts."""
    cells = [served.figures(rate, requests, seed) for seed in seeds]
    overloaded = rate > served.most(requests, seeds[0]) or OVERLOADED in [cell.load_state for cell in cells]
    (typical,) = over_seeds(cells)
    waits = {f"{metric}_s": None if overloaded else _percentile(typical, metric, shown[metric]) for metric in shown}
    gaps = [cell.gap.max for cell in cells if cell.gap.max is not None]
    speed = {"tokens_per_s": typical.tokens_per_s, "longest_gap_s": max(gaps, default=None)}
    return {"overloaded": overloaded, **waits, **speed}


def _percentile(cell: CellSummary, metric: str, percentile: str) -> float | None:
    value: float | None = getattr(getattr(cell, metric), percentile)
    return value


def memory_by_seats(settings: CapacitySettings, seats: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Weights and, for the longest request on every seat, the KV cache at 16 bits: by the configuration of the model
    that is named; nothing where none is, or its weights cannot be counted. Raises ValueError and RuntimeError."""
    unknown = {"peak_memory_bytes": None, "memory_from": None}
    if settings.model is None:
        return dict.fromkeys(seats, unknown)
    named = load_config(settings.model)
    weights, one = weights_bytes(named).bytes, cache_bytes(kv_shape(named.config), longest_request(settings.cell()))
    if weights is None:
        return dict.fromkeys(seats, unknown)
    return {count: {"peak_memory_bytes": weights + count * one, "memory_from": "configuration"} for count in seats}
