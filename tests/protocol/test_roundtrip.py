"""Measuring a router's clock over real sockets: the truth is within the bound, and nothing that arrives is lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import zmq

from protocol.clock import MS, SECOND, Offset, now
from protocol.messages import Beat, Message, Ping, Pong, decode
from protocol.roundtrip import PATIENCE, PINGS, clock_record, measure_offset
from protocol.wire import Dealer, Mailbox, mailbox

RUN = "run-1"
SHIFT = 3 * MS
JOIN_S = 10

Answer = Callable[[Mailbox, bytes, Ping], None]
Answering = Callable[[Answer], AbstractContextManager[Dealer]]


def serve(box: Mailbox, answer: Answer, stop: threading.Event) -> None:
    while not stop.is_set():
        box.wait(20)
        while (got := box.receive()) is not None:
            peer, data = got
            message = decode(data, RUN)
            assert isinstance(message, Ping)
            answer(box, peer, message)


@pytest.fixture
def answering(
    context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, open_dealer: Callable[[str], Dealer]
) -> Answering:
    """A router in a thread of its own that treats pings as it is told, and a connected line to it."""

    @contextmanager
    def run(answer: Answer) -> Iterator[Dealer]:
        stop = threading.Event()

        def routing() -> None:
            box = mailbox(context, endpoint, RUN)
            serve(box, answer, stop)
            box.close()

        router = threading.Thread(target=routing)
        router.start()
        try:
            line = open_dealer(endpoint)
            assert line.socket.poll(JOIN_S * 1_000, zmq.POLLOUT)
            yield line
        finally:
            stop.set()
            router.join(JOIN_S)
            assert not router.is_alive()

    return run


def shifted(box: Mailbox, peer: bytes, ping: Ping) -> None:
    """Answer with a clock that is SHIFT ahead."""
    box.send(peer, Pong(ping.sent, now() + SHIFT))


def unexpected(message: Message) -> None:
    raise AssertionError(f"not a pong of ours: {message}")


def test_the_planted_shift_is_within_the_bound(answering: Answering) -> None:
    with answering(shifted) as line:
        found = measure_offset(line, unexpected)
    assert found is not None
    assert abs(found.offset - SHIFT) <= found.bound <= PATIENCE


def test_what_else_arrives_goes_to_other_in_order(answering: Answering) -> None:
    beats = iter(range(PINGS))

    def talkative(box: Mailbox, peer: bytes, ping: Ping) -> None:
        box.send(peer, Beat("router", steps=next(beats)))
        shifted(box, peer, ping)

    others: list[Message] = []
    with answering(talkative) as line:
        found = measure_offset(line, others.append)
    assert found is not None
    assert others == [Beat("router", steps=n) for n in range(PINGS)]


def test_the_answer_to_another_ping_is_not_taken(answering: Answering) -> None:
    def confused(box: Mailbox, peer: bytes, ping: Ping) -> None:
        box.send(peer, Pong(ping.sent - 1, 0))
        shifted(box, peer, ping)

    others: list[Message] = []
    with answering(confused) as line:
        found = measure_offset(line, others.append)
    assert found is not None
    assert abs(found.offset - SHIFT) <= found.bound
    assert len(others) == PINGS


def test_a_silent_router_gives_nothing_in_bounded_time(answering: Answering) -> None:
    pings: list[Ping] = []
    with answering(lambda box, peer, ping: pings.append(ping)) as line:
        begin = now()
        assert measure_offset(line, unexpected) is None
        took = now() - begin
    assert len(pings) == 1
    assert PATIENCE <= took < 5 * SECOND


def test_a_router_that_falls_silent_was_still_measured(answering: Answering) -> None:
    left = iter(range(5))

    def tiring(box: Mailbox, peer: bytes, ping: Ping) -> None:
        if next(left, None) is not None:
            shifted(box, peer, ping)

    with answering(tiring) as line:
        found = measure_offset(line, unexpected)
    assert found is not None
    assert abs(found.offset - SHIFT) <= found.bound


def test_no_router_no_offset(endpoint: str, open_dealer: Callable[[str], Dealer]) -> None:
    assert measure_offset(open_dealer(endpoint), unexpected) is None


def test_the_record_of_a_measurement(ipc_endpoint: str, open_dealer: Callable[[str], Dealer]) -> None:
    line = open_dealer(ipc_endpoint)
    line.bad = 3
    record = clock_record("cell", "worker", "before", Offset(-7, 2), line)
    assert record is not None
    assert (record.cell, record.role, record.when) == ("cell", "worker", "before")
    assert (record.offset, record.bound, record.bad_messages) == (-7, 2, 3)
    assert record.resident_bytes is not None and record.resident_bytes > 0
    assert clock_record("cell", "worker", "after", None, line) is None
