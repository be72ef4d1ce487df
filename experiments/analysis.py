"""From timing records to the figures of a run: everything that is shown is computed here, and from records alone."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.hosts import offsets, on_routers_clock, schedules_on_routers_clock, wander
from experiments.objectives import Goodput, Objective, Outcome, goodput, outcome
from experiments.statistics import Spread, spread
from protocol.clock import MS, seconds
from protocol.messages import ENDS
from protocol.records import (
    CellRecord,
    ClientRecord,
    ClockRecord,
    QueueRecord,
    RequestRecord,
    RouterRecord,
    StepRecord,
    merge,
)

LATE_NS = MS
LIFE = (
    "intended", "sent", "received", "admitted", "started", "first_token", "last_token", "last_received",
)  # fmt: skip
DURATIONS = {
    "ttft": ("intended", "first_received"),
    "writing": ("first_received", "last_received"),
    "reply": ("intended", "last_received"),
    "queue_wait": ("received", "admitted"),
}


@dataclass(frozen=True, slots=True)
class CellSummary:
    """The figures of one cell, as they stand in summary.json; seconds, tokens and bytes; None where nothing was
    measured. `ttft`, `writing`, `reply`, `queue_wait`, `tpot` and `gap` are of completed requests only. `verdict`, its
    `reasons` and `load_state` are experiments.verdict's, None until that has judged; `wrong_order` is
    experiments.guesses', None for a policy that guesses nothing."""

    label: str
    policy: str
    params: dict[str, Any]
    rate: float | None
    load: float | None
    seed: int | None
    requests: int
    sent: int
    unsent: int
    late: int
    completed: int
    rejected: int
    failed: int
    cancelled: int
    unfinished: int
    ttft: Spread
    writing: Spread
    reply: Spread
    queue_wait: Spread
    tpot: Spread
    gap: Spread
    send_lag: Spread
    service: Spread
    done_s: float | None
    tokens: int
    tokens_per_s: float | None
    prompt_tokens: int | None
    departures: list[int] | None
    peak_seats: int | None
    peak_memory_bytes: int | None
    swap_bytes: int | None
    clock_bound_s: float | None
    clock_offset_s: float | None
    order_violations: int
    verdict: str | None = None
    reasons: list[str] = field(default_factory=list)
    load_state: str | None = None
    objectives: list[Outcome] = field(default_factory=list)
    goodput: Goodput | None = None
    wrong_order: float | None = None


@dataclass(slots=True)
class CellRecords:
    """All records of one cell, by kind."""

    router: RouterRecord | None = None
    queue: QueueRecord | None = None
    clients: list[ClientRecord] = field(default_factory=list)
    worker: CellRecord | None = None
    clocks: list[ClockRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)


def by_cell(records: Iterable[Any]) -> dict[str, CellRecords]:
    """Records sorted into cells, each cell's requests merged: a client's word first, then the router's, the worker's.

    A run folder is read in the order of file names, in which clients come before routers, and those before the worker.
    """
    cells: dict[str, CellRecords] = defaultdict(CellRecords)
    requests: list[RequestRecord] = []
    for record in records:
        cell = cells[record.cell]
        match record:
            case RequestRecord():
                requests.append(record)
            case StepRecord():
                cell.steps.append(record)
            case RouterRecord():
                cell.router = record
            case QueueRecord():
                cell.queue = record
            case ClientRecord():
                cell.clients.append(record)
            case ClockRecord():
                cell.clocks.append(record)
            case CellRecord():
                cell.worker = record
    for (name, _), request in sorted(merge(requests).items()):
        cells[name].requests.append(request)
    return dict(cells)


def summarise(name: str, cell: CellRecords, objectives: Sequence[Objective] = ()) -> CellSummary:
    """The figures of one cell, and whether it kept these objectives. A request that its client could not account for,
    because the client died, counts by what the router saw of it."""
    sent = _sent(cell)
    done = [r for r in sent if r.end == "completed"]
    return CellSummary(
        **_identity(name, cell),
        **_counts(cell, sent),
        **(_latencies(sent, done) | _gap_of_steps(cell)),
        **_served(cell, sent),
        **_lasted(_on_one_clock(cell)),
        **_vitals(cell),
        **_promises(cell, sent, objectives),
    )


