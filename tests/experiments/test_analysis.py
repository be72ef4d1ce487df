"""Hand-made records, and every figure that must follow from them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from clients.sender import Reply
from experiments.analysis import (
    LATE_NS,
    CellSummary,
    by_cell,
    clock_slack,
    departures,
    gaps,
    summarise,
    tpot,
    violates_order,
)
from experiments.statistics import Spread
from protocol.clock import MS, SECOND
from protocol.messages import Row
from protocol.records import CellRecord, ClientRecord, ClockRecord, RequestRecord, RouterRecord, StepRecord

CELL = "c01"
ZERO = 1_000 * SECOND
NOTHING = Spread(0, None, None, None, None)


def at(seconds: float) -> int:
    """A stamp, counted from the schedule's time zero."""
    return ZERO + round(seconds * SECOND)


def every(value: float, n: int = 1) -> Spread:
    """The spread of equal values."""
    return Spread(n, *[pytest.approx(value)] * 4, mean=pytest.approx(value))


def router(policy: str = "one", **labels: Any) -> RouterRecord:
    return RouterRecord(CELL, policy, {"n": 8}, 4096, None, 1, "run", labels)


def client(requests: int, index: int = 0, of: int = 1, zero: int | None = ZERO) -> ClientRecord:
    plan = {"rate": 4.0, "seed": 12}
    return ClientRecord(CELL, index, of, requests, zero, 0, plan, tuple(range(index, requests, of)), ())


def replied(
    id: int, intended: float, first: float, last: float, tokens: int, sent_late: int = 0, **more: Any
) -> RequestRecord:
    """What a client keeps of a completed reply: one message a token, evenly spaced."""
    gap = (last - first) / max(1, tokens - 1)
    return RequestRecord(
        CELL,
        id,
        intended=at(intended),
        sent=at(intended) + sent_late,
        first_received=at(first),
        last_received=at(last),
        messages=tuple((at(first + n * gap), 1) for n in range(tokens)),
        tokens=tuple(range(tokens)),
        text="words",
        **({"end": "completed", "finish": "length"} | more),
    )


def passed(id: int, received: float, admitted: float | None, ended: float, end: str, **more: Any) -> RequestRecord:
    """What the router keeps of a request."""
    stamps = {"received": at(received), "admitted": None if admitted is None else at(admitted), "ended": at(ended)}
    return RequestRecord(CELL, id, user=f"user-{id}", prompt_tokens=60, max_tokens=128, end=end, **stamps, **more)


def figures(*records: Any) -> CellSummary:
    return summarise(CELL, by_cell(records)[CELL])


def test_every_figure_of_a_small_cell() -> None:
    """Two replies of 5 tokens: first words after 1 and 3 s, 2 s of writing, the second sent 2 ms late."""
    cell = figures(
        client(2),
        replied(0, 1.0, 2.0, 4.0, 5, sent_late=MS),
        replied(1, 2.0, 5.0, 7.0, 5, sent_late=2 * MS),
        ClockRecord(CELL, "client-0", "before", -2_000, 3_000, 0, None),
        ClockRecord(CELL, "client-0", "after", 1_000, 4_000, 0, None),
        router("static", label="static at 4/s", rate=4.0, load=4.0, seed=12, requests=2),
        passed(0, 1.01, 1.5, 4.5, "completed", departure=0, finish="length"),
        passed(1, 2.01, 4.01, 8.01, "completed", departure=1, finish="length"),
        StepRecord(CELL, at(1), at(2), 0, 1, 59, 0, 1, 60, 59),
        StepRecord(CELL, at(2), at(3), 1, 1, 61, 1, 2, 61, 61),
        CellRecord(CELL, 2, 1_000, 7, 500, {}),
    )
    assert cell == CellSummary(
        label="static at 4/s",
        policy="static",
        params={"n": 8},
        rate=4.0,
        load=4.0,
        seed=12,
        requests=2,
        sent=2,
        unsent=0,
        late=1,
        completed=2,
        rejected=0,
        failed=0,
        cancelled=0,
        unfinished=0,
        ttft=Spread(2, 1.0, 3.0, 3.0, 3.0, mean=2.0),
        writing=every(2.0, 2),
        reply=Spread(2, 3.0, 5.0, 5.0, 5.0, mean=4.0),
        queue_wait=Spread(2, 0.49, 2.0, 2.0, 2.0, mean=pytest.approx(1.245)),
        tpot=every(0.5, 2),
        gap=replace(every(0.5, 8), p50_interval=(0.5, 0.5)),
        send_lag=Spread(2, 0.001, 0.002, 0.002, 0.002, mean=pytest.approx(0.0015)),
        service=Spread(2, 3.0, 4.0, 4.0, 4.0, mean=3.5),
        done_s=7.0,
        tokens=10,
        tokens_per_s=pytest.approx(10 / 6.0),
        prompt_tokens=120,
        departures=[1, 1],
        peak_seats=2,
        peak_memory_bytes=1_000,
        swap_bytes=7,
        clock_bound_s=4e-6,
        clock_offset_s=2e-6,
        order_violations=0,
    )


