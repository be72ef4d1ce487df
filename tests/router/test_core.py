"""The router's core by example: events in, lists of actions out."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from protocol.clock import SECOND
from protocol.messages import Admit, Cancel, Ended, Refused, Row, Step, Submit, Tokens
from protocol.records import RequestRecord
from router.core import Action, Core, ToClient, ToWorker, Write
from router.policies import Decision, PolicyError, View, parse_policy

ANN, BOB = b"ann", b"bob"
CONTEXT = 100


def ask(id: int, tokens: int = 3, max_tokens: int = 8, **more: Any) -> Submit:
    return Submit(id, f"user-{id}", tuple(range(tokens)), max_tokens, **more)


def made(spec: str = "continuous:seats=2", worker: bool = True, **limits: Any) -> Core:
    core = Core(parse_policy(spec), "cell", **limits)
    if worker:
        assert core.worker_came(0, CONTEXT) == []
    return core


def step(end: int, *rows: Row, read: tuple[tuple[int, int], ...] = ()) -> Step:
    return Step(end - 1, end, len(rows), len(read), sum(part for _, part in read), rows, read)


def kept(id: int, received: int, ended: int, end: str, **more: Any) -> Write:
    return Write(
        RequestRecord(
            "cell", id, f"user-{id}", prompt_tokens=3, max_tokens=8, received=received, ended=ended, end=end, **more
        )
    )


def over(client: bytes, id: int, end: str, detail: str) -> ToClient:
    return ToClient(client, Ended(id, end, detail))


def boarded(*ids: int) -> ToWorker:
    return ToWorker(Admit(tuple(ask(id) for id in ids)))


def test_a_request_from_submit_to_its_last_word() -> None:
    core = made()
    assert core.submitted(5, ANN, ask(0)) == [boarded(0)]
    assert core.stepped(7, step(6, read=((0, 2),))) == []
    assert [passage.unread for passage in core.running] == [1]
    word = Row(0, (11,), "hi")
    assert core.stepped(9, step(8, word, read=((0, 1),))) == [ToClient(ANN, Tokens(8, (word,)))]
    last = Row(0, (12,), " you", "stop")
    assert core.stepped(11, step(10, last)) == [
        ToClient(ANN, Tokens(10, (last,))),
        kept(0, 5, 11, "completed", admitted=5, departure=0, finish="stop"),
    ]
    assert (core.free, core.completed, core.ended, core.tokens, core.served) == (2, 1, 1, 2, {"user-0": 2})


def test_one_step_is_one_message_for_each_client() -> None:
    core = made("continuous:seats=3")
    for id, client in enumerate((ANN, BOB, ANN)):
        core.submitted(id, client, ask(id))
    rows = [Row(id, (7,), "x") for id in range(3)]
    assert core.stepped(9, step(8, *rows)) == [
        ToClient(ANN, Tokens(8, (rows[0], rows[2]))),
        ToClient(BOB, Tokens(8, (rows[1],))),
    ]


def test_whoever_waits_boards_when_a_seat_is_freed() -> None:
    core = made("one")
    assert core.submitted(1, ANN, ask(0)) == [boarded(0)]
    assert core.submitted(2, ANN, ask(1)) == []
    assert core.submitted(3, ANN, ask(2)) == []
    last = Row(0, (1,), "1", "length")
    assert core.stepped(9, step(8, last)) == [
        ToClient(ANN, Tokens(8, (last,))),
        kept(0, 1, 9, "completed", admitted=1, departure=0, finish="length"),
        boarded(1),
    ]
    assert [passage.id for passage in core.waiting] == [2]


def test_a_bus_boards_in_one_message_when_it_is_full() -> None:
    core = made("static:n=3,wait=1")
    assert core.submitted(1, ANN, ask(0)) == []
    assert core.wake_at == 1 + SECOND
    assert core.submitted(2, BOB, ask(1)) == []
    assert core.submitted(3, ANN, ask(2)) == [boarded(0, 1, 2)]
    assert core.wake_at is None
    assert {passage.departure for passage in core.running} == {0}


def test_a_bus_leaves_when_its_first_passenger_has_waited_enough() -> None:
    core = made("static:n=3,wait=1")
    core.submitted(1, ANN, ask(0))
    core.submitted(2, ANN, ask(1))
    assert core.woken(SECOND) == []
    assert core.wake_at == 1 + SECOND
    assert core.woken(1 + SECOND) == [boarded(0, 1)]
    assert core.submitted(2 * SECOND, ANN, ask(2)) == []
    assert core.wake_at is None
    first, second = Row(0, (1,), "1", "stop"), Row(1, (1,), "1", "stop")
    assert boarded(2) not in core.stepped(4 * SECOND, step(4 * SECOND, first))
    assert core.stepped(5 * SECOND, step(5 * SECOND, second))[-1] == boarded(2)
    assert [passage.departure for passage in core.running] == [1]


def test_a_bus_that_lost_its_passengers_sets_no_alarm() -> None:
    core = made("static:n=3,wait=1")
    core.submitted(1, ANN, ask(0))
    core.cancelled(2, ANN, (0,), "walked home")
    assert core.wake_at is None
    core.submitted(3, ANN, ask(1))
    core.worker_gone(4, "it died")
    assert core.wake_at is None


def test_a_waiting_request_is_cancelled_at_once() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.submitted(2, ANN, ask(1))
    assert core.cancelled(5, ANN, (1,), "no longer wanted") == [
        over(ANN, 1, "cancelled", "no longer wanted"),
        kept(1, 2, 5, "cancelled", detail="no longer wanted"),
    ]
    assert core.open_for(ANN) == 1


def test_a_cancelled_request_keeps_its_seat_until_the_worker_let_go() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.submitted(2, BOB, ask(1))
    assert core.cancelled(5, ANN, (0, 0), "enough") == [
        ToWorker(Cancel((0,))),
        over(ANN, 0, "cancelled", "enough"),
        kept(0, 1, 5, "cancelled", admitted=1, departure=0, detail="enough"),
    ]
    assert (core.free, core.open_for(ANN)) == (0, 0)
    assert core.cancelled(6, ANN, (0,), "enough") == []
    assert core.stepped(7, step(6, Row(0, (4,), "late"))) == []
    assert core.stepped(8, step(7, Row(0, (), "", "cancelled"))) == [boarded(1)]
    assert core.ended == 1


def test_a_reply_that_ended_as_it_was_cancelled_ends_once() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.cancelled(5, ANN, (0,), "enough")
    assert core.stepped(6, step(5, Row(0, (4,), "end", "stop"))) == []
    assert (core.free, core.completed, core.ended) == (1, 0, 1)


def test_a_request_that_the_worker_cancelled_by_itself_ends_once() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    row = Row(0, (), "", "cancelled")
    assert core.stepped(6, step(5, row)) == [
        ToClient(ANN, Tokens(5, (row,))),
        kept(0, 1, 6, "cancelled", admitted=1, departure=0, finish="cancelled", detail="cancelled by the worker"),
    ]
    assert (core.free, core.completed, core.ended) == (1, 0, 1)


def test_nobody_cancels_what_is_not_theirs() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.submitted(2, ANN, ask(1))
    assert core.cancelled(5, BOB, (0, 1, 77), "mine now") == []
    assert core.open_for(ANN) == 2


def test_a_vanished_client_takes_its_own_requests_along() -> None:
    core = made("one")
    for id, client in enumerate((ANN, BOB, ANN)):
        core.submitted(id, client, ask(id))
    assert core.client_lost(9, ANN, "client 0 is gone") == [
        over(ANN, 2, "failed", "client 0 is gone"),
        kept(2, 2, 9, "failed", detail="client 0 is gone"),
        ToWorker(Cancel((0,))),
        over(ANN, 0, "failed", "client 0 is gone"),
        kept(0, 0, 9, "failed", admitted=0, departure=0, detail="client 0 is gone"),
    ]
    assert core.client_lost(10, ANN, "client 0 is gone") == []
    assert core.open_for(BOB) == 1


def test_a_client_that_leaves_wants_nothing_more() -> None:
    core = made("one")
    core.submitted(0, ANN, ask(0))
    assert core.client_left(5, ANN) == [
        ToWorker(Cancel((0,))),
        over(ANN, 0, "cancelled", "its client left"),
        kept(0, 0, 5, "cancelled", admitted=0, departure=0, detail="its client left"),
    ]


def test_a_router_that_stops_fails_whoever_is_still_here() -> None:
    core = made("one")
    core.submitted(0, ANN, ask(0))
    core.submitted(1, BOB, ask(1))
    ends = [action.message for action in core.closing(7, "stopped") if isinstance(action, ToClient)]
    assert ends == [Ended(0, "failed", "stopped"), Ended(1, "failed", "stopped")]
    assert (core.open_for(ANN), core.open_for(BOB)) == (0, 0)
    assert core.closing(8, "stopped") == []


def test_a_dead_worker_fails_everyone_once() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.submitted(2, BOB, ask(1))
    assert core.worker_gone(9, "it died") == [
        over(ANN, 0, "failed", "it died"),
        kept(0, 1, 9, "failed", admitted=1, departure=0, detail="it died"),
        over(BOB, 1, "failed", "it died"),
        kept(1, 2, 9, "failed", detail="it died"),
    ]
    assert core.worker_gone(10, "it died") == []
    assert core.stepped(11, step(10, Row(0, (1,), "ghost", "stop"))) == []
    assert core.submitted(12, ANN, ask(2)) == [
        over(ANN, 2, "failed", "there is no worker"),
        kept(2, 12, 12, "failed", detail="there is no worker"),
    ]
    assert core.worker_came(13, CONTEXT) == []
    assert core.submitted(14, ANN, ask(3)) == [boarded(3)]


def test_a_cancelled_passenger_of_a_dead_worker_is_not_told_twice() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.cancelled(2, ANN, (0,), "enough")
    assert core.worker_gone(3, "it died") == []
    assert (core.free, core.ended) == (1, 1)


def test_a_broken_engine_loses_its_requests_and_serves_the_next() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.submitted(2, ANN, ask(1))
    assert core.failed(5, (0, 99), "the engine broke") == [
        over(ANN, 0, "failed", "the engine broke"),
        kept(0, 1, 5, "failed", admitted=1, departure=0, detail="the engine broke"),
        boarded(1),
    ]


@pytest.mark.parametrize(
    ("submit", "reason"),
    [
        (ask(4, tokens=0), "request 4 of user-4 has an empty prompt"),
        (
            ask(4, tokens=93),
            "request 4 of user-4: a prompt of 93 tokens and a reply of up to 8 exceed the model's context of 100",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name_and_number(submit: Submit, reason: str) -> None:
    core = made()
    answer = core.submitted(1, ANN, submit)
    assert answer[0] == over(ANN, 4, "rejected", reason)
    assert isinstance(answer[1], Write)
    assert (answer[1].record.end, answer[1].record.detail) == ("rejected", reason)
    assert len(answer) == 2
    assert core.open_for(ANN) == 0


def test_a_request_that_just_fits_the_context_is_taken() -> None:
    submit = ask(4, tokens=92)
    assert made().submitted(1, ANN, submit) == [ToWorker(Admit((submit,)))]


def test_a_full_queue_turns_away_whoever_comes_next() -> None:
    core = made("one", queue=2)
    answers = [core.submitted(id, ANN, ask(id)) for id in range(5)]
    assert answers[:3] == [[boarded(0)], [], []]
    assert [answer[0] for answer in answers[3:]] == [
        over(ANN, id, "rejected", "the queue is full (2 waiting)") for id in (3, 4)
    ]
    core.cancelled(9, ANN, (1,), "enough")
    assert core.submitted(10, ANN, ask(5)) == []


def test_an_id_that_is_here_already_changes_nothing() -> None:
    core = made("one")
    core.submitted(1, ANN, ask(0))
    core.submitted(1, ANN, ask(1))
    for id in (0, 1):
        assert core.submitted(2, BOB, ask(id)) == [over(BOB, id, "rejected", f"request {id} is here already")]
        # To its own client an end would be that of the request that goes on.
        assert core.submitted(2, ANN, ask(id)) == [ToClient(ANN, Refused(f"request {id} is here already"))]
    assert (core.open_for(ANN), core.open_for(BOB), core.ended) == (2, 0, 0)


def test_time_runs_out_in_the_queue_and_in_the_seat() -> None:
    core = made("one", timeout=1.5)
    core.submitted(0, ANN, ask(0))
    core.submitted(5, BOB, ask(1))
    assert core.wake_at == 3 * SECOND // 2
    assert core.woken(3 * SECOND // 2 - 1) == []
    late = "timed out after 1.5 s"
    assert core.woken(3 * SECOND // 2 + 5) == [
        ToWorker(Cancel((0,))),
        over(ANN, 0, "cancelled", late),
        kept(0, 0, 3 * SECOND // 2 + 5, "cancelled", admitted=0, departure=0, detail=late),
        over(BOB, 1, "cancelled", late),
        kept(1, 5, 3 * SECOND // 2 + 5, "cancelled", detail=late),
    ]
    assert core.wake_at is None


def test_the_earlier_of_two_alarms_rings() -> None:
    core = made("static:n=3,wait=1", timeout=0.5)
    core.submitted(0, ANN, ask(0))
    assert core.wake_at == SECOND // 2
    core = made("static:n=3,wait=1", timeout=2)
    core.submitted(0, ANN, ask(0))
    assert core.wake_at == SECOND


@dataclass(frozen=True)
class Stubborn:
    """Decides the same whatever there is."""

    name: ClassVar[str] = "stubborn"
    seats: ClassVar[int] = 1
    decision: Decision = Decision()

    def decide(self, now: int, view: View) -> Decision:
        return self.decision


def with_policy(decision: Decision) -> Core:
    core = Core(Stubborn(Decision()), "cell")
    core.worker_came(0, CONTEXT)
    core.submitted(1, ANN, ask(0))
    core.submitted(2, ANN, ask(1))
    core.policy = Stubborn(decision)
    return core


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Decision(admit=(7,)), "one that does not wait"),
        (Decision(reject=((7, "no"),)), "one that does not wait"),
        (Decision(admit=(0, 0)), "named a request twice"),
        (Decision(admit=(0,), reject=((0, "no"),)), "named a request twice"),
        (Decision(admit=(0, 1)), "admitted 2 to 1 free seats"),
    ],
)
def test_a_policy_that_decides_what_it_may_not_is_named(decision: Decision, said: str) -> None:
    core = with_policy(decision)
    with pytest.raises(PolicyError, match=said) as error:
        core.woken(3)
    assert "stubborn" in str(error.value)
    assert [passage.id for passage in core.waiting] == [0, 1]


def test_a_policy_may_reject_with_its_reason() -> None:
    core = with_policy(Decision(admit=(1,), reject=((0, "too long for now"),), wake_at=9))
    assert core.woken(3) == [
        over(ANN, 0, "rejected", "too long for now"),
        kept(0, 1, 3, "rejected", detail="too long for now"),
        boarded(1),
    ]
    assert core.wake_at == 9


def test_a_policy_is_not_asked_without_a_queue_or_a_worker() -> None:
    core = Core(Stubborn(Decision(admit=(1, 2, 3))), "cell")
    empty: list[Action] = []
    assert core.woken(1) == empty
    assert core.worker_came(2, CONTEXT) == empty
    assert core.client_lost(3, ANN, "gone") == empty


def test_a_reused_start_counts_as_read() -> None:
    """Policies that look at unread prompt tokens must not wait for what is never going to be read."""
    core = made()
    core.submitted(1, ANN, ask(0, 20, 4, prefix=15))
    core.stepped(2, Step(1, 2, 0, 1, 3, (), read=((0, 3),), reused=((0, 15),)))
    assert [passage.unread for passage in core.running] == [2]


def test_the_queue_is_integrated_over_time() -> None:
    """One runs; two wait from 10 and 30 on, one of them leaves at 40, the other fails with the worker at 100."""
    core = made("one")
    core.submitted(5, ANN, ask(0))
    assert (core.queue_area, core.longest_queue) == (0, 0), "it never lasted"
    core.submitted(10, ANN, ask(1))
    core.submitted(30, BOB, ask(2))
    core.cancelled(40, ANN, (1,), "enough")
    core.worker_gone(100, "it died")
    assert core.queue_area == (40 - 10) + (100 - 30)
    assert core.longest_queue == 2
