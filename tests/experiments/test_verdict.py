"""Every check of the instrument, at its limit and beyond, and what a verdict is made of."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.arrivals import poisson
from experiments.analysis import CellRecords, by_cell, summarise
from experiments.checks import CHECKS, Check, Circumstances, in_unit, slowdown, waited
from experiments.run_folder import build_summary
from experiments.thresholds import THRESHOLDS
from experiments.verdict import INVALID, SUSPECT, VALID, Verdict, circumstances, judge, judged
from protocol.clock import MS, SECOND
from protocol.records import (
    CellRecord,
    ClientRecord,
    ClockRecord,
    QueueRecord,
    RequestRecord,
    RouterRecord,
    StepRecord,
)
from tests.virtual import VirtualRush

CELL = "c01"
FACTS = {"engine": "paced", "clamped_steps": 0, "profile_s": 10.0, "took_s": 10.1}
REQUESTS = 40
KNOWN = Circumstances(on_battery=False)


def request(id: int, **changes: Any) -> RequestRecord:
    """One of a second's life, merged from all roles; they wait half a second each."""
    begin = id * 2 * SECOND
    life = {
        "intended": begin,
        "sent": begin + 10,
        "received": begin + 20,
        "admitted": begin + 20 + SECOND // 2,
        "started": begin + 30 + SECOND // 2,
        "first_token": begin + 40 + SECOND // 2,
        "last_token": begin + 50 + SECOND // 2,
        "ended": begin + SECOND,
        "first_received": begin + 60 + SECOND // 2,
        "last_received": begin + SECOND,
    }
    return RequestRecord(CELL, id, **({**life, "end": "completed", "messages": (), "tokens": (1, 2)} | changes))


def clock(role: str, when: str, offset: int = 0, bound: int = 50_000, bad: int = 0, size: int = 0) -> ClockRecord:
    return ClockRecord(CELL, role, when, offset, bound, bad, size)


def client(index: int, of: int = 2, requests: int = REQUESTS) -> ClientRecord:
    ids = tuple(range(index, requests, of))
    return ClientRecord(CELL, index, of, requests, 0, 0, {}, ids, tuple(id * 2 * SECOND for id in ids))