def test_what_was_not_measured_is_null() -> None:
    cell = figures(client(3), router(requests=3))
    spreads = (cell.ttft, cell.writing, cell.reply, cell.queue_wait, cell.tpot, cell.gap, cell.send_lag, cell.service)
    assert spreads == (NOTHING,) * 8
    assert (cell.requests, cell.sent, cell.unsent, cell.tokens, cell.order_violations) == (3, 0, 3, 0, 0)
    missing = (
        cell.done_s,
        cell.tokens_per_s,
        cell.prompt_tokens,
        cell.departures,
        cell.peak_seats,
        cell.peak_memory_bytes,
        cell.swap_bytes,
        cell.clock_bound_s,
        cell.clock_offset_s,
    )
    assert missing == (None,) * 9


def test_a_cell_without_its_router_and_clients_is_still_read() -> None:
    cell = figures(replied(0, 1.0, 2.0, 4.0, 5))
    assert (cell.label, cell.policy, cell.rate, cell.requests, cell.done_s) == (CELL, "unknown", None, 1, None)
    assert cell.ttft == every(1.0)


def test_a_reply_of_nothing_has_no_first_word() -> None:
    """An end without a token, as when the first token is the end of sequence."""
    nothing = Reply(0, at(1), at(1))
    nothing.take(Row(0, (), "", "stop"), at(2))
    cell = figures(client(1), nothing.record(CELL, "completed", None, "stop"))
    assert (cell.completed, cell.ttft, cell.writing, cell.tpot, cell.tokens) == (1, NOTHING, NOTHING, NOTHING, 0)
    assert cell.reply.p50 == 1.0
    assert cell.tokens_per_s == 0


def test_the_first_word_is_the_first_message_with_text() -> None:
    """The first token may hold back half a character: it is a token, not a word."""
    reply = Reply(0, at(1), at(1))
    reply.take(Row(0, (5,), ""), at(2))
    assert (reply.first, reply.last) == (None, at(2))
    reply.take(Row(0, (6,), "é"), at(3))
    reply.take(Row(0, (), ""), at(4))
    assert (reply.first, reply.last) == (at(3), at(3))
    reply.take(Row(0, (), "!", "stop"), at(5))
    record = reply.record(CELL, "completed", None, "stop")
    assert (record.first_received, record.last_received) == (at(3), at(5))
    assert record.messages == ((at(2), 1), (at(3), 1), (at(5), 0))
    assert (record.tokens, record.text) == ((5, 6), "é!")
    assert figures(client(1), record).ttft == every(2.0)


def test_a_reply_that_only_brought_tokens_without_text_has_no_first_word() -> None:
    reply = Reply(0, at(1), at(1))
    reply.take(Row(0, (5,), "", "length"), at(2))
    cell = figures(client(1), reply.record(CELL, "completed", None, "length"))
    assert (cell.ttft, cell.writing) == (NOTHING, NOTHING)
    assert (cell.reply, cell.tokens) == (every(1.0), 1)


def test_one_token_has_no_time_per_token() -> None:
    one = replied(0, 1.0, 2.0, 2.0, 1)
    assert tpot(one) is None
    cell = figures(client(1), one)
    assert (cell.tpot, cell.gap, cell.writing) == (NOTHING, NOTHING, every(0.0))


