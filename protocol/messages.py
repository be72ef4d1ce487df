"""Every message that one process sends another, as frozen dataclasses, and their form on the wire.

On the wire a message is one msgpack array `[version, tag, run, field, field, ...]`, fields in the order they are
declared here. Times are nanoseconds of the sender's `time.monotonic_ns()`.
"""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import msgpack

from protocol.fields import (
    MAX_ID,
    BadMessage,
    Check,
    array,
    boolean,
    checked,
    facts,
    integer,
    integers,
    one_of,
    optional,
    real,
    text,
)

VERSION = 1
MAX_PROMPT_TOKENS = 2**20
MAX_REPLY_TOKENS = 2**20
MAX_TOKEN_ID = 2**31 - 1

ENDS = ("completed", "rejected", "failed", "cancelled", "unfinished")
FINISHES = ("stop", "length", "cancelled")

request_id: Check = integer(0, MAX_ID)
time_ns: Check = integer()
prompt_tokens: Check = integers(MAX_PROMPT_TOKENS, MAX_TOKEN_ID)
words: Check = text(65_536)
reply_tokens: Check = integers(MAX_REPLY_TOKENS, MAX_TOKEN_ID)
finishes: Check = one_of(*FINISHES)
gaps: Check = array(real(-1e30, 1e30), MAX_REPLY_TOKENS)


