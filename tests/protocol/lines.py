"""What tests of sockets do again and again: wait for words, introduce peers, fill queues."""

from collections.abc import Callable

import zmq

from protocol.clock import SECOND, ceil_ms, now
from protocol.messages import Beat, Hello, Message, Refused, decode
from protocol.wire import (
    HIGH_WATER,
    Dealer,
    Mailbox,
    PeerSlow,
)

Context = zmq.Context[zmq.Socket[bytes]]
OpenDealer = Callable[..., Dealer]
OpenMailbox = Callable[..., Mailbox]

RUN = "run-1"
DEADLINE = 10 * SECOND
HELLO = Hello("client", "c-0")
# What both ends can hold of messages of a kilobyte, and the kernel between them: tens of megabytes for tcp.
MOST_IN_FLIGHT = 10 * HIGH_WATER


def arrival(end: Dealer | Mailbox) -> bool:
    """Whether something arrives before the deadline."""
    return end.wait(ceil_ms(DEADLINE))


def heard(line: Dealer) -> Message:
    """The next good message."""
    deadline = now() + DEADLINE
    while (left := deadline - now()) > 0:
        line.wait(ceil_ms(left))
        if (message := line.receive()) is not None:
            return message
    raise AssertionError("no message came")


def taken(box: Mailbox) -> tuple[bytes, Message]:
    """The next message, and who sent it."""
    assert arrival(box), "no message came"
    got = box.receive()
    assert got is not None
    return got[0], decode(got[1], RUN)


def connect(line: Dealer) -> None:
    assert line.socket.poll(ceil_ms(DEADLINE), zmq.POLLOUT), "no router came"


def introduce(box: Mailbox, line: Dealer) -> bytes:
    """The identity by which the router knows this line."""
    connect(line)
    line.send(HELLO)
    peer, message = taken(box)
    assert message == HELLO
    return peer


def send_until_gone(box: Mailbox, peer: bytes) -> None:
    """Raises PeerGone once the peer's leaving is known here."""
    deadline = now() + DEADLINE
    while now() < deadline:
        box.send(peer, Beat("router"))
        box.wait(5)


def fill(send: Callable[[Message], None]) -> int:
    """How many messages of a kilobyte were taken before PeerSlow."""
    for sent in range(MOST_IN_FLIGHT):
        try:
            send(Refused("x" * 1_000, sent))
        except PeerSlow:
            return sent
    raise AssertionError(f"{MOST_IN_FLIGHT} messages that nobody read were taken")
