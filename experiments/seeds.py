"""The cells of several seeds as one row: a policy at a rate, whatever its arrivals."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from experiments.analysis import CellSummary
from experiments.objectives import Goodput, Outcome, decided, parse_objective
from experiments.statistics import PERCENTILES, Spread

SPREADS = ("ttft", "writing", "reply", "queue_wait", "tpot", "gap", "send_lag", "service")
MEDIANS = ("done_s", "tokens_per_s", "wrong_order")
SUMS = ("requests", "sent", "unsent", "late", "completed", "rejected", "failed", "cancelled", "unfinished", "tokens")


@dataclass(frozen=True, slots=True)
class Pooled:
    """A policy at a rate over all its `seeds`: what became of its objectives, every request of every seed counted, and
    at how many seeds each load state was found."""

    label: str
    policy: str
    params: dict[str, Any]
    rate: float | None
    seeds: list[int | None]
    load_states: dict[str, int]
    objectives: list[Outcome]
    goodput: Goodput | None


def pooled(cells: Sequence[CellSummary]) -> list[Pooled]:
    """One for each policy and rate that served several seeds, in order of appearance."""
    return [_pooled(group) for group in alike(cells) if len(group) > 1]


def _pooled(cells: Sequence[CellSummary]) -> Pooled:
    row = _merged(cells)
    return Pooled(
        label=row.label,
        policy=row.policy,
        params=row.params,
        rate=row.rate,
        seeds=[cell.seed for cell in cells],
        load_states=load_states(cells),
        objectives=row.objectives,
        goodput=row.goodput,
    )


def load_states(cells: Sequence[CellSummary]) -> dict[str, int]:
    """How many of these cells were found in each load state, the commonest first."""
    return dict(Counter(cell.load_state for cell in cells if cell.load_state is not None).most_common())


def over_seeds(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """One cell for each policy and rate, in order of appearance: the median over its seeds of every figure, and its
    counts added up; its load state is None where the seeds differ. Cells of one seed stay as they are."""
    return [_merged(group) if len(group) > 1 else group[0] for group in alike(cells)]


def seeds_of(cells: Sequence[CellSummary]) -> int:
    """How many seeds a policy served at a rate, at most; 0 where there are no cells."""
    return max((len({cell.seed for cell in group}) for group in alike(cells)), default=0)


def alike(cells: Sequence[CellSummary]) -> list[list[CellSummary]]:
    """The cells that only their seeds tell apart, together; any other in a group of its own."""
    groups: dict[Any, list[CellSummary]] = defaultdict(list)
    for cell in cells:
        groups[cell.policy, tuple(sorted(cell.params.items())), cell.rate].append(cell)
    return [part for group in groups.values() for part in _apart(group)]


def _apart(group: list[CellSummary]) -> list[list[CellSummary]]:
    return [group] if len({cell.seed for cell in group}) > 1 else [[cell] for cell in group]


def _merged(cells: Sequence[CellSummary]) -> CellSummary:
    first = cells[0]
    changes: dict[str, Any] = {name: _spread([getattr(cell, name) for cell in cells]) for name in SPREADS}
    changes |= {name: _typical(getattr(cell, name) for cell in cells) for name in MEDIANS}
    changes |= {name: sum(getattr(cell, name) for cell in cells) for name in SUMS}
    changes |= {"objectives": _objectives(cells), "goodput": _goodput(cells), "load_state": _agreed(cells)}
    label = first.label.removesuffix(f", seed {first.seed}")
    return replace(first, label=label, seed=None, departures=None, **changes)


def _spread(spreads: Sequence[Spread]) -> Spread:
    """Medians of percentiles and means; `n` is that of the smallest, since all must be large enough."""
    names = (*PERCENTILES, "max", "mean")
    p50, p95, p99, longest, mean = (_typical(getattr(each, name) for each in spreads) for name in names)
    return Spread(min(each.n for each in spreads), p50, p95, p99, longest, mean=mean)


def _typical(values: Iterable[float | None]) -> float | None:
    """Between the middle two of an even number: of two seeds the lower would always look better."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _agreed(cells: Sequence[CellSummary]) -> str | None:
    """The load state of all seeds."""
    states = {cell.load_state for cell in cells}
    return states.pop() if len(states) == 1 else None


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