def test_a_reply_that_stops_early_is_divided_by_what_it_wrote() -> None:
    early = replied(0, 0.0, 1.0, 3.0, 5, max_tokens=100, finish="stop")
    assert tpot(early) == 0.5


def test_gaps_leave_out_the_wait_for_the_first_word() -> None:
    request = RequestRecord(CELL, 0, intended=at(0), messages=((at(9), 1), (at(9.5), 2), (at(11.5), 1)))
    assert gaps(request) == [0.5, 2.0]
    assert gaps(RequestRecord(CELL, 0)) == []
    assert gaps(RequestRecord(CELL, 0, messages=((at(1), 1),))) == []


def test_gaps_are_between_messages_that_brought_tokens() -> None:
    """The last message of a stopped reply may bring the held-back text alone."""
    request = RequestRecord(CELL, 0, messages=((at(1), 1), (at(2), 1), (at(2.25), 0)))
    assert gaps(request) == [1.0]


def test_what_did_not_complete_is_counted_and_not_dropped() -> None:
    cell = figures(
        client(7),
        replied(0, 0.0, 1.0, 2.0, 4),
        replied(1, 0.0, 0.1, 0.2, 2, end="failed", finish=None),
        replied(2, 0.0, 0.1, 0.2, 2, end="cancelled", finish=None),
        replied(3, 0.0, 0.1, 0.2, 0, end="rejected", finish=None),
        replied(4, 0.0, 0.1, 0.2, 0, end="unfinished", finish=None),
        replied(5, 0.0, 0.1, 0.2, 0, end=None, finish=None),
        RequestRecord(CELL, 6, intended=at(1), detail="too large to send"),
    )
    ends = (cell.completed, cell.rejected, cell.failed, cell.cancelled, cell.unfinished)
    assert ends == (1, 1, 1, 1, 2)
    assert (cell.requests, cell.sent, cell.unsent) == (7, 6, 1)
    assert sum(ends) == cell.sent
    assert cell.ttft == every(1.0), "latencies are of completed requests"
    assert cell.tokens == 8, "but every token was served"


def test_a_killed_client_is_known_by_what_the_router_saw() -> None:
    cell = figures(
        client(4, index=0, of=2),
        replied(0, 0.0, 1.0, 2.0, 4),
        router(requests=4),
        passed(0, 0.0, 0.0, 2.0, "completed"),
        passed(1, 0.5, 2.0, 3.0, "cancelled", detail="client 1 has not been heard for 3 s"),
        passed(2, 0.6, None, 3.0, "cancelled"),
    )
    assert (cell.requests, cell.sent, cell.unsent, cell.completed, cell.cancelled) == (4, 3, 1, 1, 2)
    assert cell.queue_wait.n == 1


def test_the_clients_word_counts_before_the_routers() -> None:
    cell = figures(
        client(1), replied(0, 0.0, 1.0, 2.0, 4, end="unfinished"), router(), passed(0, 0.0, 0.0, 2.0, "completed")
    )
    assert (cell.completed, cell.unfinished) == (0, 1)


def test_without_any_client_the_router_says_how_many_there_were() -> None:
    cell = figures(router(requests=9, rate=2.0, seed=3), passed(0, 0.0, None, 1.0, "failed"))
    assert (cell.requests, cell.sent, cell.unsent, cell.failed, cell.rate, cell.seed) == (9, 1, 8, 1, 2.0, 3)


@pytest.mark.parametrize(("lag", "late"), [(0, 0), (LATE_NS, 0), (LATE_NS + 1, 1)])
def test_late_is_more_than_a_millisecond(lag: int, late: int) -> None:
    assert figures(client(1), replied(0, 0.0, 1.0, 2.0, 4, sent_late=lag)).late == late


def test_tokens_per_second_run_from_the_first_intended_arrival_to_the_last_token() -> None:
    """Not from time zero: 3 + 5 tokens between 2 s and 6 s."""
    cell = figures(client(2), replied(0, 2.0, 3.0, 6.0, 3), replied(1, 4.0, 4.5, 5.0, 5))
    assert cell.tokens_per_s == 8 / 4
    assert cell.done_s == 6.0


