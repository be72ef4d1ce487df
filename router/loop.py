"""The router process: moves messages between sockets and the pure core, keeps the roll call, starts and ends a cell."""

import os
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import zmq

from protocol import messages as m
from protocol.clock import (
    SECOND,
    ceil_ms,
    now,
    quiet_collector,
    seconds,
)
from protocol.fields import BadMessage
from protocol.messages import Message, decode, readable_id
from protocol.priority import ROUTER_RANK, run_first, stay_in_memory, stay_on_one_core, tighten_timers
from protocol.process import StopRequest, host, resident_bytes
from protocol.records import QueueRecord, RecordWriter, RouterRecord
from protocol.wire import Mailbox, PeerGone, PeerSlow, fresh_instance, mailbox, poller
from router.assembly import HUNG_STEP_S, Assembly, ClientPeer, WorkerPeer
from router.core import Action, Core, PolicyFailed, ToClient, ToWorker, Write
from router.policies import Policy, params
from router.policy_files import sha256

BEAT = SECOND // 2
REPORT = SECOND // 4
LONGEST_POLL = SECOND // 2
LEAD = SECOND // 5
FAREWELL = SECOND
MOST_BAD = 100
TURN = 256


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """What a router is started with. `timeout` and `start_timeout` in seconds; `out` is the records' folder."""

    front: str
    back: str
    run: str
    cell: str
    policy: Policy
    queue: int
    timeout: float | None
    clients: int
    out: Path
    start_timeout: float = 60.0
    labels: dict[str, Any] = field(default_factory=dict)


