"""From records to what pictures draw: one cell's customers, seats and distributions, thinned to what an eye can tell
apart. Figures are never computed here from thinned rows."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from experiments.analysis import DURATIONS, CellRecords, CellSummary, written
from experiments.fit import PAUSE
from experiments.hosts import offsets, on_routers_clock
from experiments.load_state import left_queue
from experiments.run_folder import SIMULATED
from experiments.seeds import seeds_of
from experiments.statistics import Interval, Spread
from experiments.tables import offered, place, server
from protocol.clock import seconds
from protocol.records import RequestRecord, StepRecord

CUSTOMERS, ALL_CUSTOMERS = 150, 2_000
POINTS, ALL_POINTS = 400, 18_000
CURVE = 100
SPREAD, BUSES = 20, 200
STAMPS = (
    "intended", "sent", "received", "admitted", "started", "first_token", "last_token", "first_received",
    "last_received", "ended",
)  # fmt: skip
DIGITS = 5
CELLS_BY_LOAD = ("rush", "by-hand", SIMULATED)

Item = TypeVar("Item")
Times = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Customer:
    """One request. `stamps` by name, `waiting`, `reading` and `writing` as (begin, end): seconds from time zero on the
    router's clock, None for what it never came to. `ahead` counts who waited when it came, `seats` the fewest and the
    most requests that the worker held while it served this one."""

    id: int
    user: str | None
    end: str
    detail: str | None
    stamps: dict[str, float | None]
    waiting: Interval | None
    reading: Interval | None
    writing: Interval | None
    ahead: int | None
    seats: tuple[int, int] | None
    departure: int | None
    prompt_tokens: int | None
    reused: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Levels:
    """How many of each kind, from each time in `t` (seconds from time zero) to the next; `of` counts the times before
    they were thinned."""

    t: list[float]
    n: dict[str, list[int]]
    of: int


@dataclass(frozen=True, slots=True)
class Curve:
    """A cumulative distribution: the share of all whose time is at most `s` seconds; `spread` is of all values."""

    s: list[float]
    share: list[float]
    spread: Spread


@dataclass(frozen=True, slots=True)
class CellRows:
    """All that is drawn of one cell. `choice` is where it is found: by rate and server (and seed), or by its label;
    `until` is its last stamp, `departures` are (time, who boarded) of a static server, none where they are too many to
    draw. `window` is the time in which the drawn customers were there, where they are some in a row of far more."""

    name: str
    label: str
    server: str
    choice: dict[str, str]
    requests: int
    until: float
    window: Interval | None
    customers: list[Customer]
    queue: Levels
    seats: Levels
    departures: list[tuple[float, int]]
    ttft: Curve
    reply: Curve


def cell_rows(name: str, cell: CellRecords, figures: CellSummary, choice: dict[str, str], cells: int) -> CellRows:
    """What is drawn of one of so many cells: the more there are, the fewer customers and points each one gets."""
    away = offsets(cell.clocks, cell.router)
    requests = on_routers_clock(cell.requests, cell.clients, away)
    zero = time_zero(cell, requests, away)
    steps = worker_steps(cell.steps, away.get("worker", 0))
    points = share_of(POINTS, ALL_POINTS, cells)
    customers = drawn_customers(requests, steps, zero, share_of(CUSTOMERS, ALL_CUSTOMERS, cells))
    lives = [time for each in customers for time in each.stamps.values() if time is not None]
    queue, seats = queue_levels(requests, zero, points), seat_levels(steps, zero, points)
    in_a_row = len(requests) > SPREAD * len(customers)
    return CellRows(
        name=name,
        label=figures.label,
        server=server(figures),
        choice=choice,
        requests=len(requests),
        until=max([*lives, *queue.t], default=0.0),
        window=(min(lives), max(lives)) if in_a_row and lives else None,
        customers=customers,
        queue=queue,
        seats=seats,
        departures=bus_departures(requests, zero) if 0 < len(figures.departures or ()) <= BUSES else [],
        ttft=curve(cell.requests, "ttft", figures.ttft),
        reply=curve(cell.requests, "reply", figures.reply),
    )


def choices(experiment: str, cells: Sequence[CellSummary]) -> list[dict[str, str]]:
    """Where a reader finds each cell: by rate and server, and seed if there are several; elsewhere by its label."""
    several = seeds_of(cells) > 1
    by_load = [
        {"rate": offered(cell), "server": server(cell)} | ({"seed": str(cell.seed)} if several else {})
        for cell in cells
    ]
    unique = len({tuple(choice.values()) for choice in by_load}) == len(by_load)
    return by_load if experiment in CELLS_BY_LOAD and unique else [{"cell": cell.label} for cell in cells]


def order(cell: CellSummary) -> tuple[float, int, int]:
    """Where a cell stands among others: by rate, server and seed, as in the tables."""
    return cell.rate or 0.0, place(cell), cell.seed or 0


# --- thinning ---


def share_of(most: int, of_all: int, cells: int) -> int:
    """How many rows one of so many cells may have, so that all together stay below `of_all`."""
    return max(10, min(most, of_all // max(1, cells)))


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the items, evenly spread, the first and the last among them. `most` is 2 or more."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def envelope(values: Sequence[int], most: int) -> list[int]:
    """The places of at most so many values that keep every peak and dip in view: the smallest and the largest of each
    stretch, the first and the last value. `most` is 4 or more."""
    if len(values) <= most:
        return list(range(len(values)))
    array = np.asarray(values)
    stretches = np.array_split(np.arange(len(array)), (most - 2) // 2)
    kept = {0, len(array) - 1}
    for stretch in stretches:
        kept |= {int(stretch[array[stretch].argmin()]), int(stretch[array[stretch].argmax()])}
    return sorted(kept)


# --- customers ---


def time_zero(cell: CellRecords, requests: Sequence[RequestRecord], away: dict[str, int]) -> int:
    """The start of a cell on the router's clock; its earliest stamp where no client knows."""
    zeros = [c.zero + away.get(f"client-{c.index}", 0) for c in cell.clients if c.zero is not None]
    stamps = (time for r in requests for name in STAMPS if (time := getattr(r, name)) is not None)
    return min(zeros) if zeros else min(stamps, default=0)


