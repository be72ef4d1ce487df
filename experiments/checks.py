"""Every check of the instrument: what of a cell it looks at, with its number, its limit, and a reason in words."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from experiments.analysis import LATE_NS, CellRecords, CellSummary
from experiments.fit import durations
from experiments.hosts import shares_host
from experiments.load_state import left_queue
from experiments.thresholds import Thresholds
from protocol.clock import seconds
from protocol.records import ClockRecord, RequestRecord

OK, UNKNOWN = "ok", "not measured"
YES = "yes or no"
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One check: `level` is "ok", "suspect", "invalid" or "not measured"; `value` and `limit` are in `unit`: "count",
    "share" (of one), "s", "bytes", or "yes or no" (1 or 0); `words` is the reason for a lower verdict, else empty."""

    name: str
    level: str
    value: float | None
    limit: float | None
    unit: str
    words: str


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the records of a cell do not hold: why it was cut short, if the run knows; whether the machine ran on
    battery when the run began, and when it ended; how far a cell repeated at the end of the run was from the first
    (see `Summary.drift`)."""

    cut_short: str | None = None
    on_battery: bool | None = None
    on_battery_at_end: bool | None = None
    drift: Mapping[str, Any] | None = None


ORDINARY = Circumstances()


@dataclass(frozen=True, slots=True)
class Case:
    """All that a check looks at."""

    cell: CellRecords
    figures: CellSummary
    around: Circumstances
    limits: Thresholds


# --- the whole cell, and all its requests ---


def _whole(case: Case) -> Check:
    """The router was there to the end, and so were the worker and all clients."""
    cell, missing = case.cell, 0
    if cell.router is None:
        return _check("cut short", 1, YES, "the router's records are missing, or cannot be read", invalid=0)
    if cell.queue is not None:
        missing = cell.router.clients - len(cell.clients)
    cut = cell.queue is None or cell.queue.cut_short is not None or missing > 0
    known = case.around.cut_short or (cell.queue.cut_short if cell.queue else "the router left no word of its end")
    why = known or f"{missing} of {cell.router.clients} clients left no record"
    return _check("cut short", int(cut), YES, f"the run was cut short: {why}", invalid=0)


def _unsent(case: Case) -> Check:
    unsent, offered = max(0, case.figures.unsent), case.figures.requests
    words = f"{unsent} of {_count(offered, 'request')} {_were(unsent)} never sent"
    return _check("never sent", unsent, "count", words, invalid=0)


def _lost(case: Case) -> Check:
    """Who was sent and never came, came and was never sent, or was answered without having been served."""
    kinds = {
        "{} lost on the way": len(_lost_on_the_way(case.cell)),
        "{} received by the router and accounted for by no client": sum(
            r.received is not None and r.sent is None for r in case.cell.requests
        ),
        "{} completed without a word of the worker": _unserved(case.cell),
    }
    said = [what.format(f"{_count(n, 'request')} {_were(n)}") for what, n in kinds.items() if n]
    return _check("lost", sum(kinds.values()), "count", ", ".join(said), invalid=0)


def _lost_on_the_way(cell: CellRecords) -> list[RequestRecord]:
    if cell.router is None:
        return []
    return [r for r in cell.requests if r.sent is not None and r.received is None and r.end != "rejected"]


def _unserved(cell: CellRecords) -> int:
    return 0 if cell.worker is None else sum(r.end == "completed" and r.started is None for r in cell.requests)


def _unfinished(case: Case) -> Check:
    lost = {r.id for r in _lost_on_the_way(case.cell)}
    sent = [r for r in case.cell.requests if (r.sent is not None or r.received is not None) and r.id not in lost]
    count = sum((r.end or "unfinished") == "unfinished" for r in sent)
    words = f"{_count(count, 'request')} {_were(count)} unfinished when the cell ended"
    return _check("unfinished", count, "count", words, invalid=0)


def _conservation(case: Case) -> Check:
    """Each client, and all of them: every request planned once, and every one that was sent has its end."""
    clients, requests = case.cell.clients, {r.id: r for r in case.cell.requests}
    if not clients:
        return _unknown("conservation")
    wrong, said = 0, []
    for client in clients:
        sent = [requests[id] for id in client.ids if id in requests and requests[id].sent is not None]
        ended = sum(r.end is not None for r in sent)
        if ended != len(sent):
            wrong += len(sent) - ended
            said.append(f"client-{client.index} sent {_count(len(sent), 'request')}, and {ended} ended")
    planned = Counter(id for client in clients for id in client.ids)
    strange = sum(planned[id] != 1 for id in {*planned, *requests})
    if strange:
        said.append(f"{_count(strange, 'request')} {_were(strange)} in no client's plan, or in two")
    if len(clients) == clients[0].of and len(planned) != case.figures.requests:
        wrong += abs(len(planned) - case.figures.requests)
        said.append(f"the clients planned {len(planned)} of {_count(case.figures.requests, 'request')}")
    return _check("conservation", wrong + strange, "count", ", ".join(said), invalid=0)


# --- sending ---


def _late(case: Case) -> Check:
    """Of requests that are all due at once nearly every one must be late: each waits for those before it."""
    figures, limits = case.figures, case.limits
    if not figures.sent or any(client.plan.get("arrivals") == "at-once" for client in case.cell.clients):
        return _unknown("late sends", "share")
    suspect = max(limits.late_suspect, limits.late_forgiven / figures.sent)
    return _check(
        "late sends",
        figures.late / figures.sent,
        "share",
        _late_words(case),
        suspect,
        max(suspect, limits.late_invalid),
    )


def _worst_lag(case: Case) -> Check:
    worst, limits = case.figures.send_lag.max, case.limits
    return _check("worst send lag", worst, "s", _late_words(case), limits.lag_suspect, limits.lag_invalid)


def _late_words(case: Case) -> str:
    """One reason for both."""
    figures = case.figures
    share, worst = figures.late / max(1, figures.sent), figures.send_lag.max or 0.0
    late = f"{_percent(share)} of the requests more than {_ms(seconds(LATE_NS))} late"
    return f"clients sent {late}, at most {_ms(worst)}"


# --- clocks and order ---


def _order(case: Case) -> Check:
    count = case.figures.order_violations
    words = f"{_count(count, 'request')} {'has' if count == 1 else 'have'} stamps out of order"
    return _check("stamps in order", count, "count", words, invalid=0)


def _clock_bound(case: Case) -> Check:
    widest = max(case.cell.clocks, key=lambda clock: clock.bound, default=None)
    if widest is None:
        return _unknown("clock bound", "s")
    bound = seconds(widest.bound)
    words = f"{widest.role}'s clock is only known to within {_ms(bound)}"
    return _check("clock bound", bound, "s", words, case.limits.clock_bound_suspect)


def _clock_offset(case: Case) -> Check:
    """The processes of one host read the same clock: an offset beyond its bound cannot be. Those of another host may
    have any."""
    worst = max(_clocks_here(case), key=lambda clock: abs(clock.offset) - clock.bound, default=None)
    if worst is None:
        return _unknown("clock offset", "s")
    offset = seconds(abs(worst.offset))
    words = f"{worst.role}'s clock is {_ms(offset)} from the router's, although they share a host"
    return _check("clock offset", offset, "s", words, invalid=seconds(worst.bound))


def _clock_moved(case: Case) -> Check:
    """Before against after the cell, on the router's host; two hosts' clocks always part a little."""
    pairs = _before_and_after(_clocks_here(case))
    worst = max(pairs, key=lambda pair: abs(pair[1].offset - pair[0].offset) - _bounds(pair), default=None)
    if worst is None:
        return _unknown("clock moved", "s")
    moved = seconds(abs(worst[1].offset - worst[0].offset))
    words = f"{worst[0].role}'s clock moved by {_ms(moved)} against the router's during the cell"
    return _check("clock moved", moved, "s", words, seconds(_bounds(worst)))


def _clocks_here(case: Case) -> list[ClockRecord]:
    return [clock for clock in case.cell.clocks if shares_host(clock, case.cell.router)]


def _bounds(pair: tuple[ClockRecord, ClockRecord]) -> int:
    return pair[0].bound + pair[1].bound


def _before_and_after(clocks: Sequence[ClockRecord]) -> list[tuple[ClockRecord, ClockRecord]]:
    """Both measurements of every role that has both."""
    found = {(clock.role, clock.when): clock for clock in clocks}
    roles = dict.fromkeys(clock.role for clock in clocks)
    return [
        (found[role, "before"], found[role, "after"])
        for role in roles
        if (role, "before") in found and (role, "after") in found
    ]


# --- the queue's own account ---


def _little(case: Case) -> Check:
    """Little's law: the number waiting, integrated over time, is the sum of all waits."""
    if case.cell.queue is None:
        return _unknown("Little's law", "share")
    area, waits = case.cell.queue.area_ns, waited(case.cell)
    difference = abs(area - waits)
    share = difference / max(area, waits) if difference > case.limits.little_forgiven else 0.0
    counted = f"the queue's length over time adds up to {seconds(area):.3g} s of waiting"
    words = f"{counted}, the waits of its requests to {seconds(waits):.3g} s"
    return _check("Little's law", share, "share", words, invalid=case.limits.little_invalid)


