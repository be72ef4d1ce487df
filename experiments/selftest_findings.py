"""What a self-test found: one line a property of the instrument, with its number, its goal, and whether it is met."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console

from clients.arrivals import ArrivalPlan, arrival_times
from experiments.analysis import CellRecords
from experiments.planned import Planned, planned
from experiments.selftest import BUSY, IDLE, KNOWN, MOST, RATE, RELAY
from experiments.statistics import nearest_rank
from experiments.tables import MISSING, plain_table
from protocol.clock import seconds
from protocol.records import ClientRecord, RequestRecord

FIT_WINDOW = 10
# What a Kolmogorov-Smirnov statistic, and either side of a normal one, exceed once in a thousand.
KS_999, Z_999 = 1.95, 3.29


@dataclass(frozen=True, slots=True)
class Property:
    """`value` in `unit`; `goal` None where there is none, and `passed` None where there is no goal or no value."""

    name: str
    value: float | None
    unit: str
    goal: float | None = None
    at_least: bool = False

    @property
    def passed(self) -> bool | None:
        if self.value is None or self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def findings(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any]:
    """`properties`, and `passed`: None if one could not be measured."""
    plan = {each.name: each for each in planned(manifest, cells)}
    found = [*_lags(plan), *_clocks(plan), *_floor(plan), *_known(plan), *_arrivals(plan)]
    with_goal = [each.passed for each in found if each.goal is not None]
    return {
        "properties": [asdict(each) | {"passed": each.passed} for each in found],
        "passed": None if None in with_goal else all(with_goal),
        "lost": {each.label: each.lost for each in plan.values() if each.lost},
    }


# --- the properties ---


def _lags(plan: Mapping[str, Planned]) -> list[Property]:
    found = []
    for name, words in ((IDLE, "idle"), (BUSY, "every core busy")):
        wakes = [seconds(client.wake_lag_ns or 0) * 1e3 for client in plan[name].cell.clients]
        lags = _between(plan[name].done, "intended", "sent")
        found += [
            Property(f"wake-up lag p99, {words}", max(wakes, default=None), "ms", 0.5),
            Property(f"send lag p99, {words}", _rank(lags, 0.99), "ms", 0.1),
            Property(f"send lag max, {words}", max(lags, default=None), "ms", 10.0),
        ]
    return found


def _clocks(plan: Mapping[str, Planned]) -> list[Property]:
    clocks = [clock for each in plan.values() for clock in each.cell.clocks]
    outside = [max(0.0, seconds(abs(clock.offset) - clock.bound) * 1e3) for clock in clocks]
    return [
        Property("clocks apart, beyond what pings bound", max(outside, default=None), "ms", 0.0),
        Property("what pings bound", max((seconds(clock.bound) * 1e3 for clock in clocks), default=None), "ms", 1.0),
    ]


def _floor(plan: Mapping[str, Planned]) -> list[Property]:
    trips = _between(plan[IDLE].done, "sent", "first_received")
    most, relay = plan[MOST].figures, plan[RELAY].figures
    return [
        Property("round trip p50, 200/s", _rank(trips, 0.5), "ms", 0.5),
        Property("round trip p99, 200/s", _rank(trips, 0.99), "ms", 2.0),
        Property("requests a second, all at once", most.completed / most.done_s if most.done_s else None, "/s"),
        Property("relayed tokens a second, 32 streams", relay.tokens_per_s, "/s", 150_000, at_least=True),
    ]


def _known(plan: Mapping[str, Planned]) -> list[Property]:
    known = plan[KNOWN]
    asked = known.cell.clients[0] if known.cell.clients else None
    whole = asked is not None and len(known.done) == asked.requests
    arrivals = arrival_times(_offered(asked), asked.requests) if asked is not None and whole else ()
    away = away_from_lindley([seconds(at) for at in arrivals], known.done, _wire_s(plan[IDLE].done))
    return [Property("mean wait, away from Lindley's", None if away is None else 100 * away, "%", 3.0)]


def _offered(client: ClientRecord) -> ArrivalPlan:
    return ArrivalPlan(client.plan["arrivals"], client.plan["rate"], client.plan["seed"])


def _wire_s(done: Sequence[RequestRecord]) -> float:
    """Mean seconds that a request and its first word are on the way between client and router."""
    there, back = _durations(done, "sent", "received"), _durations(done, "ended", "first_received")
    return fmean(there) + fmean(back) if there and back else 0.0


def away_from_lindley(arrivals: Sequence[float], done: Sequence[RequestRecord], wire_s: float = 0.0) -> float | None:
    """How far the mean wait of requests that were served one at a time, as their customers saw it, is from that of
    Lindley's recursion, as a share of it; `arrivals` are their scheduled times in seconds, by id. None where there is
    nothing to compare.

    Two accounts that share nothing but how long each request held the seat, from its admission until the router knew
    the seat free. The recursion has the schedule beside it, which existed before the run; the customers' waits are by
    their clients' clocks: from the intended time to the first word, less the time in the seat and what the wire took
    in another cell. So a router that holds its queue, lets two in at once or stamps an admission late parts them, and
    so do late clients and late words. A service counted to the next admission itself would let a router that dawdles
    explain its own waits.
    """
    services, replies = _durations(done, "admitted", "ended"), _durations(done, "intended", "first_received")
    if not len(services) == len(replies) == len(arrivals):
        return None
    expected = sum(lindley(arrivals, services))
    waited = sum(replies) - sum(services) - len(replies) * wire_s
    return abs(waited / expected - 1) if expected else None


def _durations(done: Sequence[RequestRecord], begin: str, end: str) -> list[float]:
    """Seconds, in the order of the schedule."""
    pairs = [(getattr(r, begin), getattr(r, end)) for r in sorted(done, key=lambda request: request.id)]
    return [seconds(b - a) for a, b in pairs if a is not None and b is not None]


def lindley(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """Waits in a queue with one server: w' = max(0, w + service - gap), from arrivals in seconds, ascending."""
    waits = [0.0] if arrivals else []
    for (before, after), service in zip(pairwise(arrivals), services, strict=False):
        waits.append(max(0.0, waits[-1] + service - (after - before)))
    return waits


