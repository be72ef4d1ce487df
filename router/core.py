"""The router as a pure state machine: events in, actions out. It owns the queue, the seats and the in-flight table.

It never reads a clock and never touches a socket: every event brings its time, every action says what to send or
write. The poll loop and the simulator drive the same object.
"""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, NamedTuple

from protocol.clock import nanoseconds
from protocol.messages import Admit, Cancel, Ended, Refused, Row, Step, Submit, Tokens
from protocol.records import RequestRecord
from router.policies import Decision, Policy, PolicyError
from router.policy_files import in_words, place
from router.precedence import Precedence

Client = bytes


class ToClient(NamedTuple):
    """Send this to a client."""

    client: Client
    message: Tokens | Ended | Refused


class ToWorker(NamedTuple):
    """Send this to the worker."""

    message: Admit | Cancel


class Write(NamedTuple):
    """Keep this record."""

    record: RequestRecord


Action = ToClient | ToWorker | Write


class PolicyFailed(PolicyError):
    """A policy raised, or decided what it may not. `actions` was decided before it was asked, and has to be carried
    out all the same; with what is still here the router has to close."""

    def __init__(self, reason: str, actions: Sequence[Action]) -> None:
        super().__init__(reason)
        self.actions = [*actions]


@dataclass(slots=True, eq=False)
class Passage:
    """One request on its way through the router; what policies see of it is in `router.policies`. Cancelled in its
    seat, it has `ended` and stays there until the worker lets go."""

    id: int
    submit: Submit
    client: Client
    received: int
    unread: int
    admitted: int | None = None
    departure: int | None = None
    written: int = 0
    ended: int | None = None

    @property
    def user(self) -> str:
        return self.submit.user

    @property
    def priority(self) -> int:
        return self.submit.priority

    @property
    def deadline(self) -> float | None:
        return self.submit.deadline

    @property
    def prompt_tokens(self) -> int:
        return len(self.submit.tokens)

    @property
    def max_tokens(self) -> int:
        return self.submit.max_tokens

    @property
    def expected_tokens(self) -> int | None:
        return self.submit.expected_tokens


@dataclass(slots=True, order=True)
class Expiry:
    """When a request's time is over."""

    at: int
    passage: Passage = field(compare=False)


