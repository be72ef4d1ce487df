"""Real traffic: when requests came and how long prompts and replies were, from a recorded trace."""

import csv
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, overload

import orjson

from clients.workloads import Prompt
from protocol.clock import SECOND
from protocol.messages import ChatTurn

UNITS = {"s": SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
DATES = "iso"
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
BLOCK = 512
SLOWEST, FASTEST = 0.005, 500.0
LIKELY = 5.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power "
    "hour game line end member law car city name team minute idea body back parent face others level office door "
    "health person art"
)
WORDS = tuple(COMMON.split())


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace file and how it is replayed: `speed` times as fast, its `first` requests only. A CSV names its `columns`
    (time, prompt tokens, reply tokens) and the `unit` of its times: one of UNITS, or "iso" for date and time. Azure's
    CSV and Mooncake's JSON Lines are known by their own names."""

    path: str
    speed: float = 1.0
    first: int | None = None
    columns: tuple[str, ...] | None = None
    unit: str | None = None


def trace_arguments(source: TraceSource) -> list[str]:
    """The options that name it, as `headway clients` takes them."""
    first = [] if source.first is None else ["--first", str(source.first)]
    columns = [] if source.columns is None else ["--columns", ",".join(source.columns)]
    unit = [] if source.unit is None else ["--unit", source.unit]
    return ["--trace", source.path, "--speed", repr(source.speed), *first, *columns, *unit]


def trace_facts(source: TraceSource) -> dict[str, Any]:
    """How the schedule was made, as a client's records say it."""
    facts = {"arrivals": "trace", "workload": source.path, "rate": read_trace(source).rate, "seed": None}
    return facts | {"speed": source.speed}


class Request(NamedTuple):
    """One line: nanoseconds, prompt and reply tokens, and the ids of the prompt's blocks where the trace has them."""

    at: int
    prompt: int
    reply: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order. `times` are nanoseconds from the first one, at the replay's speed; of each prompt's tokens so
    many in `shared` begin another prompt too."""

    times: tuple[int, ...]
    requests: tuple[Request, ...]
    shared: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Requests a second."""
        return (len(self.times) - 1) * SECOND / self.times[-1] if self.times[-1] else float(len(self.times))


@lru_cache(maxsize=4)
def read_trace(source: TraceSource) -> Trace:
    """The trace. Raises ValueError, in one line, for a file that cannot be read, a bad line, times that fall, and a
    rate that is not plausible."""
    try:
        with Path(source.path).open(encoding="utf-8-sig", newline="") as file:
            requests = list(islice(_requests(source, file), source.first))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{source.path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(requests) < 2:
        raise ValueError(f"{source.path}: a trace has at least 2 requests")
    _check_rate(source, requests)
    begin = requests[0].at
    times = tuple([_sooner(request.at - begin, source.speed) for request in requests])
    return Trace(times, tuple(requests), _shared(requests))


def _sooner(at: int, speed: float) -> int:
    return at if speed == 1 else round(at / speed)


# --- formats ---


def _requests(source: TraceSource, file: TextIO) -> Iterator[Request]:
    """In the order of the file, which must be that of the times."""
    rows = _json_rows(source, file) if source.path.endswith((".jsonl", ".json")) else _csv_rows(source, file)
    last = None
    for number, request in rows:
        if last is not None and request.at < last:
            raise ValueError(f"{source.path} line {number}: earlier than the line before; sort the file by time")
        last = request.at
        yield request


def _csv_rows(source: TraceSource, file: TextIO) -> Iterator[tuple[int, Request]]:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, [])]
    names, unit = source.columns or AZURE, source.unit or (DATES if header == [*AZURE] else None)
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(f"{source.path}: no column {missing[0]!r}; name them with --columns TIME,PROMPT,REPLY: it has "
                         f"{', '.join(header)}")  # fmt: skip
    if unit is None:
        raise ValueError(f"{source.path}: say what its times are with --unit: {', '.join(UNITS)}, or {DATES} for dates")
    at, prompt, reply = (header.index(name) for name in names)
    for number, row in enumerate(reader, start=2):
        if row:
            yield number, _request(source, number, unit, [row[i] if i < len(row) else "" for i in (at, prompt, reply)])


