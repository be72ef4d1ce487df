"""Policies compared pair by pair on the same arrivals: how much sooner one is than another, and how sure that is."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from experiments.analysis import CellSummary
from experiments.paired import mean_difference
from experiments.statistics import Interval, Spread
from experiments.verdict import INVALID
from router.policies import POLICIES, label, written

METRICS = ("ttft.p50", "ttft.p95", "reply.p50", "reply.p95")
MEANS = ("ttft.mean", "reply.mean")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`policy` against `than` at one rate, on the arrivals of each of `seeds`, in seconds of completed requests: its
    figure minus the other's, so that less than 0 is sooner. `interval` holds the true mean with 95 % confidence, made
    by `method`, and a difference is `shown` where it leaves out 0; all None below five seeds. `uncompleted` counts the
    requests of both that no figure speaks of; at `invalid` seeds one of the two cells is an INVALID measurement."""

    rate: float | None
    metric: str
    policy: str
    than: str
    seeds: list[int]
    differences: list[float]
    mean: float | None
    interval: Interval | None
    method: str | None
    shown: bool | None
    uncompleted: int
    invalid: list[int]


def comparisons(cells: Sequence[CellSummary]) -> list[Comparison]:
    """Every pair of policies, at every rate and by every metric, over the seeds that both have served."""
    served: dict[float | None, dict[str, dict[int, CellSummary]]] = defaultdict(lambda: defaultdict(dict))
    for cell in cells:
        if cell.seed is not None:
            served[cell.rate][policy_label(cell)][cell.seed] = cell
    return [
        _compared(rate, metric, policy, than, policies)
        for rate, policies in sorted(served.items(), key=lambda item: item[0] or 0.0)
        for than, policy in combinations(sorted(policies, key=_place), 2)
        for metric in (*METRICS, *MEANS)
    ]


def policy_label(cell: CellSummary) -> str:
    """The cell's policy in one word, as `router.policies.label` writes it; of a user's own, whose defaults only its
    file knows, with every setting."""
    kind = POLICIES.get(cell.policy)
    return written(cell.policy, cell.params) if kind is None else label(kind(**cell.params))


def _place(policy: str) -> tuple[int, str]:
    name = policy.partition(":")[0]
    return [*POLICIES, name].index(name), policy


def _compared(
    rate: float | None, metric: str, policy: str, than: str, policies: Mapping[str, Mapping[int, CellSummary]]
) -> Comparison:
    seeds = sorted({*policies[policy]} & {*policies[than]})
    pairs = [(seed, policies[policy][seed], policies[than][seed]) for seed in seeds]
    both = [(seed, _figure(cell, metric), _figure(other, metric)) for seed, cell, other in pairs]
    differences = {seed: ours - theirs for seed, ours, theirs in both if ours is not None and theirs is not None}
    found = mean_difference([*differences.values()])
    return Comparison(
        rate=rate,
        metric=metric,
        policy=policy,
        than=than,
        seeds=[*differences],
        differences=[*differences.values()],
        mean=found.mean,
        interval=found.interval,
        method=found.method,
        shown=None if found.interval is None else not found.interval[0] <= 0 <= found.interval[1],
        uncompleted=sum(each.requests - each.completed for _, *pair in pairs for each in pair),
        invalid=[seed for seed, *pair in pairs if any(each.verdict == INVALID for each in pair)],
    )


def _figure(cell: CellSummary, metric: str) -> float | None:
    name, _, percentile = metric.partition(".")
    spread: Spread = getattr(cell, name)
    value: float | None = getattr(spread, percentile)
    return value