def waited(cell: CellRecords) -> int:
    """Nanoseconds that all requests together waited in the queue, by the records' stamps."""
    spans = [(r.received, left_queue(r)) for r in cell.requests]
    return sum(left - received for received, left in spans if received is not None and left is not None)


# --- the machine ---


def _drift(case: Case) -> Check:
    drift = case.around.drift
    if drift is None:
        return _unknown("drift", "share")
    change = drift["change"]
    took = f"took {_percent(abs(change))} {'more' if change > 0 else 'less'} time"
    words = f"the machine drifted: {drift['label']}, repeated at the end, {took}"
    return _check("drift", change, "share", words, case.limits.drift_suspect)


def _slowdown(case: Case) -> Check:
    change = slowdown(case.cell, case.limits)
    if change is None:
        return _unknown("slow-down", "share")
    how = "longer" if change > 0 else "less"
    words = f"decode steps of the second half took {_percent(abs(change))} {how} than those of the first"
    return _check("slow-down", change, "share", words, case.limits.slowdown_suspect)


def slowdown(cell: CellRecords, limits: Thresholds) -> float | None:
    """Relative change of what a decode step takes between the first and the second half of a cell's steps: the
    weighted median, over steps alike in rows and context, of the ratio of their medians. None of too few steps.

    Steps that read are left out; a step counts from the end of the one before, while the worker was busy.
    """
    timed = [(step, cost) for step, cost in durations(cell.steps) if step.decoding and not step.reading and cost > 0]
    halves: dict[tuple[int, int], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for number, (step, cost) in enumerate(timed):
        halves[step.decoding, step.context // limits.slowdown_context][2 * number >= len(timed)].append(cost)
    enough = [pair for pair in halves.values() if min(map(len, pair)) >= limits.slowdown_alike]
    alike = [pair for pair in enough if median(pair[0]) >= limits.slowdown_shortest]
    weights = [min(map(len, pair)) for pair in alike]
    if sum(weights) < limits.slowdown_steps:
        return None
    return _weighted_median([median(later) / median(first) for first, later in alike], weights) - 1


def _weighted_median(values: Sequence[float], weights: Sequence[int]) -> float:
    """The value below which half the weight lies."""
    passed = 0
    for value, weight in sorted(zip(values, weights, strict=True)):
        passed += weight
        if 2 * passed >= sum(weights):
            return value
    raise ValueError("no values")


def _swap(case: Case) -> Check:
    swapped = case.figures.swap_bytes
    return _check("swap", swapped, "bytes", f"the machine swapped {_mb(swapped)}", case.limits.swap_suspect)


def _battery(case: Case) -> Check:
    """At either end of the run: somebody may have pulled the plug, or put it in."""
    begin, end = case.around.on_battery, case.around.on_battery_at_end
    known = [each for each in (begin, end) if each is not None]
    words: dict[tuple[bool | None, bool | None], str] = {
        (False, True): "it ran on battery at the end: the power was unplugged during the run",
        (True, False): "it ran on battery at first: the power was plugged in during the run",
    }
    value = int(any(known)) if known else None
    return _check("on battery", value, YES, words.get((begin, end), "it ran on battery"), 0)


# --- the processes ---


def _growth(case: Case) -> Check:
    """Resident size at the end against that before the start, of the process that comes nearest to its limit."""
    sizes = _sizes(case.cell)
    if not sizes:
        return _unknown("memory growth", "bytes")
    limits = dict.fromkeys(sizes, case.limits.growth_suspect)
    limits["router"] = case.limits.growth_suspect + case.limits.growth_token * _tokens_waiting(case.cell)
    grown = {role: max(0, after - before) for role, (before, after) in sizes.items()}
    role = max(grown, key=lambda role: grown[role] - limits[role])
    words = f"{role} grew by {_mb(grown[role])} during the cell"
    return _check("memory growth", grown[role], "bytes", words, limits[role])


def _sizes(cell: CellRecords) -> dict[str, tuple[int, int]]:
    """Resident bytes before and after, of processes whose size says something: a model's caches are meant to grow."""
    both = _before_and_after(cell.clocks)
    pairs = {before.role: (before.resident_bytes, after.resident_bytes) for before, after in both}
    if cell.router is not None and cell.queue is not None:
        pairs["router"] = (cell.router.resident_bytes, cell.queue.resident_bytes)
    if cell.worker is not None and cell.worker.facts.get("engine") != "paced":
        pairs.pop("worker", None)
    return {
        role: (before, after) for role, (before, after) in pairs.items() if before is not None and after is not None
    }


def _tokens_waiting(cell: CellRecords) -> int:
    """Prompt tokens of the longest queue, at most."""
    longest = cell.queue.longest if cell.queue is not None else 0
    return longest * max([r.prompt_tokens or 0 for r in cell.requests], default=0)


def _bad_messages(case: Case) -> Check:
    """At the sockets of all roles; the worker's counts on from cell to cell."""
    bad = [after.bad_messages - before.bad_messages for before, after in _before_and_after(case.cell.clocks)]
    bad += [case.cell.queue.bad_messages] if case.cell.queue else []
    words = f"{_count(sum(bad), 'message')} could not be read"
    return _check("bad messages", sum(bad) if bad else None, "count", words, 0)


def _blas(case: Case) -> Check:
    if case.cell.worker is None:
        return _unknown("BLAS warning", YES)
    warning = case.cell.worker.facts.get("blas_warning")
    return _check("BLAS warning", int(bool(warning)), YES, f"the worker warned: {warning}", 0)


def _clamped(case: Case) -> Check:
    worker = case.cell.worker
    clamped = worker.facts.get("clamped_steps") if worker is not None else None
    if worker is None or clamped is None or not worker.steps:
        return _unknown("clamped steps", "share")
    words = f"the cost profile does not reach {clamped} of {_count(worker.steps, 'step')}"
    return _check("clamped steps", clamped / worker.steps, "share", words, case.limits.clamped_suspect)


def _paced(case: Case) -> Check:
    """Of a profile that costs nothing there is no time to keep."""
    facts = case.cell.worker.facts if case.cell.worker is not None else {}
    profile_s, took_s = facts.get("profile_s"), facts.get("took_s")
    if not profile_s or took_s is None:
        return _unknown("paced steps", "share")
    longer = max(0.0, took_s / profile_s - 1)
    words = f"the paced engine's steps took {_percent(longer)} longer than its profile says"
    return _check("paced steps", longer, "share", words, case.limits.paced_suspect)


CHECKS: tuple[Callable[[Case], Check], ...] = (
    _whole, _unsent, _lost, _unfinished, _conservation, _late, _worst_lag, _order, _clock_bound, _clock_offset,
    _clock_moved, _little, _drift, _slowdown, _swap, _battery, _growth, _bad_messages, _blas, _clamped,
    _paced,
)  # fmt: skip


# --- words ---


def _check(
    name: str, value: float | None, unit: str, words: str, suspect: float | None = None, invalid: float | None = None
) -> Check:
    limit = invalid if suspect is None else suspect
    if value is None:
        return Check(name, UNKNOWN, None, limit, unit, "")
    bad, doubtful = (bound is not None and abs(value) > bound for bound in (invalid, suspect))
    level = "invalid" if bad else "suspect" if doubtful else OK
    return Check(name, level, value, limit, unit, "" if level == OK else words)


def _unknown(name: str, unit: str = "count") -> Check:
    return Check(name, UNKNOWN, None, None, unit, "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def in_unit(value: float, unit: str) -> str:
    """A check's number as people read it."""
    match unit:
        case "share":
            return _percent(value)
        case "s":
            return _ms(value)
        case "bytes":
            return _mb(value)
        case "yes or no":
            return "yes" if value else "no"
        case _:
            return f"{value:g}"


def _percent(share: float) -> str:
    return f"{_short(100 * share)} %"


def _ms(value: float) -> str:
    return f"{_short(1e3 * value)} ms"


def _mb(value: float | None) -> str:
    return f"{_short((value or 0) / MB)} MB"


def _short(value: float) -> str:
    """Two or three digits that matter, and whole numbers from ten on."""
    digits = 0 if abs(value) >= 9.95 else 2 if abs(value) >= 0.0995 else 3
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