class RouterLoop:
    """One cell of a run, from the first HELLO to the last BYE."""

    def __init__(self, settings: RouterSettings, stop: StopRequest) -> None:
        """Bind both endpoints and open the records. Raises WireError or OSError."""
        tighten_timers()
        self.giving_way = False
        self.on_one_core = run_first(ROUTER_RANK) == "real-time"
        if self.on_one_core:
            stay_on_one_core()
        self.settings, self.stop = settings, stop
        self.instance = fresh_instance()
        self.core = Core(settings.policy, settings.cell, settings.queue, settings.timeout)
        self.peers = Assembly(settings.clients)
        self.context = zmq.Context()
        self.front = mailbox(self.context, settings.front, settings.run)
        self.back = mailbox(self.context, settings.back, settings.run)
        self.records = RecordWriter(settings.out / f"{settings.cell}.router.msgpack", alone=True)
        self.zero: int | None = None
        self.dismissed = False
        self.born = self.last_beat = self.last_report = now()
        self.tokenizing: dict[int, tuple[bytes, m.Tokenize]] = {}
        self.batches = 0
        self.bad: Counter[bytes] = Counter()
        self.unreachable: dict[bytes, str] = {}
        self.worker_lost: str | None = None
        self.left_early: str | None = None
        self.outbox: deque[Action] = deque()
        self.acting = False
        self.failure: str | None = None

    # --- the loop ---

    def serve(self) -> int:
        """Serve the cell; the exit status: 0 when every client came and left and the worker lived, else 1."""
        self._open()
        try:
            self._turn_until_done()
        except PolicyFailed as failed:
            self.failure, self.acting = str(failed), False
            self._act(failed.actions)
        return self._close()

    def _turn_until_done(self) -> None:
        """Raises PolicyFailed."""
        ready = poller(self.front, self.back)
        quiet_collector()
        while not (self.stop.requested or self.failure or self.peers.finished):
            spoken = [socket for socket, _ in ready.poll(self._patience())]
            self.giving_way = self.on_one_core
            if self.back.socket in spoken:
                self._drain(self.back, self._from_worker)
            if self.front.socket in spoken:
                self._drain(self.front, self._from_client)
            self._lose_unreachable()
            at = now()
            if self.core.wake_at is not None and at >= self.core.wake_at:
                self._act(self.core.woken(at))
            self._keep_time(at)

    def _open(self) -> None:
        s = self.settings
        policy = (s.policy.name, params(s.policy))
        self.records.write(
            RouterRecord(
                *(s.cell, *policy, s.queue, s.timeout, s.clients, s.run, s.labels, host()),
                resident_bytes=resident_bytes(),
                policy_sha256=sha256(type(s.policy)),
            )
        )
        self._say("bound", front=s.front, back=s.back)

    def _patience(self) -> int:
        """Milliseconds to wait for a message before something else is due."""
        at = now()
        due = min(at + LONGEST_POLL, self.last_beat + BEAT)
        if self.core.wake_at is not None:
            due = min(due, self.core.wake_at)
        return ceil_ms(due - at)

    def _drain(self, box: Mailbox, take: Callable[[bytes, Message], None]) -> None:
        """Take what has arrived, a bounded share of it, so that neither side starves the other."""
        for _ in range(TURN):
            got = box.receive()
            if got is None:
                return
            peer, data = got
            try:
                message = decode(data, self.settings.run)
            except BadMessage as error:
                self._bad(box, peer, data, str(error))
                continue
            take(peer, message)

    def _bad(self, box: Mailbox, peer: bytes, data: bytes, reason: str) -> None:
        """Answer a bad message; a peer that keeps sending them is cut off, and hears nothing more."""
        self.bad[peer] += 1
        if self.bad[peer] <= MOST_BAD:
            self._send(box, peer, m.Refused(reason, readable_id(data)))
        elif (client := self.peers.clients.get(peer)) is not None:
            self._lose_client(client, "sent too many bad messages")

    def _close(self) -> int:
        reason = "the router was stopped" if self.stop.requested else self.failure or "the cell is done"
        self._act(self.core.closing(now(), reason))
        for peer in [*self.peers.clients]:
            self._send(self.front, peer, m.Bye(reason))
        self._dismiss_worker(reason)
        self._account(reason)
        self._report()
        self._say("ended", reason=reason, lost_clients=self.peers.lost)
        self.front.close()
        self.back.close()
        self.context.term()
        self.records.close()
        return 0 if self.peers.finished and not self.peers.lost and not self.failure else 1

    def _account(self, reason: str) -> None:
        """Keep what only the router knows of the whole cell."""
        core, lost = self.core, f"{self.peers.lost} of its clients were lost" if self.peers.lost else self.worker_lost
        cut_short = lost or self.failure or (self.left_early if self.peers.finished else reason)
        bad = sum(self.bad.values())
        self.records.write(
            QueueRecord(core.cell, core.queue_area, core.longest_queue, bad, cut_short, resident_bytes())
        )

    def _dismiss_worker(self, reason: str) -> None:
        """Let the worker read our clock once more before we leave; it answers with its own goodbye."""
        worker = self.peers.worker
        if worker is None:
            return
        self.dismissed = True
        self._send(self.back, worker.identity, m.Bye(reason))
        deadline = now() + FAREWELL
        while self.peers.worker is not None and now() < deadline:
            self.back.wait(ceil_ms(deadline - now()))
            self._drain(self.back, self._from_worker)

    # --- from clients ---

    def _from_client(self, identity: bytes, message: Message) -> None:
        at = now()
        if isinstance(message, m.Ping):
            self._send(self.front, identity, m.Pong(message.sent, at))
        elif isinstance(message, m.Hello):
            self._greet_client(identity, message, at)
        elif (client := self.peers.clients.get(identity)) is not None:
            client.heard = at
            self._from_known_client(client, message, at)
        else:
            self._send(self.front, identity, m.Refused("say hello first"))

    def _from_known_client(self, client: ClientPeer, message: Message, at: int) -> None:
        match message:
            case m.Submit():
                self._act(self.core.submitted(at, client.identity, message))
            case m.Cancel():
                self._act(self.core.cancelled(at, client.identity, message.ids, "cancelled by the client"))
            case m.Tokenize():
                self._pass_on(client, message)
            case m.ClientReady():
                client.ready = message
                self._prepare()
            case m.Bye():
                client.done = True
                if message.reason:
                    self.left_early = f"client {client.hello.index} left early: {message.reason}"
                self._act(self.core.client_left(at, client.identity))
            case m.Beat():
                pass
            case _:
                self._send(self.front, client.identity, m.Refused("not a client's message"))

    def _greet_client(self, identity: bytes, hello: m.Hello, at: int) -> None:
        refusal = self.peers.refusal(hello, self.zero is not None) if hello.role == "client" else "not a client"
        if refusal is not None:
            self._send(self.front, identity, m.Refused(refusal))
            return
        self.peers.clients.setdefault(identity, ClientPeer(identity, hello, at))
        self._send(self.front, identity, m.Welcome(self.instance, self.settings.cell))

    def _pass_on(self, client: ClientPeer, message: m.Tokenize) -> None:
        """Have the worker tokenize for a client, as soon as one is loaded."""
        self.batches += 1
        self.tokenizing[self.batches] = (client.identity, message)
        worker = self.peers.worker
        if worker is not None and worker.ready is not None:
            self._send(self.back, worker.identity, m.Tokenize(self.batches, message.prompts))

    # --- from the worker ---

    def _from_worker(self, identity: bytes, message: Message) -> None:
        at = now()
        worker = self.peers.worker
        if isinstance(message, m.Ping):
            self._send(self.back, identity, m.Pong(message.sent, at))
        elif isinstance(message, m.Hello):
            self._greet_worker(identity, message, at)
        elif isinstance(message, m.Beat):
            self._beaten(message, at)
        elif worker is not None and worker.identity == identity:
            worker.heard = at
            self._from_known_worker(worker, message, at)
        else:
            self._send(self.back, identity, m.Refused("say hello first"))

    def _from_known_worker(self, worker: WorkerPeer, message: Message, at: int) -> None:
        match message:
            case m.Step():
                self._act(self.core.stepped(at, message))
            case m.Failed():
                self._act(self.core.failed(at, message.ids, message.cause))
            case m.Tokenized():
                self._tokenized(message)
            case m.WorkerReady():
                self._worker_ready(worker, message, at)
            case m.Bye():
                if self.dismissed:
                    self.peers.worker = None
                else:
                    self._lose_worker(message.reason or "the worker left", at)
            case _:
                self._send(self.back, worker.identity, m.Refused("not a worker's message"))

    def _tokenized(self, answer: m.Tokenized) -> None:
        """Hand prompts to the client that asked, under its own batch number."""
        if (asked := self.tokenizing.pop(answer.batch, None)) is not None:
            identity, question = asked
            self._send(self.front, identity, m.Tokenized(question.batch, answer.prompts, answer.error))

    def _greet_worker(self, identity: bytes, hello: m.Hello, at: int) -> None:
        if self.dismissed:
            return  # it has said goodbye already, and looks for the next router
        refusal = self.peers.refusal(hello, False) if hello.role == "worker" else "not a worker"
        if refusal is not None:
            self._send(self.back, identity, m.Refused(refusal))
            return
        if self.peers.worker is None:
            self.peers.worker = WorkerPeer(identity, hello.instance, at)
            self._say("worker_joined")
        self.peers.worker.identity = identity
        self._send(self.back, identity, m.Welcome(self.instance, self.settings.cell))

    def _beaten(self, beat: m.Beat, at: int) -> None:
        worker = self.peers.worker
        if worker is None:
            self.born = at  # a worker that still loads its model is on its way
            return
        if worker.instance != beat.instance:
            return
        worker.heard = at
        if beat.busy_s > HUNG_STEP_S:
            self._lose_worker(f"the worker hangs: one step has lasted {beat.busy_s:.0f} s", at)

    def _worker_ready(self, worker: WorkerPeer, message: m.WorkerReady, at: int) -> None:
        worker.ready = message
        if not message.warm:
            for batch, (_, question) in self.tokenizing.items():
                self._send(self.back, worker.identity, m.Tokenize(batch, question.prompts))
            self._prepare()
            return
        self._act(self.core.worker_came(at, message.context))
        if self.zero is None and self.peers.all_clients_ready:
            self._start(at)

    def _prepare(self) -> None:
        """Once the clients' prompts are known, the worker warms up for them; a restarted worker does too."""
        worker = self.peers.worker
        if worker is None or worker.ready is None or worker.ready.warm or not self.peers.all_clients_ready:
            return
        seats = max(1, min(self.settings.policy.seats, self.peers.requests))
        self._send(self.back, worker.identity, m.Prepare(seats, self.peers.prompt_lengths))

    def _start(self, at: int) -> None:
        stay_in_memory()
        self.zero = at + LEAD
        for identity in [*self.peers.clients]:
            self._send(self.front, identity, m.Start(self.zero))
        self._say("started", zero=self.zero, worker=self.peers.worker_facts)

    # --- what is due ---

    def _keep_time(self, at: int) -> None:
        if at - self.last_beat >= BEAT:
            self.last_beat = at
            self._beat()
            for client in self.peers.silent_clients(at):
                self._lose_client(client, "has not been heard for 3 s")
            if self.peers.worker_silent(at):
                self._lose_worker("the worker has not been heard for 3 s", at)
            if self.zero is None and seconds(at - self.born) > self.settings.start_timeout:
                self._check_start()
        if self.zero is not None and at - self.last_report >= REPORT:
            self._report()
            self.last_report = at

    def _check_start(self) -> None:
        """A missing peer fails the run in one line; a worker that still loads its model is waited for."""
        waited = f"within {self.settings.start_timeout:g} s"
        if self.peers.worker is None:
            self.failure = f"no worker came {waited}; start one with: headway worker --router {self.settings.back}"
        elif len(self.peers.clients) < self.peers.expected:
            self.failure = f"{len(self.peers.clients)} of {self.peers.expected} clients came {waited}"

    def _beat(self) -> None:
        for identity, client in [*self.peers.clients.items()]:
            if not client.done:
                self._send(self.front, identity, m.Beat(self.instance, open=self.core.open_for(identity)))
        if self.peers.worker is not None:
            self._send(self.back, self.peers.worker.identity, m.Beat(self.instance))

    def _lose_client(self, client: ClientPeer, detail: str) -> None:
        if client.done or client.identity not in self.peers.clients:
            return
        del self.peers.clients[client.identity]
        self.peers.lost += 1
        self._say("client_lost", index=client.hello.index, detail=detail)
        self._act(self.core.client_lost(now(), client.identity, f"client {client.hello.index} {detail}"))

    def _lose_unreachable(self) -> None:
        """Clients that could not be sent to, but for those whose goodbye has come and only waited to be read."""
        while self.unreachable:
            self._drain(self.front, self._from_client)
            identity, detail = self.unreachable.popitem()
            if (client := self.peers.clients.get(identity)) is not None:
                self._lose_client(client, detail)

    def _lose_worker(self, detail: str, at: int) -> None:
        self.peers.worker, self.worker_lost = None, detail
        self._say("worker_lost", detail=detail)
        self._act(self.core.worker_gone(at, detail))

    # --- out ---

    def _act(self, actions: list[Action]) -> None:
        """Carry actions out in the order they were decided: what a failed send leads to comes after the rest."""
        self.outbox.extend(actions)
        if self.acting:
            return
        self.acting = True
        while self.outbox:
            action = self.outbox.popleft()
            if isinstance(action, ToClient):
                self._send(self.front, action.client, action.message)
            elif isinstance(action, ToWorker):
                if self.peers.worker is not None:
                    self._send(self.back, self.peers.worker.identity, action.message)
            elif isinstance(action, Write):
                self.records.write(action.record)
        self.acting = False

    def _send(self, box: Mailbox, peer: bytes, message: Message) -> None:
        """The first message after a wait leaves at once: on our one core the threads that carry messages, ours and then
        the peer's, wait until we sleep or give way. To give way after each of many costs more than it brings."""
        try:
            box.send(peer, message)
            if self.giving_way:
                self.giving_way = False
                os.sched_yield()
                os.sched_yield()
        except (PeerGone, PeerSlow) as error:
            client = self.peers.clients.get(peer)
            worker = self.peers.worker
            if box is self.front and client is not None:
                self.unreachable[peer] = str(error)
            elif box is self.back and worker is not None and worker.identity == peer:
                self._lose_worker(f"the worker {error}", now())

    def _report(self) -> None:
        core = self.core
        self._say(
            "progress",
            waiting=len(core.waiting),
            running=len(core.running),
            completed=core.completed,
            ended=core.ended,
            tokens=core.tokens,
        )

    def _say(self, event: str, **values: Any) -> None:
        """One JSON line on standard output: how a supervisor, or a person, follows the router."""
        try:
            sys.stdout.buffer.write(orjson.dumps({"event": event, "cell": self.settings.cell, **values}) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self.stop.requested = True