def sound() -> CellRecords:
    """A cell of two clients with nothing to say against."""
    roles = ("client-0", "client-1", "worker")
    return CellRecords(
        router=RouterRecord(CELL, "one", {}, 4096, None, 2, "run", {"label": "one at 1/s"}, resident_bytes=0),
        queue=QueueRecord(CELL, REQUESTS * SECOND // 2, 1, 0, None, 0),
        clients=[client(0), client(1)],
        worker=CellRecord(CELL, 10, None, 0, 0, FACTS),
        clocks=[clock(role, when) for role in roles for when in ("before", "after")],
        requests=[request(id) for id in range(REQUESTS)],
    )


def verdict_of(cell: CellRecords, around: Circumstances = KNOWN) -> Verdict:
    return judge(cell, summarise(CELL, cell), around)


def with_request(id: int, **changes: Any) -> CellRecords:
    cell = sound()
    cell.requests[id] = replace(cell.requests[id], **changes)
    return cell


def with_clock(role: str, when: str, **changes: Any) -> CellRecords:
    cell = sound()
    cell.clocks = [replace(c, **changes) if (c.role, c.when) == (role, when) else c for c in cell.clocks]
    return cell


def test_nothing_to_say_against() -> None:
    verdict = verdict_of(sound(), Circumstances(on_battery=False, drift={"label": "x", "change": 0.01}))
    assert (verdict.verdict, verdict.reasons) == (VALID, [])
    assert {check.level for check in verdict.checks if check.name != "slow-down"} == {"ok"}
    assert all(not check.words for check in verdict.checks)
    assert len({check.name for check in verdict.checks}) == len(CHECKS)


def late(*lags: float) -> CellRecords:
    """The first requests were sent so many nanoseconds after their time."""
    cell = sound()
    for id, lag in enumerate(lags):
        sent = id * 2 * SECOND + round(lag)
        cell.requests[id] = replace(cell.requests[id], sent=sent, received=sent + 10)
    return cell


def without(**parts: Any) -> CellRecords:
    return replace(sound(), **parts)


def gone(id: int) -> CellRecords:
    return without(requests=[r for r in sound().requests if r.id != id])


FAULTS: dict[str, tuple[Callable[[], CellRecords], str, str]] = {
    "never sent": (lambda: gone(3), INVALID, "1 of 40 requests was never sent"),
    "lost on the way": (
        lambda: with_request(
            2, received=None, admitted=None, started=None, first_token=None, last_token=None, ended=None,
            first_received=None, last_received=None, end="unfinished", detail="lost on the way",
        ),
        INVALID,
        "1 request was lost on the way",
    ),
    "its client died": (
        lambda: with_request(1, intended=None, sent=None, first_received=None, last_received=None),
        INVALID,
        "1 request was received by the router and accounted for by no client",
    ),
    "never served": (
        lambda: with_request(1, started=None, first_token=None, last_token=None),
        INVALID,
        "1 request was completed without a word of the worker",
    ),
    "unfinished": (lambda: with_request(0, end="unfinished"), INVALID, "1 request was unfinished when the cell ended"),
    "no end": (lambda: with_request(0, end=None), INVALID, "client-0 sent 20 requests, and 19 ended"),
    "planned twice": (
        lambda: without(clients=[client(0), replace(client(1), ids=(2, *client(1).ids))]),
        INVALID,
        "1 request was in no client's plan, or in two",
    ),
    "planned by nobody": (
        lambda: without(clients=[client(0), replace(client(1), ids=client(1).ids[1:])]),
        INVALID,
        "1 request was in no client's plan, or in two, the clients planned 39 of 40 requests",
    ),
    "late": (
        lambda: late(2 * MS, 2.4 * MS),
        SUSPECT,
        "clients sent 5 % of the requests more than 1 ms late, at most 2.4 ms",
    ),
    "very late": (
        lambda: with_request(0, sent=SECOND + 1, received=SECOND + 2, admitted=SECOND + 3, started=SECOND + 4,
                             first_token=SECOND + 5, last_token=SECOND + 6, last_received=SECOND + 7,
                             ended=SECOND + 7),
        INVALID,
        "clients sent 2.5 % of the requests more than 1 ms late, at most 1000 ms",
    ),
    "order": (lambda: with_request(2, started=4 * SECOND), INVALID, "1 request has stamps out of order"),
    "bound": (
        lambda: with_clock("client-1", "after", bound=2 * MS),
        SUSPECT,
        "client-1's clock is only known to within 2 ms",
    ),
    "offset": (
        lambda: with_clock("client-0", "before", offset=-3 * MS),
        INVALID,
        "client-0's clock is 3 ms from the router's, although they share a host",
    ),
    "moved": (
        lambda: with_clock("worker", "after", offset=3 * MS),
        INVALID,
        "worker's clock moved by 3 ms against the router's during the cell",
    ),
    "Little's law": (
        lambda: without(queue=QueueRecord(CELL, REQUESTS * SECOND * 51 // 100, 1, 0, None)),
        INVALID,
        "the queue's length over time adds up to 20.4 s of waiting, the waits of its requests to 20 s",
    ),
    "swap": (
        lambda: without(worker=CellRecord(CELL, 10, None, 120_000_000, 0, FACTS)),
        SUSPECT,
        "the machine swapped 120 MB",
    ),
    "growth": (
        lambda: with_clock("client-0", "after", resident_bytes=250_000_000),
        SUSPECT,
        "client-0 grew by 250 MB during the cell",
    ),
    "the router's growth": (
        lambda: without(queue=QueueRecord(CELL, REQUESTS * SECOND // 2, 1, 0, None, 120_000_000)),
        SUSPECT,
        "router grew by 120 MB during the cell",
    ),
    "the paced engine is late": (
        lambda: without(worker=CellRecord(CELL, 10, None, 0, 0, {**FACTS, "took_s": 10.6})),
        SUSPECT,
        "the paced engine's steps took 6 % longer than its profile says",
    ),
    "bad at the worker": (
        lambda: with_clock("worker", "after", bad_messages=2),
        SUSPECT,
        "2 messages could not be read",
    ),
    "bad at the router": (
        lambda: without(queue=replace(sound().queue or QueueRecord(CELL, 0, 0, 0, None), bad_messages=1)),
        SUSPECT,
        "1 message could not be read",
    ),
    "BLAS": (
        lambda: without(worker=CellRecord(CELL, 10, None, 0, 0, {"blas_warning": "an old core"})),
        SUSPECT,
        "the worker warned: an old core",
    ),
    "clamped": (
        lambda: without(worker=CellRecord(CELL, 10, None, 0, 0, {**FACTS, "clamped_steps": 3})),
        SUSPECT,
        "the cost profile does not reach 3 of 10 steps",
    ),
    "no word of the end": (
        lambda: without(queue=None),
        INVALID,
        "the run was cut short: the router left no word of its end",
    ),
    "the worker was lost": (
        lambda: without(queue=QueueRecord(CELL, REQUESTS * SECOND // 2, 1, 0, "the worker is gone")),
        INVALID,
        "the run was cut short: the worker is gone",
    ),
    "a client is missing": (
        lambda: without(clients=[client(0)], requests=sound().requests[::2]),
        INVALID,
        "the run was cut short: 1 of 2 clients left no record",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_number(fault: str) -> None:
    made, verdict, reason = FAULTS[fault]
    found = verdict_of(made())
    assert (found.verdict, reason in found.reasons) == (verdict, True), found.reasons
    assert all(check.words for check in found.checks if check.level in ("suspect", "invalid"))


def test_one_request_sent_a_little_late_proves_nothing() -> None:
    assert verdict_of(late(2 * MS)).verdict == VALID
    assert verdict_of(late(9 * MS)).verdict == VALID
    assert verdict_of(late(11 * MS)).verdict == SUSPECT
    assert verdict_of(late(*[2 * MS] * 11)).verdict == INVALID, "more than a quarter"


def test_requests_that_are_all_due_at_once_are_not_called_late() -> None:
    cell = late(*[2 * MS] * 11)
    cell.clients = [replace(client, plan={"arrivals": "at-once"}) for client in cell.clients]
    assert verdict_of(cell).verdict == VALID


def test_a_router_may_hold_the_prompts_of_a_long_queue() -> None:
    """A thousand who wait with 4,000 tokens each: 160 MB, beside the 100 MB that any process may grow by."""
    cell = with_request(0, prompt_tokens=4_000)
    cell.queue = QueueRecord(CELL, REQUESTS * SECOND // 2, 1_000, 0, None, 250_000_000)
    assert verdict_of(cell).verdict == VALID
    cell.queue = replace(cell.queue, resident_bytes=270_000_000)
    assert verdict_of(cell).reasons == ["router grew by 270 MB during the cell"]


def test_a_models_worker_is_meant_to_grow() -> None:
    cell = with_clock("worker", "after", resident_bytes=2_000_000_000)
    assert verdict_of(cell).reasons == ["worker grew by 2000 MB during the cell"]
    cell.worker = CellRecord(CELL, 10, None, 0, 0, {"engine": "mlx"})
    assert verdict_of(cell).verdict == VALID


@pytest.mark.parametrize(
    ("begin", "end", "reasons"),
    [
        (False, False, []),
        (None, None, []),
        (False, None, []),
        (True, True, ["it ran on battery"]),
        (True, None, ["it ran on battery"]),
        (False, True, ["it ran on battery at the end: the power was unplugged during the run"]),
        (True, False, ["it ran on battery at first: the power was plugged in during the run"]),
    ],
)
def test_the_power_at_either_end(begin: bool | None, end: bool | None, reasons: list[str]) -> None:
    known = circumstances({"machine": {"on_battery": begin}, "on_battery_at_end": end}, CELL, None)
    assert verdict_of(sound(), known).reasons == reasons


def test_what_the_run_knows_beside_the_records() -> None:
    assert verdict_of(sound(), Circumstances(on_battery=True)).reasons == ["it ran on battery"]
    slower = Circumstances(drift={"label": "one at 1/s", "change": -0.1})
    said = "the machine drifted: one at 1/s, repeated at the end, took 10 % less time"
    assert (verdict_of(sound(), slower).verdict, verdict_of(sound(), slower).reasons) == (SUSPECT, [said])
    why = circumstances({"reason": "interrupted", "machine": {"on_battery": False}, "lost": {}}, CELL, None)
    assert verdict_of(sound(), why).verdict == VALID, "this cell was over before"
    assert verdict_of(without(queue=None), why).reasons[0] == "the run was cut short: interrupted"
    lost = circumstances({"reason": "interrupted", "lost": {CELL: "no memory"}}, CELL, None)
    assert (lost.cut_short, lost.on_battery) == ("no memory", None)


def test_the_worst_reason_comes_first_and_each_once() -> None:
    cell = with_request(0, sent=20 * MS, received=21 * MS, end="unfinished")
    cell.requests[1] = replace(cell.requests[1], sent=2 * SECOND + 2 * MS, received=2 * SECOND + 3 * MS)
    verdict = verdict_of(cell)
    assert verdict.reasons == [
        "1 request was unfinished when the cell ended",
        "clients sent 5 % of the requests more than 1 ms late, at most 20 ms",
    ]
    assert [c.level for c in verdict.checks if c.name in ("late sends", "worst send lag")] == ["suspect", "suspect"]


@pytest.mark.parametrize("end", ["failed", "rejected", "cancelled"])
def test_what_became_of_requests_is_a_result_and_no_fault(end: str) -> None:
    cell = with_request(1, end=end, tokens=(), first_received=None)
    assert verdict_of(cell).verdict == VALID


def test_an_overloaded_cell_is_valid() -> None:
    rush = VirtualRush("one", poisson(40, 4.0, 12))
    rush.run()
    found = verdict_of_virtual(rush)
    assert (found.verdict, found.load_state) == (VALID, "overloaded")


def verdict_of_virtual(rush: VirtualRush) -> Verdict:
    return judge(rush.cell, summarise("virtual", rush.cell))


def test_few_requests_lower_nothing() -> None:
    rush = VirtualRush("continuous", poisson(1, 1.0, 12))
    rush.run()
    found = verdict_of_virtual(rush)
    assert (found.verdict, found.load_state) == (VALID, "not determined")


def test_what_was_not_measured_lowers_nothing() -> None:
    """Of one request and the router's two words, which no cell is without."""
    whole = sound()
    assert whole.router is not None and whole.queue is not None
    alone = request(0)
    waited = (alone.admitted or 0) - (alone.received or 0)
    words = [replace(whole.router, clients=0), replace(whole.queue, area_ns=waited)]
    bare = by_cell([alone, *words])[CELL]
    found = judge(bare, summarise(CELL, bare))
    assert found.verdict == VALID
    unknown = [check for check in found.checks if check.level == "not measured"]
    assert len(unknown) > len(CHECKS) / 2
    assert all(check.value is None for check in unknown)


def test_a_cell_without_the_routers_records_is_no_measurement() -> None:
    cell = replace(sound(), router=None, queue=None)
    found = judge(cell, summarise(CELL, cell))
    assert found.verdict == INVALID
    assert "the router's records are missing, or cannot be read" in found.reasons


# --- two hosts ---


def away(offset: int, wandered: int = 0) -> CellRecords:
    """The worker on another host, whose clock reads `offset` less than the router's, and `wandered` less afterwards."""
    cell = sound()
    stamps = ("started", "first_token", "last_token")
    cell.requests = [replace(r, **{name: getattr(r, name) - offset for name in stamps}) for r in cell.requests]
    cell.router = RouterRecord(CELL, "one", {}, 4096, None, 2, "run", {}, "here")
    cell.clocks = [replace(c, host="here") for c in cell.clocks if c.role != "worker"]
    measured = {"before": offset, "after": offset + wandered}
    cell.clocks += [replace(clock("worker", when, value), host="there") for when, value in measured.items()]
    return cell


@pytest.mark.parametrize("offset", [-7 * SECOND, 7 * SECOND])
def test_another_host_may_have_any_clock(offset: int) -> None:
    found = verdict_of(away(offset, wandered=MS))
    assert (found.verdict, found.reasons) == (VALID, [])


def test_order_is_checked_across_hosts_too() -> None:
    cell = away(7 * SECOND)
    cell.requests[0] = replace(cell.requests[0], started=(cell.requests[0].started or 0) - SECOND)
    assert verdict_of(cell).reasons == ["1 request has stamps out of order"]


def test_a_clock_far_off_on_the_same_host_is_no_other_host() -> None:
    cell = away(7 * SECOND)
    cell.clocks = [replace(c, host="here") for c in cell.clocks]
    assert "worker's clock is 7000 ms from the router's, although they share a host" in verdict_of(cell).reasons


# --- the queue's account ---


def arrivals() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 20 * SECOND), min_size=1, max_size=25).map(sorted).map(tuple)


@given(
    times=arrivals(),
    spec=st.sampled_from(["one", "static:n=3,wait=0.5", "continuous:seats=2"]),
    timeout=st.none() | st.floats(0.01, 5),
)
def test_littles_law_holds_to_the_nanosecond(times: Sequence[int], spec: str, timeout: float | None) -> None:
    """The core's integral of its queue and the sum of the records' waits are two ways to the same number."""
    rush = VirtualRush(spec, times, max_tokens=8, timeout=timeout)
    rush.run()
    assert rush.cell.queue is not None
    assert rush.cell.queue.area_ns == waited(rush.cell)
    longest = sum(r.received is not None and r.admitted != r.received for r in rush.cell.requests)
    assert rush.cell.queue.longest <= longest


def test_a_queue_of_three_adds_up() -> None:
    """One at a time, three at once: the second waits one service, the third two."""
    rush = VirtualRush("one", (0, 0, 0))
    rush.run()
    services = sorted((r.ended or 0) - (r.admitted or 0) for r in rush.cell.requests)
    assert rush.cell.queue == QueueRecord("virtual", services[0] + services[0] + services[1], 2, 0, None)


# --- slowing down ---


def steps(costs: Sequence[float], rows: int = 1, reading: int = 0, context: int = 60) -> list[StepRecord]:
    """Decode steps, one right after another."""
    made, at = [], 0
    for cost in costs:
        end = at + round(cost * SECOND)
        made.append(StepRecord(CELL, at, end, rows, reading, 0, rows, rows, context, 0))
        at = end
    return made


@pytest.mark.parametrize("change", [-0.2, -0.04, 0.0, 0.04, 0.1])
def test_a_change_halfway_is_measured(change: float) -> None:
    cell = without(steps=steps([0.01] * 50 + [0.01 * (1 + change)] * 50))
    assert slowdown(cell, THRESHOLDS) == pytest.approx(change)
    assert verdict_of(cell).verdict == (SUSPECT if abs(change) > 0.05 else VALID)


def test_the_reason_of_a_slow_down() -> None:
    slower = without(steps=steps([0.01] * 50 + [0.011] * 50))
    assert verdict_of(slower).reasons == ["decode steps of the second half took 10 % longer than those of the first"]
    faster = without(steps=steps([0.01] * 50 + [0.009] * 50))
    assert verdict_of(faster).reasons == ["decode steps of the second half took 10 % less than those of the first"]


def test_only_like_steps_are_compared() -> None:
    """More rows, a longer context and prompts to read cost more, and say nothing of the machine."""
    same = steps([0.01] * 50)
    for other in (steps([0.02] * 50, rows=2), steps([0.02] * 50, context=600), steps([0.02] * 50, reading=1)):
        assert slowdown(without(steps=[*same, *other]), THRESHOLDS) is None
    assert slowdown(without(steps=steps([0.01] * 40 + [0.011] * 38)), THRESHOLDS) is None, "too few"
    assert slowdown(without(steps=steps([0.0001] * 50 + [0.0002] * 50)), THRESHOLDS) is None, "too short"


def test_a_few_long_steps_are_no_slow_down() -> None:
    costs = [0.01] * 50 + [0.01, 0.05, 0.01, 0.01, 0.01] * 10
    assert slowdown(without(steps=steps(costs)), THRESHOLDS) == pytest.approx(0.0)


# --- words ---


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.03, "share", "3 %"),
        (0.125, "share", "12 %"),
        (0.0, "share", "0 %"),
        (0.052, "s", "52 ms"),
        (0.00012, "s", "0.12 ms"),
        (0, "s", "0 ms"),
        (120e6, "bytes", "120 MB"),
        (0, "yes or no", "no"),
        (1, "yes or no", "yes"),
        (12, "count", "12"),
    ],
)
def test_numbers_have_their_unit(value: float, unit: str, text: str) -> None:
    assert in_unit(value, unit) == text


def test_a_run_says_of_every_cell_what_it_is_worth() -> None:
    manifest = {"experiment": "rush", "complete": True, "reason": None, "machine": {"on_battery": True}, "drift": None}
    (cell,) = build_summary(manifest, {CELL: sound()}).cells
    assert (cell.verdict, cell.reasons, cell.load_state) == (SUSPECT, ["it ran on battery"], "stable")
    assert judged(cell, verdict_of(sound())).reasons == []


def test_a_check_is_plain() -> None:
    """Strict JSON: numbers, words and nulls."""
    for check in verdict_of(sound()).checks:
        assert isinstance(check, Check)
        assert check.value is None or isinstance(check.value, int | float)