def drawn_customers(requests: Sequence[RequestRecord], steps: "Steps", zero: int, most: int) -> list[Customer]:
    """The customers that are drawn, in the order in which they meant to come: evenly spread, or where all their bars
    would be too thin to see, those in the middle of the crowd, the same under every policy."""
    arrived = np.sort(np.array([r.received for r in requests if r.received is not None], dtype=np.int64))
    left = np.sort(np.array([t for r in requests if (t := left_queue(r)) is not None], dtype=np.int64))
    came = sorted(requests, key=lambda r: (r.intended or r.received or 0, r.id))
    first = (len(came) - most) // 2
    some = came[first : first + most] if len(came) > SPREAD * most else thinned(came, most)
    return [_customer(request, steps, zero, arrived, left) for request in some]


def _customer(request: RequestRecord, steps: "Steps", zero: int, arrived: Times, left: Times) -> Customer:
    parts = life_parts(request)
    served = [part for part in parts[1:] if part is not None]
    waiting, reading, writing = (None if part is None else (_s(part[0], zero), _s(part[1], zero)) for part in parts)
    stamps = {name: None if (at := getattr(request, name)) is None else _s(at, zero) for name in STAMPS}
    return Customer(
        id=request.id,
        user=request.user,
        end=request.end or "unfinished",
        detail=request.detail,
        stamps=stamps,
        waiting=waiting,
        reading=reading,
        writing=writing,
        ahead=None if request.received is None else _ahead(request.received, arrived, left),
        seats=steps.held(served[0][0], served[-1][1]) if served else None,
        departure=request.departure,
        prompt_tokens=request.prompt_tokens,
        reused=request.reused,
        tokens=written(request),
    )


def life_parts(request: RequestRecord) -> list[tuple[int, int] | None]:
    """Waiting, reading and writing, each (begin, end) in nanoseconds: every part begins where the one before ended, so
    that they add up. Where the worker left no stamp, the router's or the client's stands for it; a life that was cut
    short ends with the part that it had come to. None for what it never came to."""
    moments = [
        request.intended if request.intended is not None else request.received,
        request.started if request.started is not None else request.admitted,
        request.first_token if request.first_token is not None else request.first_received,
        request.last_token if request.last_token is not None else request.last_received,
    ]
    parts: list[tuple[int, int] | None] = []
    begin = moments[0]
    for moment in moments[1:]:
        end = moment if moment is not None else request.ended
        parts.append(None if begin is None or end is None else (begin, max(begin, end)))
        begin = None if moment is None or begin is None else max(begin, moment)
    return parts


