"""Roles on other hosts than their router's: their stamps on its clock, so that they can be put in one order, and the
first of all clients' arrivals be told from the last of their replies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.records import ClientRecord, ClockRecord, RequestRecord, RouterRecord

CLIENT_STAMPS = ("intended", "sent", "first_received", "last_received")
WORKER_STAMPS = ("started", "first_token", "last_token")


def shares_host(clock: ClockRecord, router: RouterRecord | None) -> bool:
    """Whether a role reads the router's own clock; so it is taken to be where nobody knows."""
    return clock.host is None or router is None or router.host is None or clock.host == router.host


def offsets(clocks: Sequence[ClockRecord], router: RouterRecord | None) -> dict[str, int]:
    """Nanoseconds to add to the stamps of each role on another host: the mean of what was measured before and after."""
    away: dict[str, list[int]] = {}
    for clock in clocks:
        if not shares_host(clock, router):
            away.setdefault(clock.role, []).append(clock.offset)
    return {role: sum(measured) // len(measured) for role, measured in away.items()}


def wander(clocks: Sequence[ClockRecord], away: Mapping[str, int]) -> int:
    """Nanoseconds by which the clock of a role in `away` was at most from its mean, before or after."""
    return max((abs(clock.offset - away[clock.role]) for clock in clocks if clock.role in away), default=0)


def on_routers_clock(
    requests: Sequence[RequestRecord], clients: Sequence[ClientRecord], away: Mapping[str, int]
) -> list[RequestRecord]:
    """These requests, with the stamps of the roles in `away` moved by their offsets; the others' as they are."""
    if not away:
        return list(requests)
    client_of = {id: f"client-{client.index}" for client in clients for id in client.ids}
    return [
        _moved(_moved(r, CLIENT_STAMPS, away.get(client_of.get(r.id, ""), 0)), WORKER_STAMPS, away.get("worker", 0))
        for r in requests
    ]


def schedules_on_routers_clock(clients: Sequence[ClientRecord], away: Mapping[str, int]) -> list[ClientRecord]:
    """These clients, with the schedules of those in `away` moved by their offsets; the others' as they are."""
    return [_rescheduled(client, away.get(f"client-{client.index}", 0)) for client in clients]


def _rescheduled(client: ClientRecord, by: int) -> ClientRecord:
    zero = None if client.zero is None else client.zero + by
    return replace(client, zero=zero, intended=tuple([time + by for time in client.intended]))


def _moved(request: RequestRecord, names: Sequence[str], by: int) -> RequestRecord:
    return replace(request, **{name: time + by for name in names if (time := getattr(request, name)) is not None})
