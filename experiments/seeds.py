"""The cells of several seeds as one row: a policy at a rate, whatever its arrivals."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from experiments.analysis import CellSummary
from experiments.load_state import NOT_DETERMINED
from experiments.objectives import Goodput, Outcome, decided, parse_objective
from experiments.statistics import PERCENTILES, Spread, median

SPREADS = ("ttft", "writing", "reply", "queue_wait", "tpot", "gap", "send_lag", "service")
MEDIANS = ("done_s", "tokens_per_s")
SUMS = ("requests", "sent", "unsent", "late", "completed", "rejected", "failed", "cancelled", "unfinished", "tokens")


def over_seeds(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """One cell for each policy and rate, in order of appearance: the median over its seeds of every figure, and its
    counts added up. Cells of one seed stay as they are."""
    return [row for group in _alike(cells) for row in ([_merged(group)] if _seeds(group) > 1 else group)]


def seeds_of(cells: Sequence[CellSummary]) -> int:
    """How many seeds a policy served at a rate, at most; 0 where there are no cells."""
    return max(map(_seeds, _alike(cells)), default=0)


def _alike(cells: Sequence[CellSummary]) -> list[list[CellSummary]]:
    groups: dict[Any, list[CellSummary]] = defaultdict(list)
    for cell in cells:
        groups[cell.policy, tuple(sorted(cell.params.items())), cell.rate].append(cell)
    return [*groups.values()]


def _seeds(cells: Sequence[CellSummary]) -> int:
    return len({cell.seed for cell in cells})


def _merged(cells: Sequence[CellSummary]) -> CellSummary:
    first = cells[0]
    changes: dict[str, Any] = {name: _spread([getattr(cell, name) for cell in cells]) for name in SPREADS}
    changes |= {name: _typical(getattr(cell, name) for cell in cells) for name in MEDIANS}
    changes |= {name: sum(getattr(cell, name) for cell in cells) for name in SUMS}
    changes |= {"objectives": _objectives(cells), "goodput": _goodput(cells), "load_state": _load_state(cells)}
    label = first.label.removesuffix(f", seed {first.seed}")
    return replace(first, label=label, seed=None, departures=None, **changes)


def _spread(spreads: Sequence[Spread]) -> Spread:
    """Medians of percentiles; `n` is that of the smallest, since all must be large enough."""
    p50, p95, p99, longest = (_typical(getattr(each, name) for each in spreads) for name in (*PERCENTILES, "max"))
    return Spread(min(each.n for each in spreads), p50, p95, p99, longest)


def _typical(values: Iterable[float | None]) -> float | None:
    return median([value for value in values if value is not None])


def _load_state(cells: Sequence[CellSummary]) -> str | None:
    """What all seeds agree on."""
    states = {cell.load_state for cell in cells}
    return states.pop() if len(states) == 1 else NOT_DETERMINED


def _objectives(cells: Sequence[CellSummary]) -> list[Outcome]:
    """Every request of every seed counts: more of them decide more."""
    columns = zip(*(cell.objectives for cell in cells), strict=True)
    return [
        decided(parse_objective(column[0].objective), sum(o.misses for o in column), sum(o.n for o in column))
        for column in columns
    ]


def _goodput(cells: Sequence[CellSummary]) -> Goodput | None:
    known = [cell.goodput for cell in cells if cell.goodput is not None]
    if not known:
        return None
    good, offered = sum(each.requests for each in known), sum(each.offered for each in known)
    return Goodput(good, offered, good / offered, _typical(each.per_s for each in known))
