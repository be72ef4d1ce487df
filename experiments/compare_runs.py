"""Two runs side by side: the same cells, how far their figures differ, and whether that is more than noise. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.analysis import CellSummary
from experiments.comparison import METRICS, policy_label
from experiments.gates import GOODPUT, TOKENS, Gate, crossed, relative_change
from experiments.manifest import differences
from experiments.paired import mean_difference
from experiments.run_folder import Summary
from experiments.statistics import Interval, overlap
from experiments.verdict import INVALID

WITHIN, BEYOND, NOT_KNOWN = "within noise", "beyond noise", "noise not known"
HELD, FAILED, MISSING = "held", "failed", "missing"

Key = tuple[str, str]
Seeds = Mapping[int | None, CellSummary]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one cell, `before` in the first run and `after` in the second: means over the `seeds` that both
    served. `interval` holds the true mean of the differences with 95 % confidence, made by `method`; both None below
    five seeds. `noise` is WITHIN where the interval holds 0 or, of a single seed, where the 95 % intervals of the two
    percentiles overlap; NOT_KNOWN where there is no interval."""

    figure: str
    before: float | None
    after: float | None
    difference: float | None
    relative: float | None
    seeds: list[int | None]
    interval: Interval | None
    method: str | None
    noise: str


@dataclass(frozen=True, slots=True)
class Matched:
    """A cell that both runs have, with the rates at which they offered it."""

    label: str
    rates: tuple[float | None, float | None]
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """What became of a gate in a cell: "held", "failed", or "missing" where there is no figure."""

    gate: str
    cell: str
    state: str
    before: float | None
    after: float | None
    noise: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Two runs. `faults` are why nothing may be concluded from them; `depends` is what differs between them in what a
    measurement depends on. They `passed` without a fault and with every gate held."""

    passed: bool
    cells: list[Matched]
    only_before: list[str]
    only_after: list[str]
    depends: list[str]
    gates: list[GateOutcome]
    faults: list[str]


def compare(
    before: tuple[Summary, Mapping[str, Any]], after: tuple[Summary, Mapping[str, Any]], gates: Sequence[Gate] = ()
) -> Compared:
    """Both runs as summary and manifest. Cells are the same that have one load, or one label and rate; over seeds they
    are compared pair by pair."""
    ours, theirs = _cells(before[0].cells), _cells(after[0].cells)
    shared = {key: [seed for seed in ours[key] if seed in theirs[key]] for key in ours if key in theirs}
    both = [key for key, seeds in shared.items() if seeds]
    shown = dict.fromkeys([*METRICS, TOKENS, *_goodput(before[0], after[0]), *(gate.figure for gate in gates)])
    cells = [_matched(ours[key], theirs[key], shared[key], shown) for key in both]
    lacking = [_name(ours[key], key in shared) for key in ours if key not in both]
    outcomes = [_outcome(gate, cell) for gate in gates for cell in cells]
    faults = [*_faults("the first run", before[0]), *_faults("the second run", after[0])]
    faults += [f"the second run has no {name}" for name in lacking] + _empty(cells)
    return Compared(
        passed=not faults and all(outcome.state == HELD for outcome in outcomes),
        cells=cells,
        only_before=lacking,
        only_after=[_name(theirs[key], key in shared) for key in theirs if key not in both],
        depends=differences(before[1], after[1]),
        gates=outcomes,
        faults=faults,
    )


def _cells(cells: Iterable[CellSummary]) -> dict[Key, dict[int | None, CellSummary]]:
    found: dict[Key, dict[int | None, CellSummary]] = defaultdict(dict)
    for cell in cells:
        found[_key(cell)].setdefault(cell.seed, cell)
    return dict(found)


def _key(cell: CellSummary) -> Key:
    """A load stands for another rate on another machine, and the label of such a cell names the rate."""
    if cell.load is not None:
        return policy_label(cell), f"load {cell.load:g}"
    return _label(cell), "at once" if cell.rate is None else f"{cell.rate!r}/s"


def _label(cell: CellSummary) -> str:
    return cell.label.removesuffix(f", seed {cell.seed}")


def _name(cells: Seeds, other_seeds: bool) -> str:
    return _label(next(iter(cells.values()))) + (" with a seed of the first" if other_seeds else "")


def _goodput(*runs: Summary) -> list[str]:
    return [GOODPUT] if any(cell.goodput is not None for run in runs for cell in run.cells) else []


def _matched(ours: Seeds, theirs: Seeds, seeds: Sequence[int | None], shown: Iterable[str]) -> Matched:
    pairs = {seed: (ours[seed], theirs[seed]) for seed in seeds}
    first, second = pairs[seeds[0]]
    return Matched(_label(first), (first.rate, second.rate), [_change(figure, pairs) for figure in shown])


def _change(figure: str, pairs: Mapping[int | None, tuple[CellSummary, CellSummary]]) -> Change:
    values = {seed: (figure_of(one, figure), figure_of(two, figure)) for seed, (one, two) in pairs.items()}
    known = {seed: (one, two) for seed, (one, two) in values.items() if one is not None and two is not None}
    found = mean_difference([two - one for one, two in known.values()])
    ends = [_mean([pair[side] for pair in (known or values).values()]) for side in (0, 1)]
    before, after = ends
    return Change(
        figure=figure,
        before=before,
        after=after,
        difference=found.mean,
        relative=relative_change(before, after) if before and after is not None else None,
        seeds=[*known],
        interval=found.interval,
        method=found.method,
        noise=_noise(figure, found.interval, [pairs[seed] for seed in known]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _noise(figure: str, interval: Interval | None, pairs: Sequence[tuple[CellSummary, CellSummary]]) -> str:
    if interval is not None:
        return WITHIN if interval[0] <= 0 <= interval[1] else BEYOND
    if len(pairs) != 1:
        return NOT_KNOWN
    common = overlap(*(_rank_interval(cell, figure) for cell in pairs[0]))
    return {True: WITHIN, False: BEYOND, None: NOT_KNOWN}[common]


def figure_of(cell: CellSummary, figure: str) -> float | None:
    """A figure by its name, such as `ttft.p95`, `tokens_per_s` or `goodput` (a share); None if it was not measured."""
    if figure == GOODPUT:
        return None if cell.goodput is None else cell.goodput.share
    name, _, percentile = figure.partition(".")
    value: float | None = getattr(getattr(cell, name), percentile) if percentile else getattr(cell, name)
    return value


def _rank_interval(cell: CellSummary, figure: str) -> Interval | None:
    name, _, percentile = figure.partition(".")
    found: Interval | None = getattr(getattr(cell, name), f"{percentile}_interval") if percentile else None
    return found


def _outcome(gate: Gate, cell: Matched) -> GateOutcome:
    change = next(each for each in cell.changes if each.figure == gate.figure)
    failed = crossed(gate, change.before, change.after)
    state = {True: FAILED, False: HELD, None: MISSING}[failed]
    return GateOutcome(gate.text, cell.label, state, change.before, change.after, change.noise)


def _faults(who: str, run: Summary) -> list[str]:
    said = [] if run.complete else [f"{who} is incomplete: {run.reason or 'no reason known'}"]
    said += [] if run.cells else [f"{who} has no cells"]
    return said + [f"{who}: {cell.label} is INVALID" for cell in run.cells if cell.verdict == INVALID]


def _empty(cells: Sequence[Matched]) -> list[str]:
    """Of a cell in which nothing was completed there is nothing to compare."""
    return [f"{cell.label}: no request was completed in both" for cell in cells if cell.changes[0].difference is None]