@dataclass(slots=True)
class Core:
    """All that the router knows of its requests. `seats` bounds those in the worker, `queue` those waiting,
    `timeout` (seconds) the life of one; `context` is the worker's limit on prompt plus reply, None until it is known.
    `queue_area` is the number waiting integrated over time, in nanoseconds: what all waits must add up to; `passage` is
    what a request is made to be here. An event may raise PolicyFailed.
    """

    passage: ClassVar[type[Passage]] = Passage
    policy: Policy
    cell: str
    queue: int = 4096
    timeout: float | None = None
    context: int | None = None
    worker: bool = field(default=False, init=False)
    completed: int = field(default=0, init=False)
    ended: int = field(default=0, init=False)
    tokens: int = field(default=0, init=False)
    departures: int = field(default=0, init=False)
    policy_wake: int | None = field(default=None, init=False)
    queue_area: int = field(default=0, init=False)
    longest_queue: int = field(default=0, init=False)
    _queue_changed: int = field(default=0, init=False)
    _waiting: OrderedDict[int, Passage] = field(default_factory=OrderedDict, init=False)
    _running: dict[int, Passage] = field(default_factory=dict, init=False)
    _served: dict[str, int] = field(default_factory=dict, init=False)
    _expiries: list[Expiry] = field(default_factory=list, init=False)
    _precedence: Precedence[Passage] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        order = getattr(self.policy, "order", None)
        self._precedence = Precedence(order, self._waiting, self._served) if order is not None else None

    # --- what policies see ---

    @property
    def waiting(self) -> Collection[Passage]:
        return self._waiting.values()

    def first(self, most: int) -> Sequence[Passage]:
        if self._precedence is not None:
            return self._in_order(self._precedence, most)
        waiting = self._waiting.values()
        return [*waiting] if len(waiting) <= most else [*islice(waiting, max(0, most))]

    @property
    def running(self) -> Collection[Passage]:
        return self._running.values()

    @property
    def free(self) -> int:
        return self.policy.seats - len(self._running)

    @property
    def served(self) -> Mapping[str, int]:
        return self._served

    # --- what the loop asks ---

    @property
    def wake_at(self) -> int | None:
        """When `woken` must be called if nothing happens before."""
        expiries = self._expiries
        while expiries and expiries[0].passage.ended is not None:
            heapq.heappop(expiries)
        if not expiries:
            return self.policy_wake
        expiry = expiries[0].at
        return expiry if self.policy_wake is None else min(self.policy_wake, expiry)

    def open_for(self, client: Client) -> int:
        """How many requests of this client have not ended."""
        return sum(p.client == client and p.ended is None for p in (*self.waiting, *self.running))

    # --- events ---

    def submitted(self, now: int, client: Client, submit: Submit) -> list[Action]:
        """A request arrived."""
        if submit.id in self._waiting or submit.id in self._running:
            return [ToClient(client, self._again(client, submit.id))]
        passage = self.passage(submit.id, submit, client, now, len(submit.tokens))
        refusal = self._refusal(submit)
        if refusal is not None:
            return self._end(now, passage, *refusal)
        self._count_queue(now)
        self._waiting[submit.id] = passage
        if self._precedence is not None:
            self._precedence.add(passage)
        if self.timeout is not None:
            heapq.heappush(self._expiries, Expiry(now + nanoseconds(self.timeout), passage))
        return self._ask(now)

    def stepped(self, now: int, step: Step) -> list[Action]:
        """The worker finished a step."""
        for id, read in (*step.read, *step.reused):
            if id in self._running:
                self._running[id].unread -= read
        shares: dict[Client, list[Row]] = {}
        actions: list[Action] = []
        freed = False
        for row in step.rows:
            passage = self._running.get(row.id)
            if passage is None:
                continue
            if row.tokens:
                self._count(passage, len(row.tokens))
            if passage.ended is None:
                shares.setdefault(passage.client, []).append(row)
            if row.finish is not None:
                freed = True
                actions += self._finish(now, passage, row.finish)
        sends: list[Action] = [ToClient(client, Tokens(step.end, tuple(rows))) for client, rows in shares.items()]
        told = sends + actions
        return self._ask(now, told) if freed or (self._waiting and self.free > 0) else told

    def cancelled(self, now: int, client: Client, ids: Collection[int], detail: str) -> list[Action]:
        """A client no longer waits for these of its requests; ids that are not its own are ignored."""
        actions = []
        for id in ids:
            passage = self._waiting.get(id) or self._running.get(id)
            if passage is not None and passage.client == client:
                actions += self._let_go(now, passage, "cancelled", detail)
        return self._ask(now, actions)

    def client_left(self, now: int, client: Client) -> list[Action]:
        """A client said goodbye: what it still had here is cancelled."""
        return self._drop(now, client, "cancelled", "its client left")

    def client_lost(self, now: int, client: Client, detail: str) -> list[Action]:
        """A client vanished or cannot be served: everything of it fails."""
        return self._drop(now, client, "failed", detail)

    def worker_came(self, now: int, context: int) -> list[Action]:
        """A worker is ready for requests."""
        self.worker, self.context = True, context
        return self._ask(now)

    def worker_gone(self, now: int, detail: str) -> list[Action]:
        """The worker died: all its requests fail, and so do those that waited for it."""
        self.worker = False
        return self.failed(now, [*self._running, *self._waiting], detail)

    def failed(self, now: int, ids: Collection[int], detail: str) -> list[Action]:
        """These requests are lost."""
        actions = []
        for id in ids:
            passage = self._running.pop(id, None) or self._unqueue(now, id)
            if passage is not None:
                actions += self._end(now, passage, "failed", detail)
        return self._ask(now, actions)

    def closing(self, now: int, detail: str) -> list[Action]:
        """The router stops: whatever is still here fails."""
        return self.failed(now, [*self._running, *self._waiting], detail)

    def woken(self, now: int) -> list[Action]:
        """The time `wake_at` has come."""
        actions = []
        while self._expiries and self._expiries[0].at <= now:
            expiry = heapq.heappop(self._expiries)
            if expiry.passage.ended is None:
                actions += self._let_go(now, expiry.passage, "cancelled", f"timed out after {self.timeout:g} s")
        return self._ask(now, actions)

    # --- how ---

    def _in_order(self, precedence: Precedence[Passage], most: int) -> Sequence[Passage]:
        return precedence.first(most)

    def _again(self, client: Client, id: int) -> Refused | Ended:
        """Its own client must not take this for the end of the request that goes on."""
        detail, here = f"request {id} is here already", self._waiting.get(id) or self._running[id]
        return Refused(detail) if here.client == client else Ended(id, "rejected", detail)

    def _refusal(self, submit: Submit) -> tuple[str, str] | None:
        length = len(submit.tokens)
        if not self.worker:
            return "failed", "there is no worker"
        if not length:
            return "rejected", f"request {submit.id} of {submit.user} has an empty prompt"
        if self.context is not None and length + submit.max_tokens > self.context:
            return "rejected", (
                f"request {submit.id} of {submit.user}: a prompt of {length} tokens and a reply of up to "
                f"{submit.max_tokens} exceed the model's context of {self.context}"
            )
        if len(self._waiting) >= self.queue:
            return "rejected", f"the queue is full ({self.queue} waiting)"
        return None

    def _ask(self, now: int, before: Sequence[Action] = ()) -> list[Action]:
        """What was decided `before`, and then what the policy decides."""
        self.policy_wake = None
        actions = [*before]
        if not self._waiting or not self.worker:
            return actions
        try:
            decision = self.policy.decide(now, self)
            self._check(now, decision)
        except Exception as error:
            what = str(error) if isinstance(error, PolicyError) else in_words(error)
            raise PolicyFailed(f"the policy failed: {what} ({place(type(self.policy), error)})", actions) from error
        admit, reject, self.policy_wake = decision
        for id, reason in reject:
            actions += self._let_go(now, self._waiting[id], "rejected", reason)
        if admit:
            actions += self._admit(now, admit)
        return actions

    def _check(self, now: int, decision: Decision) -> None:
        if not isinstance(decision, Decision):
            raise PolicyError(f"policy {self.policy.name} returned {type(decision).__name__}, not a Decision")
        admit, reject, wake_at = decision
        named = (*admit, *[id for id, _ in reject]) if reject else admit
        if len(named) != len({*named}) or not all(map(self._waiting.__contains__, named)):
            raise PolicyError(f"policy {self.policy.name} named a request twice, or one that does not wait")
        if len(admit) + len(self._running) > self.policy.seats:
            raise PolicyError(f"policy {self.policy.name} admitted {len(admit)} to {self.free} free seats")
        if reject and not all(isinstance(reason, str) for _, reason in reject):
            raise PolicyError(f"policy {self.policy.name} rejected without words")
        if wake_at is not None and not isinstance(wake_at, int):
            raise PolicyError(f"policy {self.policy.name}: wake_at is a whole number, not {wake_at!r}")
        if wake_at is not None and wake_at <= now:
            raise PolicyError(f"policy {self.policy.name} asks to be woken in the past")

    def _admit(self, now: int, ids: tuple[int, ...]) -> list[Action]:
        return [ToWorker(Admit(tuple([passage.submit for passage in self._seated(now, ids)])))]

    def _seated(self, now: int, ids: tuple[int, ...]) -> list[Passage]:
        """Out of the queue, into seats."""
        self._count_queue(now)
        seated = []
        for id in ids:
            passage = self._running[id] = self._waiting.pop(id)
            passage.admitted, passage.departure = now, self.departures
            seated.append(passage)
        self.departures += 1
        return seated

    def _unqueue(self, now: int, id: int) -> Passage | None:
        """Out of the queue, if it is there."""
        self._count_queue(now)
        return self._waiting.pop(id, None)

    def _count_queue(self, now: int) -> None:
        """Add the queue's length since its last change to the integral; called before every change."""
        if now > self._queue_changed:
            waiting = len(self._waiting)
            if waiting > self.longest_queue:
                self.longest_queue = waiting
            self.queue_area += waiting * (now - self._queue_changed)
            self._queue_changed = now

    def _count(self, passage: Passage, tokens: int) -> None:
        passage.written += tokens
        self.tokens += tokens
        user, served = passage.submit.user, self._served
        served[user] = served.get(user, 0) + tokens

    def _finish(self, now: int, passage: Passage, finish: str) -> list[Action]:
        """The worker let go of a request: its seat is free. The row that said so is the client's last word."""
        del self._running[passage.id]
        if passage.ended is not None:
            return []
        if finish == "cancelled":
            return [self._close(now, passage, "cancelled", "cancelled by the worker", finish)]
        self.completed += 1
        return [self._close(now, passage, "completed", None, finish)]

    def _drop(self, now: int, client: Client, end: str, detail: str) -> list[Action]:
        actions = []
        for passage in [p for p in (*self.waiting, *self.running) if p.client == client]:
            actions += self._let_go(now, passage, end, detail)
        return self._ask(now, actions)

    def _let_go(self, now: int, passage: Passage, end: str, detail: str) -> list[Action]:
        """Out of the queue at once; out of its seat when the worker says so, one step later."""
        if self._unqueue(now, passage.id) is not None:
            return self._end(now, passage, end, detail)
        stop = [] if passage.ended is not None else self._stop(passage)
        return stop + self._end(now, passage, end, detail)

    def _stop(self, passage: Passage) -> list[Action]:
        return [ToWorker(Cancel((passage.id,)))]

    def _end(self, now: int, passage: Passage, end: str, detail: str) -> list[Action]:
        """Tell the client and the records, unless they know of an end already."""
        if passage.ended is not None:
            return []
        closed = self._close(now, passage, end, detail, None)
        return [ToClient(passage.client, Ended(passage.id, end, detail)), closed]

    def _close(self, now: int, passage: Passage, end: str, detail: str | None, finish: str | None) -> Write:
        passage.ended = now
        self.ended += 1
        return Write(self._record(passage, end, detail, finish))

    def _record(self, passage: Passage, end: str, detail: str | None, finish: str | None) -> RequestRecord:
        return RequestRecord(
            cell=self.cell,
            id=passage.id,
            user=passage.user,
            prompt_tokens=passage.prompt_tokens,
            max_tokens=passage.max_tokens,
            received=passage.received,
            admitted=passage.admitted,
            departure=passage.departure,
            ended=passage.ended,
            end=end,
            detail=detail,
            finish=finish,
        )