def nested(kind: type) -> Check:
    """A message part that is itself a dataclass: an array with its fields in order."""
    checks = [f.metadata["check"] for f in fields(kind)]

    def check(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(checks):
            raise BadMessage(f"not the {len(checks)} fields of {kind.__name__}")
        return kind(*[one(item) for one, item in zip(checks, value, strict=True)])

    return check


# --- parts ---


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    temperature: float = checked(real(0, 10), default=0.0)
    top_p: float = checked(real(0, 1), default=1.0)
    top_k: int = checked(integer(0, 2**20), default=0)


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One turn of the conversation that a prompt is made of."""

    role: str = checked(text(64))
    content: str = checked(text(4 * 2**20))


class Row(NamedTuple):
    """What one request got from one step: its tokens (the stop token left out), their text, and how it ended, if so.

    `margins` are the logit gaps between the two best candidates, one a token, when the request asked for them. Every
    token of a run is packed and unpacked twice in a row, which costs a third of what a frozen dataclass does.
    """

    id: int
    tokens: tuple[int, ...]
    text: str
    finish: str | None = None
    margins: tuple[float, ...] | None = None


def row(value: Any) -> Row:
    """The check of a row."""
    if type(value) is not tuple or len(value) != len(Row._fields):
        raise BadMessage(f"not the {len(Row._fields)} fields of Row")
    id, tokens, said, finish, margins = value
    request_id(id)
    reply_tokens(tokens)
    words(said)
    if finish is not None:
        finishes(finish)
    return Row._make(value) if margins is None else Row(id, tokens, said, finish, gaps(margins))


# --- anyone to the router, and back ---


@dataclass(frozen=True, slots=True)
class Hello:
    """The first word of a process. `instance` is drawn anew at every start, `index` is a client's stride (of `of`)."""

    role: str = checked(one_of("client", "worker"))
    instance: str = checked(text(64))
    index: int = checked(integer(0, 9_999), default=0)
    of: int = checked(integer(1, 10_000), default=1)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The router's answer to Hello: which router this is, and which cell of a run it serves."""

    router: str = checked(text(64))
    cell: str = checked(text(256))


@dataclass(frozen=True, slots=True)
class Refused:
    """The router will not take what the peer said; `id` is the request's, where one could be read."""

    reason: str = checked(text(4096))
    id: int | None = checked(optional(request_id), default=None)


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for the peer's clock; `sent` comes back unchanged."""

    sent: int = checked(time_ns)


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to Ping: the same `sent`, and the peer's clock as it answered."""

    sent: int = checked(time_ns)
    at: int = checked(time_ns)


@dataclass(frozen=True, slots=True)
class Beat:
    """Still here. From the router `open` counts this client's requests in it; from the worker `steps` is its step
    counter, and `busy_s` how long the step under way has lasted."""

    instance: str = checked(text(64))
    open: int = checked(integer(0, MAX_ID), default=0)
    steps: int = checked(integer(0, MAX_ID), default=0)
    busy_s: float = checked(real(0, 1e9), default=0.0)


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender is leaving and expects nothing more."""

    reason: str = checked(text(4096), default="")


# --- before the start ---


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Conversations to be turned into prompt tokens; `batch` comes back with the answer."""

    batch: int = checked(integer(0, MAX_ID))
    prompts: tuple[tuple[ChatTurn, ...], ...] = checked(array(array(nested(ChatTurn), 1_024), 4_096))


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The answer to Tokenize, prompt by prompt; `error` says why there is none."""

    batch: int = checked(integer(0, MAX_ID))
    prompts: tuple[tuple[int, ...], ...] = checked(array(prompt_tokens, 4_096))
    error: str | None = checked(optional(text(4096)), default=None)


@dataclass(frozen=True, slots=True)
class ClientReady:
    """A client knows its prompts and has stamped its clock. `prompt_lengths` are the distinct ones, in tokens."""

    requests: int = checked(integer(0, MAX_ID))
    prompt_lengths: tuple[int, ...] = checked(integers(MAX_PROMPT_TOKENS))


@dataclass(frozen=True, slots=True)
class Prepare:
    """The worker is to warm up for at most `seats` requests at once, with prompts of these lengths."""

    seats: int = checked(integer(1, 100_000))
    prompt_lengths: tuple[int, ...] = checked(integers(MAX_PROMPT_TOKENS))


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker is loaded (and, after Prepare, warm). `context` is the longest prompt plus reply, in tokens."""

    context: int = checked(integer(1, 2**40))
    warm: bool = checked(boolean())
    facts: dict[str, Any] = checked(facts())


@dataclass(frozen=True, slots=True)
class Start:
    """Time zero of the schedule, on the router's clock."""

    zero: int = checked(time_ns)


# --- requests, from client to router to worker ---


@dataclass(frozen=True, slots=True)
class Submit:
    """One request. `id` is its index in the union schedule of all clients; `deadline` counts seconds from its
    receipt by the router; `expected_tokens` is a prediction of the reply's length, for policies that use one;
    `prefix` counts the leading tokens that other requests have too, so that the worker keeps what it read of them."""

    id: int = checked(request_id)
    user: str = checked(text(256))
    tokens: tuple[int, ...] = checked(prompt_tokens)
    max_tokens: int = checked(integer(1, MAX_REPLY_TOKENS))
    ignore_eos: bool = checked(boolean(), default=False)
    stop: tuple[str, ...] = checked(array(text(1024), 16), default=())
    sampling: Sampling = checked(nested(Sampling), default=GREEDY)
    expected_tokens: int | None = checked(optional(integer(0, MAX_REPLY_TOKENS)), default=None)
    priority: int = checked(integer(-1_000_000, 1_000_000), default=0)
    deadline: float | None = checked(optional(real(0, 1e9)), default=None)
    margins: bool = checked(boolean(), default=False)
    prefix: int = checked(integer(0, MAX_PROMPT_TOKENS), default=0)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The requests nobody waits for any more."""

    ids: tuple[int, ...] = checked(integers(1_000_000, MAX_ID))


@dataclass(frozen=True, slots=True)
class Admit:
    """The requests of one admission: inserted together, or a static bus would board in pieces."""

    requests: tuple[Submit, ...] = checked(array(nested(Submit), 100_000))


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one step brought to one client; `end` is when the worker's step ended."""

    end: int = checked(time_ns)
    rows: tuple[Row, ...] = checked(array(row, 100_000))


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that ended without completing, and why."""

    id: int = checked(request_id)
    end: str = checked(one_of(*ENDS))
    detail: str = checked(text(4096))


# --- the worker's steps ---


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine, [begin, end]: rows that decoded, prompts that were read in it, prompt tokens read in
    all, and who got what. `read` pairs a request's id with its prompt tokens read in this step, `reused` with those
    that need not be read, since they were found in the prefix cache."""

    begin: int = checked(time_ns)
    end: int = checked(time_ns)
    decoding: int = checked(integer(0, 100_000))
    reading: int = checked(integer(0, 100_000))
    prompt_tokens: int = checked(integer(0, 2**40))
    rows: tuple[Row, ...] = checked(array(row, 100_000))
    read: tuple[tuple[int, ...], ...] = checked(array(integers(2, shortest=2), 100_000), default=())
    reused: tuple[tuple[int, ...], ...] = checked(array(integers(2, shortest=2), 100_000), default=())


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine broke: these requests are lost, for this cause."""

    ids: tuple[int, ...] = checked(integers(1_000_000, MAX_ID))
    cause: str = checked(text(4096))


Message = (
    Hello | Welcome | Refused | Ping | Pong | Beat | Bye
    | Tokenize | Tokenized | ClientReady | Prepare | WorkerReady | Start
    | Submit | Cancel | Admit | Tokens | Ended | Step | Failed
)  # fmt: skip

# The tags are spelled out, so that renaming a class never changes what is on the wire.
TAGS: dict[str, type[Message]] = {
    "hello": Hello, "welcome": Welcome, "refused": Refused, "ping": Ping, "pong": Pong, "beat": Beat, "bye": Bye,
    "tokenize": Tokenize, "tokenized": Tokenized, "client-ready": ClientReady, "prepare": Prepare,
    "worker-ready": WorkerReady, "start": Start, "submit": Submit, "cancel": Cancel, "admit": Admit,
    "tokens": Tokens, "ended": Ended, "step": Step, "failed": Failed,
}  # fmt: skip
_TAG_OF = {kind: tag for tag, kind in TAGS.items()}
_CHECKS = {tag: nested(kind) for tag, kind in TAGS.items()}
_NAMES: dict[type, tuple[str, ...]] = {}


def _plain(value: Any) -> Any:
    """A dataclass as the list of its fields, shallow: msgpack comes back for what is nested."""
    kind = type(value)
    names = _NAMES.get(kind)
    if names is None:
        if not is_dataclass(kind):
            raise TypeError(f"{kind.__name__} has no place in a message")
        names = _NAMES[kind] = tuple(f.name for f in fields(kind))
    return [getattr(value, name) for name in names]


def encode(message: Message, run: str) -> bytes:
    """A message of the run `run` as bytes."""
    data: bytes = msgpack.packb([VERSION, _TAG_OF[type(message)], run, *_plain(message)], default=_plain)
    return data


def decode(data: bytes, run: str) -> Message:
    """The message in `data`, which must be of the run `run`. Raises `BadMessage`, and nothing else, on whatever a peer
    may send."""
    try:
        raw = msgpack.unpackb(data, use_list=False, strict_map_key=True, max_ext_len=0)
    except Exception as error:
        raise BadMessage(f"not msgpack: {type(error).__name__}") from None
    if type(raw) is not tuple or len(raw) < 3 or type(raw[0]) is not int or raw[0] != VERSION:
        raise BadMessage("not a message of this version")
    _, tag, sent_run, *_ = raw
    check = _CHECKS.get(tag) if type(tag) is str else None
    if check is None or type(sent_run) is not str or len(sent_run) > 128:
        raise BadMessage("an unknown kind of message")
    if sent_run != run:
        raise BadMessage(f"a message of another run ({sent_run[:40]!r})")
    message: Message = check(raw[3:])
    return message


def readable_id(data: bytes) -> int | None:
    """The id of a request in a message that `decode` refused, if one can be read."""
    try:
        raw = msgpack.unpackb(data, strict_map_key=True, max_ext_len=0)
        return int(request_id(raw[3])) if raw[1] in ("submit", "ended") else None
    except Exception:
        return None