def test_done_counts_from_the_earliest_zero_of_all_clients() -> None:
    """Clients on other clocks, within their bounds, read the same zero; one that never started has none."""
    late = replace(client(2, index=1, of=2), zero=ZERO + 5)
    cell = figures(late, client(2, of=2), client(2, of=2, zero=None), replied(0, 1.0, 2.0, 3.0, 4))
    assert cell.done_s == 3.0


HOUR = 3_600 * SECOND


@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_clients_of_two_hosts_are_brought_on_one_clock(shift: int) -> None:
    """Whatever the second client's clock reads, 3 + 5 tokens took from 2 s to 6 s, and all was done at 6 s."""
    first, second = replied(0, 2.0, 3.0, 5.0, 3), replied(1, 4.0, 4.5, 6.0, 5)
    plans = [replace(client(2, index, of=2), intended=(r.intended,)) for index, r in enumerate((first, second))]
    plain = figures(*plans, first, second)
    assert (plain.done_s, plain.tokens_per_s) == (6.0, 8 / 4)
    there = replace(
        second,
        **{name: getattr(second, name) + shift for name in ("intended", "sent", "first_received", "last_received")},
    )
    plans[1] = replace(plans[1], zero=ZERO + shift, intended=(there.intended,))
    home = replace(router(), host="here")
    clocks = [ClockRecord(CELL, "client-1", when, -shift, 1, 0, None, "there") for when in ("before", "after")]
    assert figures(home, *plans, first, there, *clocks).done_s == 6.0
    assert figures(home, *plans, first, there, *clocks).tokens_per_s == 8 / 4
    assert figures(home, *plans, first, there, *clocks).reply == plain.reply


def test_departures_count_who_left_together() -> None:
    requests = [RequestRecord(CELL, id, departure=departure) for id, departure in enumerate((2, 0, None, 2, 1, 2))]
    assert departures(requests) == [1, 1, 3]
    assert departures([]) == []
    boarded = passed(0, 0.0, 0.5, 1.0, "completed", departure=0)
    assert figures(router("static"), boarded).departures == [1]
    assert figures(router("continuous"), boarded).departures is None


WHOLE_LIFE = RequestRecord(
    CELL, 0, intended=10, sent=20, received=30, admitted=40, started=50, first_token=60, last_token=70, last_received=80
)
STAMPS = ("intended", "sent", "received", "admitted", "started", "first_token", "last_token", "last_received")


def test_a_life_in_order_is_no_violation() -> None:
    assert not violates_order(WHOLE_LIFE, 0)
    assert not violates_order(RequestRecord(CELL, 0, **dict.fromkeys(STAMPS, 5)), 0)
    assert not violates_order(RequestRecord(CELL, 0), 0)


@pytest.mark.parametrize("name", STAMPS[1:])
def test_every_stamp_has_its_place(name: str) -> None:
    before = getattr(WHOLE_LIFE, STAMPS[STAMPS.index(name) - 1])
    early = replace(WHOLE_LIFE, **{name: before - 1})
    assert violates_order(early, 0)
    assert not violates_order(early, 1)


def test_a_stamp_that_is_missing_hides_nothing() -> None:
    assert violates_order(replace(WHOLE_LIFE, received=None, admitted=None, started=19), 0)


def test_two_processes_may_differ_by_two_bounds() -> None:
    def bound(nanoseconds: int) -> ClockRecord:
        return ClockRecord(CELL, "worker", "before", 0, nanoseconds, 0, None)

    assert clock_slack([bound(3), bound(5)]) == 10
    assert clock_slack([]) == 0
    early = replace(WHOLE_LIFE, received=20 - 10)
    assert figures(early, bound(5)).order_violations == 0
    assert figures(early, bound(4)).order_violations == 1


def test_cells_are_kept_apart() -> None:
    def cells(names: Sequence[str]) -> list[RequestRecord]:
        return [replace(replied(0, 0.0, 1.0, 2.0, 3), cell=name) for name in names]

    sorted_into = by_cell([*cells(["b", "a"]), replace(router(), cell="b")])
    assert {name: len(cell.requests) for name, cell in sorted_into.items()} == {"a": 1, "b": 1}
    assert sorted_into["a"].router is None
    assert sorted_into["b"].router is not None