def _arrivals(plan: Mapping[str, Planned]) -> list[Property]:
    """Of what all clients together sent, as it came to the router, on arrivals that were drawn for this self-test. Of
    clients that send what they should, each property misses its goal about once in a thousand self-tests."""
    times = sorted(seconds(r.received) for r in plan[IDLE].cell.requests if r.received is not None)
    enough = len(times) > 1 and (times[-1] - times[0]) * RATE > 4 * FIT_WINDOW
    distance, dispersion, windows = poisson_fit(times, RATE) if enough else (None, None, 2)
    spread = Z_999 * math.sqrt(2 / (windows - 1))
    return [
        Property("arrivals away from Exp(rate) (KS)", distance, "", KS_999),
        Property("index of dispersion, away from 1", None if dispersion is None else abs(dispersion - 1), "", spread),
    ]


def poisson_fit(times: Sequence[float], rate: float) -> tuple[float, float, int]:
    """Arrivals in ascending seconds against a Poisson process of this rate: the Kolmogorov-Smirnov distance of their
    gaps from exponential ones times the root of their number, and the index of dispersion of their counts in so many
    windows, of ten arrivals each on average."""
    since = (np.array(times[1:]) - times[0]) * rate
    expected = 1 - np.exp(-np.sort(np.diff(since, prepend=0.0)))
    n = len(expected)
    distance = np.max(np.abs(expected - (np.arange(n) + 0.5) / n)) + 0.5 / n
    counts = np.bincount(since.astype(int) // FIT_WINDOW)[:-1]
    return float(distance * math.sqrt(n)), float(np.var(counts, ddof=1) / np.mean(counts)), len(counts)


def _between(done: Sequence[RequestRecord], begin: str, end: str) -> list[float]:
    """Milliseconds, ascending."""
    return sorted(1e3 * duration for duration in _durations(done, begin, end))


def _rank(ranked: Sequence[float], q: float) -> float | None:
    return nearest_rank(ranked, q) if ranked else None


# --- in words ---


def show(console: Console, found: Mapping[str, Any]) -> None:
    """One table: pass or fail with the number and the goal."""
    table = plain_table("The instrument on this machine")
    table.add_column("")
    for name in ("measured", "goal", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found["properties"]:
        goal = "" if each["goal"] is None else f"{'>=' if each['at_least'] else '<='} {_number(each['goal'])}"
        verdict = {True: "pass", False: "FAIL", None: "" if each["goal"] is None else "not measured"}[each["passed"]]
        value = MISSING if each["value"] is None else f"{_number(each['value'])} {each['unit']}".strip()
        table.add_row(each["name"], value, goal, verdict)
    console.print(table)
    for label, reason in found["lost"].items():
        console.print(f"{label}: {reason}", soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def show_study(console: Console, found: Mapping[str, Any]) -> None:
    """The study did not measure its instrument."""
    console.print("The study says nothing of its instrument.")
