"""How far a process's clock is from its router's: a few pings, of which the quickest says most."""

from collections.abc import Callable

from protocol.clock import MS, Offset, ceil_ms, estimate_offset, now
from protocol.messages import Message, Ping, Pong
from protocol.process import host, resident_bytes
from protocol.records import ClockRecord
from protocol.wire import Dealer, PeerSlow

PINGS = 20
PATIENCE = 200 * MS


def measure_offset(line: Dealer, other: Callable[[Message], None]) -> Offset | None:
    """The router's clock minus ours, from one ping after another; None when no answer came.

    Whatever else arrives meanwhile goes to `other`. Takes about 20 round trips, at most a fifth of a second for a
    router that does not answer.
    """
    exchanges = []
    for _ in range(PINGS):
        exchange = _exchange(line, other)
        if exchange is None:
            break
        exchanges.append(exchange)
    return estimate_offset(exchanges)


def _exchange(line: Dealer, other: Callable[[Message], None]) -> tuple[int, int, int] | None:
    sent = now()
    try:
        line.send(Ping(sent))
    except PeerSlow:
        return None
    while (left := sent + PATIENCE - now()) > 0:
        line.wait(ceil_ms(left))
        while (message := line.receive()) is not None:
            received = now()
            if isinstance(message, Pong) and message.sent == sent:
                return sent, message.at, received
            other(message)
    return None


def clock_record(cell: str, role: str, when: str, offset: Offset | None, line: Dealer) -> ClockRecord | None:
    """The measurement as a record, with this process's other vital signs; None when there was no answer."""
    if offset is None:
        return None
    return ClockRecord(cell, role, when, offset.offset, offset.bound, line.bad, resident_bytes(), host())
