"""What a self-test found: one line a property of the instrument, with its number, its goal, and whether it is met."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Console

from clients.arrivals import poisson
from experiments.analysis import CellRecords
from experiments.planned import Planned, planned
from experiments.selftest import BUSY, IDLE, KNOWN, MOST, RELAY
from experiments.statistics import nearest_rank
from experiments.tables import MISSING, plain_table
from protocol.clock import seconds
from protocol.records import RequestRecord

FIT_SEEDS, FIT_ARRIVALS = 20, 1_000


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
    found = [*_lags(plan), *_clocks(plan), *_floor(plan), *_known(plan), *_arrivals()]
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
    """Mean wait of one at a time against Lindley's recursion on the same arrivals and measured services."""
    done = sorted(plan[KNOWN].done, key=lambda request: request.received or 0)
    if len(done) < 2 or any(r.received is None or r.admitted is None or r.ended is None for r in done):
        return [Property("mean wait, away from Lindley's", None, "%", 3.0)]
    waits = [seconds((r.admitted or 0) - (r.received or 0)) for r in done]
    expected = lindley(
        [seconds(r.received or 0) for r in done], [seconds((r.ended or 0) - (r.admitted or 0)) for r in done]
    )
    mean, truth = sum(waits), sum(expected)
    return [Property("mean wait, away from Lindley's", 100 * abs(mean / truth - 1) if truth else None, "%", 3.0)]


def lindley(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """Waits in a queue with one server: w' = max(0, w + service - gap), from arrivals in seconds, ascending."""
    waits = [0.0]
    for (before, after), service in zip(pairwise(arrivals), services, strict=False):
        waits.append(max(0.0, waits[-1] + service - (after - before)))
    return waits


def _arrivals() -> list[Property]:
    """Of seeded schedules, all together: the distance of gaps from exponential ones, and the index of dispersion."""
    gaps = np.concatenate([_gaps(seed) for seed in range(FIT_SEEDS)])
    n = len(gaps)
    expected = 1 - np.exp(-np.sort(gaps))
    distance = float(np.max(np.abs(expected - (np.arange(1, n + 1) - 0.5) / n)) + 0.5 / n)
    per_window = [np.bincount(np.cumsum(_gaps(seed)).astype(int) // 10)[:-1] for seed in range(FIT_SEEDS)]
    counts = np.concatenate(per_window)
    dispersion = float(np.var(counts, ddof=1) / np.mean(counts))
    spread = 2.576 * float(np.sqrt(2 / (len(counts) - 1)))
    return [
        Property("arrivals away from Exp(rate) (KS)", distance * float(np.sqrt(n)), "", 1.63),
        Property("index of dispersion, away from 1", abs(dispersion - 1), "", spread),
    ]


def _gaps(seed: int) -> Any:
    return np.diff(np.array([0, *poisson(FIT_ARRIVALS, 1.0, seed)])) / 1e9


def _between(done: Sequence[RequestRecord], begin: str, end: str) -> list[float]:
    """Milliseconds, ascending."""
    pairs = [(getattr(request, begin), getattr(request, end)) for request in done]
    return sorted(seconds(b - a) * 1e3 for a, b in pairs if a is not None and b is not None)


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
