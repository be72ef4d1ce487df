"""Timing records: what every role writes as it happens, one msgpack file a process, and how they are read and merged.

A file is a stream of `[kind, {...}]` entries. Each entry is handed to the operating system in one write, so a killed
process leaves every entry before its last one readable.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgpack

SUFFIX = ".msgpack"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of one cell. Every role fills in what it stamped; None is what it did not see.

    Times are nanoseconds: intended to last_received in the order of a request's life. `intended`, `sent`,
    `first_received` and `last_received` are on the client's clock, `received`, `admitted` and `ended` on the
    router's, `started`, `first_token` and `last_token` on the worker's.
    `messages` are (time received, tokens) of each message that carried tokens or text; `departure` is the ordinal of
    the admission that took the request; `end` is one of protocol.messages.ENDS. `reused` counts prompt tokens that
    the worker found in its prefix cache; `margins` are the logit gaps of a request that asked for them, one a token.
    `written` counts the tokens of a reply where they are not kept one by one, as in a large simulation.
    """

    cell: str
    id: int
    user: str | None = None
    prompt_tokens: int | None = None
    reused: int | None = None
    max_tokens: int | None = None
    intended: int | None = None
    sent: int | None = None
    received: int | None = None
    admitted: int | None = None
    started: int | None = None
    first_token: int | None = None
    last_token: int | None = None
    first_received: int | None = None
    last_received: int | None = None
    ended: int | None = None
    departure: int | None = None
    messages: tuple[tuple[int, int], ...] | None = None
    tokens: tuple[int, ...] | None = None
    written: int | None = None
    margins: tuple[float, ...] | None = None
    text: str | None = None
    finish: str | None = None
    end: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the engine on the worker's clock: rows decoding, prompts reading, prompt tokens read, tokens out,
    requests held, the longest context among the rows, and the most tokens read of one prompt: those that are read
    together are padded to it."""

    cell: str
    begin: int
    end: int
    decoding: int
    reading: int
    prompt_tokens: int
    tokens: int
    in_flight: int
    context: int
    longest_read: int


@dataclass(frozen=True, slots=True)
class CellRecord:
    """The worker's account of one cell, written when its router has left."""

    cell: str
    steps: int
    peak_memory_bytes: int | None
    swap_bytes: int | None
    resident_bytes: int | None
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client's head line: its share of the schedule. `plan` says how the whole schedule was made, `requests` is the
    union's size, `ids` and `intended` are this client's share; `zero` is time zero on its clock (None: never started).
    `scheduling` is how the process is scheduled (see `protocol.priority.run_first`), `wake_lag_ns` by how much its
    sleeps ended late before the start, `cores_awake` whether idle cores were kept from sleeping.
    """

    cell: str
    index: int
    of: int
    requests: int
    zero: int | None
    spin_ns: int
    plan: Mapping[str, Any]
    ids: tuple[int, ...]
    intended: tuple[int, ...]
    scheduling: str | None = None
    wake_lag_ns: int | None = None
    cores_awake: bool | None = None


@dataclass(frozen=True, slots=True)
class RouterRecord:
    """The router's head line: the policy it applied, with its parameters, and the limits it held; `host` is where,
    `resident_bytes` its memory at that time, and `policy_sha256` of the file of a user's own policy."""

    cell: str
    policy: str
    params: Mapping[str, Any]
    queue: int
    timeout_s: float | None
    clients: int
    run: str
    labels: Mapping[str, Any]
    host: str | None = None
    resident_bytes: int | None = None
    policy_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """The router's account of one cell, written when it is over: the queue's length integrated over time (requests
    times nanoseconds), its longest length that lasted, how many messages could not be read, why the cell ended before
    all its clients had left (None: it did not), and the router's memory then."""

    cell: str
    area_ns: int
    longest: int
    bad_messages: int
    cut_short: str | None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The router's clock minus this role's, in nanoseconds, the truth within `bound`; `when` is "before" or "after".

    `bad_messages` counts what this role's socket refused, `resident_bytes` its memory at that time; `host` names the
    machine whose clock it reads.
    """

    cell: str
    role: str
    when: str
    offset: int
    bound: int
    bad_messages: int
    resident_bytes: int | None
    host: str | None = None


KINDS: dict[str, type] = {
    "request": RequestRecord, "step": StepRecord, "cell": CellRecord,
    "client": ClientRecord, "router": RouterRecord, "queue": QueueRecord, "clock": ClockRecord,
}  # fmt: skip
_KIND_OF = {kind: name for name, kind in KINDS.items()}
_NAMES = {kind: tuple(field.name for field in fields(kind)) for kind in KINDS.values()}


class RecordWriter:
    """Appends records to one file, each in a single write."""

    def __init__(self, path: Path, alone: bool = False) -> None:
        """Raises OSError when the file cannot be written, or, for a writer that is to be `alone`, is there already:
        two runs in one file would be taken for one."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_EXCL if alone else 0), 0o644)

    def write(self, record: object) -> None:
        """Hand one record to the operating system; nulls are left out."""
        kind = type(record)
        shown = {name: value for name in _NAMES[kind] if (value := getattr(record, name)) is not None}
        self.write_packed(msgpack.packb([_KIND_OF[kind], shown]))

    def write_packed(self, entries: bytes) -> None:
        """Hand over whole entries that were packed elsewhere."""
        while entries:
            entries = entries[os.write(self._file, entries) :]

    def close(self) -> None:
        """Nothing can be written afterwards."""
        os.close(self._file)


def read(path: Path) -> Iterator[Any]:
    """The records of one file, in the order written; a torn last entry is left out. Raises OSError."""
    with path.open("rb") as file:
        entries = msgpack.Unpacker(file, use_list=False, strict_map_key=False)
        try:
            for name, values in entries:
                kind = KINDS.get(name)
                if kind is not None:
                    yield _build(kind, values)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
            return


def read_folder(folder: Path) -> Iterator[Any]:
    """The records of every file in a run folder, file by file in the order of their names."""
    for path in sorted(folder.glob("*" + SUFFIX)):
        yield from read(path)


def _build(kind: type, values: Mapping[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    missing = {f.name: None for f in fields(kind) if f.name not in values}
    return kind(**{name: value for name, value in values.items() if name in known}, **missing)


def merge(records: Iterable[RequestRecord]) -> dict[tuple[str, int], RequestRecord]:
    """One record a request, by (cell, id): each field from the first record that has it.

    So the order says whom to believe: give the clients' records before the router's and the worker's.
    """
    merged: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        whole = merged.setdefault((record.cell, record.id), {})
        for field in fields(record):
            value = getattr(record, field.name)
            if value is not None and whole.get(field.name) is None:
                whole[field.name] = value
    return {key: RequestRecord(**values) for key, values in merged.items()}
