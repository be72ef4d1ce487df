"""Every message that one process sends another, as named tuples, and their form on the wire.

On the wire a message is one msgpack array `[version, tag, run, field, field, ...]`, fields in the order they are
declared here, each guarded by the check beside its type. A named tuple goes through msgpack as it is, a frozen
dataclass takes three times as long. Times are nanoseconds of the sender's `time.monotonic_ns()`.
"""

from operator import call
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgpack

from protocol.fields import (
    MAX_ID,
    BadMessage,
    Check,
    array,
    boolean,
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


def checks_of(kind: Any) -> dict[str, Check]:
    """What guards each field of a message, or of a part of one."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in kind._fields}


def nested(kind: Any) -> Check:
    """A message, or a part of one: an array with its fields in order."""
    checks, make = [*checks_of(kind).values()], kind._make
    count = len(checks)

    def check(value: Any) -> Any:
        if type(value) is not tuple or len(value) != count:
            raise BadMessage(f"not the {count} fields of {kind.__name__}")
        return make(map(call, checks, value))

    return check


# --- parts ---


class Sampling(NamedTuple):
    """How the next token is chosen; temperature 0 is greedy."""

    temperature: Annotated[float, real(0, 10)] = 0.0
    top_p: Annotated[float, real(0, 1)] = 1.0
    top_k: Annotated[int, integer(0, 2**20)] = 0


GREEDY = Sampling()


class ChatTurn(NamedTuple):
    """One turn of the conversation that a prompt is made of."""

    role: Annotated[str, text(64)]
    content: Annotated[str, text(4 * 2**20)]


class Row(NamedTuple):
    """What one request got from one step: its tokens (the stop token left out), their text, and how it ended, if so.

    `margins` are the logit gaps between the two best candidates, one a token, when the request asked for them.
    """

    id: Annotated[int, request_id]
    tokens: Annotated[tuple[int, ...], integers(MAX_REPLY_TOKENS, MAX_TOKEN_ID)]
    text: Annotated[str, text(65_536)]
    finish: Annotated[str | None, optional(one_of(*FINISHES))] = None
    margins: Annotated[tuple[float, ...] | None, optional(array(real(-1e30, 1e30), MAX_REPLY_TOKENS))] = None


# --- anyone to the router, and back ---


class Hello(NamedTuple):
    """The first word of a process. `instance` is drawn anew at every start, `index` is a client's stride (of `of`)."""

    role: Annotated[str, one_of("client", "worker")]
    instance: Annotated[str, text(64)]
    index: Annotated[int, integer(0, 9_999)] = 0  # type: ignore[assignment]  # hides a method of tuples
    of: Annotated[int, integer(1, 10_000)] = 1


class Welcome(NamedTuple):
    """The router's answer to Hello: which router this is, and which cell of a run it serves."""

    router: Annotated[str, text(64)]
    cell: Annotated[str, text(256)]


class Refused(NamedTuple):
    """The router will not take what the peer said; `id` is the request's, where one could be read."""

    reason: Annotated[str, text(4096)]
    id: Annotated[int | None, optional(request_id)] = None


class Ping(NamedTuple):
    """Asks for the peer's clock; `sent` comes back unchanged."""

    sent: Annotated[int, time_ns]


class Pong(NamedTuple):
    """The answer to Ping: the same `sent`, and the peer's clock as it answered."""

    sent: Annotated[int, time_ns]
    at: Annotated[int, time_ns]


class Beat(NamedTuple):
    """Still here. From the router `open` counts this client's requests in it; from the worker `steps` is its step
    counter, and `busy_s` how long the step under way has lasted."""

    instance: Annotated[str, text(64)]
    open: Annotated[int, integer(0, MAX_ID)] = 0
    steps: Annotated[int, integer(0, MAX_ID)] = 0
    busy_s: Annotated[float, real(0, 1e9)] = 0.0


class Bye(NamedTuple):
    """The sender is leaving and expects nothing more."""

    reason: Annotated[str, text(4096)] = ""


# --- before the start ---


class Tokenize(NamedTuple):
    """Conversations to be turned into prompt tokens; `batch` comes back with the answer."""

    batch: Annotated[int, integer(0, MAX_ID)]
    prompts: Annotated[tuple[tuple[ChatTurn, ...], ...], array(array(nested(ChatTurn), 1_024), 4_096)]


class Tokenized(NamedTuple):
    """The answer to Tokenize, prompt by prompt; `error` says why there is none."""

    batch: Annotated[int, integer(0, MAX_ID)]
    prompts: Annotated[tuple[tuple[int, ...], ...], array(prompt_tokens, 4_096)]
    error: Annotated[str | None, optional(text(4096))] = None


class ClientReady(NamedTuple):
    """A client knows its prompts and has stamped its clock. `prompt_lengths` are the distinct ones, in tokens."""

    requests: Annotated[int, integer(0, MAX_ID)]
    prompt_lengths: Annotated[tuple[int, ...], integers(MAX_PROMPT_TOKENS)]


class Prepare(NamedTuple):
    """The worker is to warm up for at most `seats` requests at once, with prompts of these lengths."""

    seats: Annotated[int, integer(1, 100_000)]
    prompt_lengths: Annotated[tuple[int, ...], integers(MAX_PROMPT_TOKENS)]


class WorkerReady(NamedTuple):
    """The worker is loaded (and, after Prepare, warm). `context` is the longest prompt plus reply, in tokens."""

    context: Annotated[int, integer(1, 2**40)]
    warm: Annotated[bool, boolean()]
    facts: Annotated[dict[str, Any], facts()]


class Start(NamedTuple):
    """Time zero of the schedule, on the router's clock."""

    zero: Annotated[int, time_ns]


# --- requests, from client to router to worker ---


class Submit(NamedTuple):
    """One request. `id` is its index in the union schedule of all clients; `deadline` counts seconds from its
    receipt by the router; `expected_tokens` is a prediction of the reply's length, for policies that use one;
    `prefix` counts the leading tokens that other requests have too, so that the worker keeps what it read of them."""

    id: Annotated[int, request_id]
    user: Annotated[str, text(256)]
    tokens: Annotated[tuple[int, ...], prompt_tokens]
    max_tokens: Annotated[int, integer(1, MAX_REPLY_TOKENS)]
    ignore_eos: Annotated[bool, boolean()] = False
    stop: Annotated[tuple[str, ...], array(text(1024), 16)] = ()
    sampling: Annotated[Sampling, nested(Sampling)] = GREEDY
    expected_tokens: Annotated[int | None, optional(integer(0, MAX_REPLY_TOKENS))] = None
    priority: Annotated[int, integer(-1_000_000, 1_000_000)] = 0
    deadline: Annotated[float | None, optional(real(0, 1e9))] = None
    margins: Annotated[bool, boolean()] = False
    prefix: Annotated[int, integer(0, MAX_PROMPT_TOKENS)] = 0


class Cancel(NamedTuple):
    """The requests nobody waits for any more."""

    ids: Annotated[tuple[int, ...], integers(1_000_000, MAX_ID)]


class Admit(NamedTuple):
    """The requests of one admission: inserted together, or a static bus would board in pieces."""

    requests: Annotated[tuple[Submit, ...], array(nested(Submit), 100_000)]


class Tokens(NamedTuple):
    """What one step brought to one client; `end` is when the worker's step ended."""

    end: Annotated[int, time_ns]
    rows: Annotated[tuple[Row, ...], array(nested(Row), 100_000)]


class Ended(NamedTuple):
    """A request that ended without completing, and why."""

    id: Annotated[int, request_id]
    end: Annotated[str, one_of(*ENDS)]
    detail: Annotated[str, text(4096)]


# --- the worker's steps ---


class Step(NamedTuple):
    """One step of the engine, [begin, end]: rows that decoded, prompts that were read in it, prompt tokens read in
    all, and who got what. `read` pairs a request's id with its prompt tokens read in this step, `reused` with those
    that need not be read, since they were found in the prefix cache."""

    begin: Annotated[int, time_ns]
    end: Annotated[int, time_ns]
    decoding: Annotated[int, integer(0, 100_000)]
    reading: Annotated[int, integer(0, 100_000)]
    prompt_tokens: Annotated[int, integer(0, 2**40)]
    rows: Annotated[tuple[Row, ...], array(nested(Row), 100_000)]
    read: Annotated[tuple[tuple[int, ...], ...], array(integers(2, shortest=2), 100_000)] = ()
    reused: Annotated[tuple[tuple[int, ...], ...], array(integers(2, shortest=2), 100_000)] = ()


class Failed(NamedTuple):
    """The engine broke: these requests are lost, for this cause."""

    ids: Annotated[tuple[int, ...], integers(1_000_000, MAX_ID)]
    cause: Annotated[str, text(4096)]


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


def encode(message: Message, run: str) -> bytes:
    """A message of the run `run` as bytes."""
    data: bytes = msgpack.packb((VERSION, _TAG_OF[type(message)], run, *message), default=_refuse)
    return data


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} has no place in a message")


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
