"""What is kept of a large simulated cell: one record a request, streamed to a file, and columns for its figures."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np

from experiments.analysis import CellRecords, CellSummary, summarise
from experiments.load_state import NEVER, Lives, full_queue, state_of
from experiments.objectives import Objective, goodput, outcome
from experiments.statistics import Spread, ranked_spread
from experiments.twin.machine import Seat
from protocol.clock import SECOND, seconds

ENDS = ("completed", "rejected", "failed", "cancelled")
COLUMNS = (
    *("received", "admitted", "first", "last", "ended", "departure", "written", "id", "prompt_tokens", "max_tokens"),
    "end",
)
DURATIONS = {
    "ttft": ("received", "first"),
    "writing": ("first", "last"),
    "reply": ("received", "last"),
    "queue_wait": ("received", "admitted"),
    "service": ("admitted", "ended"),
}
TOGETHER = 4_096

Column = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Columns:
    """COLUMNS of each request that ended, nanoseconds and tokens, NEVER for what did not happen.
    `write`, if any, gets the whole records packed, in the form of `protocol.records.RequestRecord`. Nothing takes time
    on the way: meant, sent and received by the router are one moment, and a token is received when it is written."""

    def __init__(self, cell: str, write: Callable[[bytes], Any] | None = None) -> None:
        self._cell, self._write = cell, write
        self._rows = bytearray()
        self._done: list[Seat] = []

    def keep(self, seat: Seat, end: str, detail: str | None, finish: str | None) -> None:
        """A request ended. Those that completed are written many at once: a million must not take long."""
        if end == "completed":
            self._done.append(seat)
            if len(self._done) == TOGETHER:
                self.flush()
            return
        row = _numbers([seat])
        known = [NEVER if number is None else number for number in row]
        self._rows += array("q", [*known, ENDS.index(end)]).tobytes()
        if self._write is not None:
            self._write(msgpack.packb(_entry(self._cell, seat.submit.user, row, finish, end, detail)))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        done, self._done = self._done, []
        numbers = np.array(array("q", _numbers(done)), dtype=np.int64).reshape(-1, len(COLUMNS) - 1)
        rows = np.zeros((len(done), len(COLUMNS)), dtype=np.int64)
        rows[:, :-1] = numbers
        self._rows += rows.tobytes()
        if self._write is None:
            return
        names = [seat.submit.user.encode() for seat in done]
        sizes = np.array([len(name) for name in names])
        for size in np.unique(sizes):
            alike = [name for name in names if len(name) == size]
            self._write(_packed(self._cell, alike, numbers[sizes == size]))

    def __getitem__(self, name: str) -> Column:
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, len(COLUMNS))
        column: Column = rows[:, COLUMNS.index(name)]
        return column


def _numbers(seats: Sequence[Seat]) -> list[Any]:
    """COLUMNS but for the last, one request after the other; None for what did not happen."""
    return [
        number
        for seat in seats
        for number in (
            seat.received, seat.admitted, seat.first, seat.last, seat.ended, seat.departure, seat.written,
            seat.id, len(seat.submit.tokens), seat.submit.max_tokens,
        )
    ]  # fmt: skip


def _entry(
    cell: str, user: str, row: Sequence[int | None], finish: str | None, end: str, detail: str | None
) -> list[Any]:
    received, admitted, first, last, ended, departure, written, id, prompt, most = row
    return ["request", {
        "cell": cell, "id": id, "user": user, "prompt_tokens": prompt, "max_tokens": most, "intended": received,
        "sent": received, "received": received, "admitted": admitted, "started": admitted, "first_token": first,
        "last_token": last, "first_received": first, "last_received": last, "ended": ended, "departure": departure,
        "written": written, "finish": finish, "end": end, "detail": detail,
    }]  # fmt: skip


def _packed(cell: str, users: Sequence[bytes], numbers: Column) -> bytes:
    """Completed requests whose users' names are of one length. Packed, they differ in nothing but names and numbers of
    eight bytes: so one is packed, and these are put into a copy of it for each."""
    marks, name = [2**63 + mark for mark in range(numbers.shape[1])], "\0" * len(users[0])
    form: bytes = msgpack.packb(_entry(cell, name, marks, "length", "completed", None))
    filled = np.tile(np.frombuffer(form, dtype=np.uint8), (len(users), 1))
    for column, mark in enumerate(marks):
        bytes_of = numbers[:, column].astype(">u8").view(np.uint8).reshape(-1, 8)
        place = -1
        while (place := form.find(mark.to_bytes(8), place + 1)) >= 0:
            filled[:, place : place + 8] = bytes_of
    place = form.index(name.encode()) if name else 0
    filled[:, place : place + len(name)] = np.frombuffer(b"".join(users), dtype=np.uint8).reshape(len(users), -1)
    return filled.tobytes()


def figures(name: str, cell: CellRecords, columns: Columns, objectives: Sequence[Objective] = ()) -> CellSummary:
    """What `summarise` says of a cell with a record for every request, from `cell` without them and their columns."""
    base, done = summarise(name, cell), columns["end"] == 0
    written, last = columns["written"], columns["last"]
    lasts, tokens = last[last != NEVER], int(written.sum())
    begins = min([time for client in cell.clients for time in client.intended])
    lasted = seconds(int(lasts.max()) - begins) if len(lasts) else 0.0
    return replace(
        base,
        **_counts(base.requests, columns["end"]),
        **_durations(columns, done),
        tpot=_ranked(_tpot(columns)[done & (written > 1)]),
        send_lag=_ranked(np.zeros(len(done))),
        done_s=seconds(int(last[done].max())) if done.any() else None,
        tokens=tokens,
        tokens_per_s=tokens / lasted if lasted > 0 else None,
        departures=_departures(columns) if base.policy == "static" else None,
        load_state=state_of(lives(columns, cell)),
        **_promises(columns, base.requests, begins_s(cell), objectives),
    )


def lives(columns: Columns, cell: CellRecords) -> Lives:
    """The requests as their load state is told from."""
    order = np.argsort(columns["received"], kind="stable")
    received, admitted, ended, ends = (columns[name][order] for name in ("received", "admitted", "ended", "end"))
    return Lives(
        received, admitted, ended, ends == ENDS.index("rejected"), ends == ENDS.index("cancelled"), full_queue(cell)
    )


def begins_s(cell: CellRecords) -> float:
    """Seconds in which requests were offered."""
    return seconds(max([max(client.intended) for client in cell.clients if client.intended], default=0))


def _counts(offered: int, ends: Column) -> dict[str, Any]:
    counts = {end: int((ends == number).sum()) for number, end in enumerate(ENDS)}
    return counts | {"sent": len(ends), "unsent": offered - len(ends)}


def _durations(columns: Columns, among: Flags) -> dict[str, Any]:
    return {metric: _spread(columns, begin, end, among) for metric, (begin, end) in DURATIONS.items()}


def _spread(columns: Columns, begin: str, end: str, among: Flags) -> Spread:
    return _ranked((columns[end] - columns[begin])[among & (columns[end] != NEVER)] / SECOND)


def _ranked(values: Floats) -> Spread:
    return ranked_spread(np.sort(values).tolist())


def _tpot(columns: Columns) -> Floats:
    """Seconds per token, of any value where a reply has fewer than two."""
    spans: Floats = (columns["last"] - columns["first"]) / SECOND
    return spans / np.maximum(columns["written"] - 1, 1)


def _departures(columns: Columns) -> list[int]:
    taken = columns["departure"]
    counts: list[int] = np.unique(taken[taken != NEVER], return_counts=True)[1].tolist()
    return counts


def _promises(columns: Columns, offered: int, offered_s: float, objectives: Sequence[Objective]) -> dict[str, Any]:
    """As in `summarise`; of gaps nothing is known."""
    if not objectives:
        return {}
    found = [_promised(columns, each.metric) for each in objectives]
    rows = list(zip(*found, strict=True))
    rows += [(math.inf,) * len(objectives)] * (offered - len(rows))
    return {
        "objectives": [outcome(each, column) for each, column in zip(objectives, zip(*rows, strict=True), strict=True)],
        "goodput": goodput(objectives, rows, offered_s),
    }


def _promised(columns: Columns, metric: str) -> list[float | None]:
    done = columns["end"] == 0
    if metric in DURATIONS:
        begin, end = DURATIONS[metric]
        values = (columns[end] - columns[begin]) / SECOND
    else:
        values = np.where((columns["written"] > 1) & (metric == "tpot"), _tpot(columns), np.nan)
    known = np.where(done, values, np.inf).tolist()
    return [None if value != value else value for value in known]