def _identity(name: str, cell: CellRecords) -> dict[str, Any]:
    """What was measured: from the router's head line and the clients' plan."""
    plan = cell.clients[0].plan if cell.clients else {}
    labels = cell.router.labels if cell.router else {}
    return {
        "label": labels.get("label", name),
        "policy": cell.router.policy if cell.router else "unknown",
        "params": dict(cell.router.params) if cell.router else {},
        "rate": plan.get("rate", labels.get("rate")),
        "load": labels.get("load"),
        "seed": plan.get("seed", labels.get("seed")),
    }


def _counts(cell: CellRecords, sent: Sequence[RequestRecord]) -> dict[str, Any]:
    """Every request offered, and what became of it."""
    offered = _offered(cell)
    ends = [r.end or "unfinished" for r in sent]
    late = [r for r in sent if r.sent is not None and r.intended is not None and r.sent - r.intended > LATE_NS]
    counts = {"requests": offered, "sent": len(sent), "unsent": offered - len(sent), "late": len(late)}
    return counts | {end: ends.count(end) for end in ENDS}


def _offered(cell: CellRecords) -> int:
    labels = cell.router.labels if cell.router else {}
    offered: int = cell.clients[0].requests if cell.clients else labels.get("requests", len(cell.requests))
    return offered


def _latencies(sent: Sequence[RequestRecord], done: Sequence[RequestRecord]) -> dict[str, Any]:
    """Durations by the clock of one process each; of completed requests, but for the lag of sending."""
    return {
        **{metric: _between(done, begin, end) for metric, (begin, end) in DURATIONS.items()},
        "service": _between(done, "admitted", "ended"),
        "tpot": spread([per_token for r in done if (per_token := tpot(r)) is not None]),
        "gap": spread([gap for r in done for gap in gaps(r)]),
        "send_lag": _between(sent, "intended", "sent"),
    }


def _gap_of_steps(cell: CellRecords) -> dict[str, Any]:
    """Of a simulation that kept no message the longest gap alone is known, over all its replies."""
    longest = cell.worker.facts.get("longest_gap_s") if cell.worker else None
    return {} if longest is None else {"gap": Spread(0, None, None, None, longest)}


def _served(cell: CellRecords, sent: Sequence[RequestRecord]) -> dict[str, Any]:
    """What the worker did for them."""
    return {
        "tokens": _tokens(sent),
        "prompt_tokens": sum(step.prompt_tokens for step in cell.steps) if cell.steps else None,
        "departures": departures(sent) if cell.router and cell.router.policy == "static" else None,
        "peak_seats": max((step.in_flight for step in cell.steps), default=_held(cell)),
    }


def _held(cell: CellRecords) -> int | None:
    """What the worker says of the most requests it held, where it kept no steps."""
    return cell.worker.facts.get("held") if cell.worker else None


def _lasted(cell: CellRecords) -> dict[str, Any]:
    """From the first of all clients to the last of them: of records on one clock."""
    sent = _sent(cell)
    return {"done_s": _done(cell, sent), "tokens_per_s": _tokens_per_s(cell, sent)}


def _on_one_clock(cell: CellRecords) -> CellRecords:
    """As it is, where all share a host."""
    away = offsets(cell.clocks, cell.router)
    if not away:
        return cell
    return replace(
        cell,
        clients=schedules_on_routers_clock(cell.clients, away),
        requests=on_routers_clock(cell.requests, cell.clients, away),
    )


def _sent(cell: CellRecords) -> list[RequestRecord]:
    return [r for r in cell.requests if r.sent is not None or r.received is not None]


def _tokens(sent: Sequence[RequestRecord]) -> int:
    return sum(map(written, sent))


def written(request: RequestRecord) -> int:
    """Tokens of a reply, whether or not each of them was kept."""
    return len(request.tokens or ()) if request.written is None else request.written


def _promises(cell: CellRecords, sent: Sequence[RequestRecord], objectives: Sequence[Objective]) -> dict[str, Any]:
    """What became of the objectives, over every request offered: one that was never sent failed too."""
    if not objectives:
        return {}
    rows = [[promised(request, each.metric) for each in objectives] for request in sent]
    rows += [[math.inf for _ in objectives]] * (_offered(cell) - len(sent))
    columns = zip(*rows, strict=True) if rows else [() for _ in objectives]
    return {
        "objectives": [outcome(each, column) for each, column in zip(objectives, columns, strict=True)],
        "goodput": goodput(objectives, rows, _offered_s(cell)),
    }