def _ahead(at: int, arrived: Times, left: Times) -> int:
    """Who had come before and was still waiting."""
    return max(0, int(np.searchsorted(arrived, at)) - int(np.searchsorted(left, at, side="right")))


def _s(at: int, zero: int) -> float:
    return round(seconds(at - zero), DIGITS)


# --- seats over time ---


@dataclass(frozen=True, slots=True)
class Steps:
    """The worker's steps as arrays, one entry a step, nanoseconds on the router's clock."""

    begin: Times
    end: Times
    decoding: Times
    reading: Times
    in_flight: Times

    def held(self, begin: int, end: int) -> tuple[int, int] | None:
        """The fewest and the most requests held in the steps that touch this time; None where there were none."""
        first, last = int(np.searchsorted(self.end, begin, "right")), int(np.searchsorted(self.begin, end, "left"))
        held = self.in_flight[first:last]
        return (int(held.min()), int(held.max())) if len(held) else None


def worker_steps(steps: Sequence[StepRecord], away: int) -> Steps:
    """Steps in the order of time, on the clock that is `away` nanoseconds ahead."""
    ordered = sorted(steps, key=lambda step: step.begin)
    columns = [[getattr(step, name) for step in ordered] for name in Steps.__slots__]
    begin, end, *counts = (np.array(column, dtype=np.int64) for column in columns)
    return Steps(begin + away, end + away, *counts)


def queue_levels(requests: Iterable[RequestRecord], zero: int, most: int) -> Levels:
    """How many waited: one more when a request is received, one fewer when it is admitted or ends."""
    changes: dict[int, int] = defaultdict(int)
    for request in requests:
        if request.received is not None:
            changes[request.received] += 1
            if (left := left_queue(request)) is not None:
                changes[left] -= 1
    times = np.array(sorted(changes), dtype=np.int64)
    waiting = np.cumsum([changes[int(time)] for time in times]).astype(np.int64)
    return levels(times, {"waiting": waiting}, zero, most)


def seat_levels(steps: Steps, zero: int, most: int) -> Levels:
    """How many rows decoded and how many prompts were read in each step, and none in the pauses between."""
    pauses = np.flatnonzero(steps.begin[1:] - steps.end[:-1] >= PAUSE)
    idle = steps.end[[*pauses, *([-1] if len(steps.end) else [])]]
    times = np.concatenate([steps.begin, idle])
    order = np.argsort(times, kind="stable")
    nobody = np.zeros(len(idle), dtype=np.int64)
    found = {
        name: np.concatenate([counts, nobody])[order]
        for name, counts in (("decoding", steps.decoding), ("reading", steps.reading))
    }
    return levels(times[order], found, zero, most)


def levels(times: Times, counts: dict[str, Times], zero: int, most: int) -> Levels:
    """These counts where one of them changes, thinned to at most so many times."""
    table = np.array([*counts.values()])
    changed = np.ones(len(times), dtype=bool)
    changed[1:-1] = (table[:, 1:-1] != table[:, :-2]).any(axis=0)
    times, table = times[changed], table[:, changed]
    kept = envelope(table.sum(axis=0).tolist(), most)
    t = [_s(int(time), zero) for time in times[kept]]
    return Levels(t, {name: column[kept].tolist() for name, column in zip(counts, table, strict=True)}, len(times))


def bus_departures(requests: Iterable[RequestRecord], zero: int) -> list[tuple[float, int]]:
    """When each batch of a static server left, and with how many."""
    boarded: dict[int, list[int]] = defaultdict(list)
    for request in requests:
        if request.departure is not None and request.admitted is not None:
            boarded[request.departure].append(request.admitted)
    return [(_s(min(times), zero), len(times)) for _, times in sorted(boarded.items())]


# --- distributions ---


def curve(requests: Iterable[RequestRecord], metric: str, spread: Spread) -> Curve:
    """How a duration of the completed requests is distributed, by the client's own clock."""
    begin, end = DURATIONS[metric]
    pairs = [(getattr(r, begin), getattr(r, end)) for r in requests if r.end == "completed"]
    ranked = sorted(seconds(b - a) for a, b in pairs if a is not None and b is not None)
    places = thinned(range(len(ranked)), CURVE)
    shares = [round((i + 1) / len(ranked), 4) for i in places]
    return Curve([round(ranked[i], DIGITS) for i in places], shares, spread)