def _json_rows(source: TraceSource, file: TextIO) -> Iterator[tuple[int, Request]]:
    names = source.columns or MOONCAKE
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            values, blocks = [str(row[name]) for name in names], tuple(int(id) for id in row.get("hash_ids") or ())
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(f"{source.path} line {number}: not an object with {', '.join(names)}") from None
        yield number, _request(source, number, source.unit or "ms", values, blocks)


def _request(
    source: TraceSource, number: int, unit: str, values: Sequence[str], blocks: tuple[int, ...] = ()
) -> Request:
    """A reply of no tokens is taken for one of one: a server writes at least that."""
    try:
        at = _date_ns(values[0]) if unit == DATES else int(Decimal(values[0]) * UNITS[unit])
        prompt, reply = int(values[1]), int(values[2])
        if prompt < 1 or reply < 0:
            raise ValueError("no prompt")
    except (ValueError, InvalidOperation):
        told = ", ".join(values)
        raise ValueError(f"{source.path} line {number}: not a time ({unit}), prompt and reply tokens: {told}") from None
    return Request(at, prompt, max(1, reply), blocks)


def _date_ns(text: str) -> int:
    """Date and time in nanoseconds, every digit of its fraction kept (up to nine)."""
    whole, _, fraction = text.strip().partition(".")
    digits = fraction.rstrip("Z")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    if digits and not digits.isdecimal():
        raise ValueError(text)
    return ((moment - EPOCH).days * 86_400 + (moment - EPOCH).seconds) * SECOND + int(digits[:9].ljust(9, "0") or 0)


# --- what it can be ---


def _check_rate(source: TraceSource, requests: Sequence[Request]) -> None:
    """Raises ValueError for a rate that no server has, with the unit that was probably meant."""
    span = requests[-1].at - requests[0].at
    if not span:
        return
    rate = (len(requests) - 1) * SECOND / span
    if SLOWEST <= rate <= FASTEST:
        return
    unit = source.unit or ("ms" if source.path.endswith((".jsonl", ".json")) else DATES)
    rates = {other: rate * UNITS[unit] / ns for other, ns in UNITS.items()} if unit in UNITS else {}
    likely = min([name for name in rates if name != unit], key=lambda name: _far(rates[name]), default=None)
    hint = (
        f"; its times look like {likely}, not {unit} ({rates[likely]:.3g} a second): --unit {likely}" if likely else ""
    )
    raise ValueError(f"{source.path}: {rate:.3g} requests a second are not plausible{hint}")


def _far(rate: float) -> float:
    return max(rate / LIKELY, LIKELY / rate)


def _shared(requests: Sequence[Request]) -> tuple[int, ...]:
    """Of each prompt the tokens of its leading blocks that others begin with too; at least one token is its own."""
    users = Counter(id for request in requests for id in set(request.blocks))
    return tuple([min(request.prompt - 1, BLOCK * _leading(request.blocks, users)) for request in requests])


def _leading(blocks: Sequence[int], users: Mapping[int, int]) -> int:
    return next((i for i, id in enumerate(blocks) if users[id] < 2), len(blocks))


# --- prompts ---


@dataclass(frozen=True, slots=True)
class TracePrompts(Sequence[Prompt]):
    """A prompt of the right length for each request, made when it is asked for: common words, one for each token. The
    words of a block follow from its id, so that prompts which shared a start share it again."""

    trace: Trace

    def __len__(self) -> int:
        return len(self.trace.requests)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        request, shared = self.trace.requests[index], self.trace.shared[index]
        words = list(islice(_words(request, index % len(self)), request.prompt))
        parts = [part for part in (words[:shared], words[shared:]) if part]
        roles = ("system", "user")[-len(parts) :]
        turns = tuple(ChatTurn(role, " ".join(part)) for role, part in zip(roles, parts, strict=True))
        return Prompt(turns, exact_tokens=request.reply, expected_tokens=request.reply, shared_turns=len(parts) - 1)


def _words(request: Request, index: int) -> Iterator[str]:
    for id in request.blocks:
        yield from random.Random(f"block {id}").choices(WORDS, k=BLOCK)
    yield from random.Random(f"request {index}").choices(WORDS, k=request.prompt)