def promised(request: RequestRecord, metric: str) -> float | None:
    """Seconds that an objective compares with its limit: infinitely many of a request that did not complete, None of
    one that did without such a time. The `gap` of a reply is its longest."""
    if request.end != "completed":
        return math.inf
    match metric:
        case "tpot":
            return tpot(request)
        case "gap":
            return max(gaps(request), default=None)
    begin, end = (getattr(request, name) for name in DURATIONS[metric])
    return None if begin is None or end is None else seconds(end - begin)


def _offered_s(cell: CellRecords) -> float:
    """Seconds from time zero to the last intended arrival. Unlike the time to the last reply they are the same
    whatever the server does, so that failing does not make a rate higher."""
    spans = [max(c.intended) - c.zero for c in cell.clients if c.zero is not None and c.intended]
    return seconds(max(spans, default=0))


def _vitals(cell: CellRecords) -> dict[str, Any]:
    """The state of the machine and of the clocks."""
    return {
        "peak_memory_bytes": cell.worker.peak_memory_bytes if cell.worker else None,
        "swap_bytes": cell.worker.swap_bytes if cell.worker else None,
        "clock_bound_s": max((seconds(clock.bound) for clock in cell.clocks), default=None),
        "clock_offset_s": max((seconds(abs(clock.offset)) for clock in cell.clocks), default=None),
        "order_violations": _order_violations(cell),
    }


def _order_violations(cell: CellRecords) -> int:
    """Lives out of order, on the router's clock, within what is known of the others."""
    away = offsets(cell.clocks, cell.router)
    slack = clock_slack(cell.clocks) + wander(cell.clocks, away)
    return sum(violates_order(r, slack) for r in on_routers_clock(cell.requests, cell.clients, away))


def tpot(request: RequestRecord) -> float | None:
    """Time per output token: (last - first) / (tokens - 1), seconds; None for a reply of fewer than two tokens."""
    first, last, tokens = request.first_received, request.last_received, written(request)
    if first is None or last is None or tokens < 2:
        return None
    return seconds(last - first) / (tokens - 1)


def gaps(request: RequestRecord) -> list[float]:
    """Seconds between the messages of a reply that brought tokens; the wait for the first one is not among them."""
    times = [time for time, tokens in request.messages or () if tokens]
    return [seconds(after - before) for before, after in itertools.pairwise(times)]


def departures(requests: Sequence[RequestRecord]) -> list[int]:
    """How many requests each admission took, in order."""
    counts: dict[int, int] = defaultdict(int)
    for request in requests:
        if request.departure is not None:
            counts[request.departure] += 1
    return [counts[ordinal] for ordinal in sorted(counts)]


def clock_slack(clocks: Sequence[ClockRecord]) -> int:
    """Nanoseconds by which two processes' stamps may seem out of order: two bounds, as each side has its own."""
    return 2 * max((clock.bound for clock in clocks), default=0)


def violates_order(request: RequestRecord, slack: int) -> bool:
    """Whether a stamp lies before an earlier one of the request's life by more than `slack` nanoseconds."""
    stamps = [stamp for name in LIFE if (stamp := getattr(request, name)) is not None]
    return any(after < before - slack for before, after in itertools.pairwise(stamps))


def _between(requests: Sequence[RequestRecord], begin: str, end: str) -> Spread:
    pairs = [(getattr(r, begin), getattr(r, end)) for r in requests]
    return spread([seconds(b - a) for a, b in pairs if a is not None and b is not None])


def _done(cell: CellRecords, sent: Sequence[RequestRecord]) -> float | None:
    zeros = [client.zero for client in cell.clients if client.zero is not None]
    lasts = [r.last_received for r in sent if r.end == "completed" and r.last_received is not None]
    return seconds(max(lasts) - min(zeros)) if zeros and lasts else None


def _tokens_per_s(cell: CellRecords, sent: Sequence[RequestRecord]) -> float | None:
    """Tokens a second from the first intended arrival to the last token received."""
    begins = [time for client in cell.clients for time in client.intended]
    begins += [r.intended for r in sent if r.intended is not None]
    ends = [r.last_received for r in sent if r.last_received is not None]
    lasted = seconds(max(ends) - min(begins)) if begins and ends else 0.0
    return _tokens(sent) / lasted if lasted > 0 else None
