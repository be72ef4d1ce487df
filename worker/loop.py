"""The worker process: one engine, one router; takes admissions between steps and reports every step once."""

import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import zmq

from protocol import messages as m
from protocol.clock import SECOND, now, quiet_collector, seconds
from protocol.messages import Message, Row
from protocol.priority import ROUTER_RANK
from protocol.process import StopRequest, resident_bytes
from protocol.records import CellRecord, RecordWriter, RequestRecord, StepRecord
from protocol.roundtrip import clock_record, measure_offset
from protocol.wire import PeerSlow, carriers, dealer, fresh_instance
from worker.engine import CannotServe, Engine, StepOutcome

HELLO_EVERY = SECOND // 5
SILENCE = 3 * SECOND
IDLE_POLL = SECOND // 2


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Where the router is, which run this is, and the records' folder."""

    router: str
    run: str
    out: Path


@dataclass(slots=True)
class Progress:
    """What the beating thread tells of the stepping one: steps done, and since when one is under way."""

    steps: int = 0
    busy_since: int | None = None


class Heart(threading.Thread):
    """Beats through a socket of its own, so that a long step never looks like a dead worker."""

    def __init__(self, settings: WorkerSettings, progress: Progress) -> None:
        """Start with `start()`, end with `stop()`. `instance` names this worker process."""
        super().__init__(daemon=True, name="heart")
        self._settings, self._progress = settings, progress
        self.instance = fresh_instance()
        self._stopping = threading.Event()

    def run(self) -> None:
        context = zmq.Context()
        line = dealer(context, self._settings.router, self._settings.run)
        while not self._stopping.wait(0.5):
            since = self._progress.busy_since
            busy_s = 0.0 if since is None else seconds(now() - since)
            while line.receive() is not None:
                pass
            try:
                line.send(m.Beat(self.instance, steps=self._progress.steps, busy_s=busy_s))
            except PeerSlow:
                continue
        line.close()
        context.term()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stopping.set()
        self.join()


@dataclass(slots=True, eq=False)
class Service:
    """One request in the engine: what the worker stamps of it."""

    id: int
    prompt_tokens: int
    started: int
    written: int = 0
    reused: int = 0
    first_token: int | None = None
    last_token: int | None = None

    def record(self, cell: str) -> RequestRecord:
        return RequestRecord(
            cell,
            self.id,
            reused=self.reused,
            started=self.started,
            first_token=self.first_token,
            last_token=self.last_token,
        )


@dataclass(slots=True)
class Stint:
    """The worker's time with one router: the requests in the engine, and the figures of the cell."""

    cell: str
    swap_before: int
    services: dict[int, Service] = field(default_factory=dict)
    removed: list[Row] = field(default_factory=list)
    steps: int = 0


class WorkerLoop:
    """Serves one router after another, until told to stop."""

    def __init__(
        self, engine: Engine, settings: WorkerSettings, instance: str, progress: Progress, stop: StopRequest
    ) -> None:
        """The engine is loaded. Raises OSError when the records cannot be written."""
        self.engine, self.settings, self.stop = engine, settings, stop
        self.records = RecordWriter(settings.out / "worker.msgpack")
        self.context = carriers(ROUTER_RANK)
        self.line = dealer(self.context, settings.router, settings.run)
        self.instance, self.progress = instance, progress
        self.stint: Stint | None = None
        self.heard = self.hailed = 0
        self.refusal = ""
        self.farewell = "the worker was stopped"

    # --- the loop ---

    def serve(self) -> None:
        """Until a signal comes. Raises what the engine or the operating system raised, after leaving the router;
        CannotServe when the engine cannot do what the router asks for."""
        try:
            while not self.stop.requested:
                self._drain()
                self._hail_or_part()
                if self.stint is not None and (self.engine.in_flight or self.stint.removed):
                    self._step(self.stint)
        finally:
            self._leave(self.farewell)
            self.line.close()
            self.context.term()
            self.records.close()
            self.engine.close()

    def _drain(self) -> None:
        """Take every message that is there; wait for one only when there is nothing to do."""
        idle = self.stint is None or not (self.engine.in_flight or self.stint.removed)
        if idle:
            self.line.wait_precisely(IDLE_POLL if self.stint is not None else HELLO_EVERY)
        while (message := self.line.receive()) is not None:
            self.heard = now()
            self._take(message)

    def _hail_or_part(self) -> None:
        """Say hello while there is no router; leave one that has been silent, counted from the last look."""
        at = now()
        if self.stint is None:
            if at - self.hailed >= HELLO_EVERY and self.line.connected:
                self.hailed = at
                self._send(m.Hello("worker", self.instance))
        elif not self.engine.in_flight and at - self.heard > SILENCE:
            self._end_stint()

    def _take(self, message: Message) -> None:
        if isinstance(message, m.Welcome):
            self._begin_stint(message)
            return
        if isinstance(message, m.Refused) and message.reason != self.refusal:
            self.refusal = message.reason
            print(f"headway worker: the router refused: {message.reason}", file=sys.stderr, flush=True)
        if self.stint is None:
            return
        match message:
            case m.Admit():
                self._insert(self.stint, message)
            case m.Cancel():
                self._remove(self.stint, message.ids)
            case m.Tokenize():
                self._tokenize(message)
            case m.Prepare():
                self._warm_up(message)
            case m.Bye():
                self._leave("")
            case m.Refused():
                self._end_stint()
            case _:
                pass

    # --- a router comes and goes ---

    def _begin_stint(self, welcome: m.Welcome) -> None:
        if self.stint is not None:
            self._end_stint()
        self.engine.reset()
        quiet_collector()
        self.stint = Stint(welcome.cell, psutil.swap_memory().used)
        self._keep_clock(self.stint, "before")
        self._ready(warm=False)

    def _ready(self, warm: bool) -> None:
        self._send(m.WorkerReady(self.engine.context, warm, self.engine.facts))

    def _warm_up(self, asked: m.Prepare) -> None:
        try:
            self.engine.warm_up(asked.seats, asked.prompt_lengths)
        except CannotServe as error:
            self.farewell = str(error)
            raise
        self.heard = now()
        self._ready(warm=True)

    def _leave(self, reason: str) -> None:
        """Say goodbye to a router that is still there."""
        if self.stint is not None:
            self._keep_clock(self.stint, "after")
            self._send(m.Bye(reason))
            self._end_stint()

    def _end_stint(self) -> None:
        stint, self.stint = self.stint, None
        if stint is None:
            return
        for service in stint.services.values():
            self.records.write(service.record(stint.cell))
        self.engine.remove(list(stint.services))
        swapped = max(0, psutil.swap_memory().used - stint.swap_before)
        peak, facts = self.engine.peak_memory(), self.engine.facts
        self.records.write(CellRecord(stint.cell, stint.steps, peak, swapped, resident_bytes(), facts))

    def _keep_clock(self, stint: Stint, when: str) -> None:
        offset = measure_offset(self.line, self._take)
        record = clock_record(stint.cell, "worker", when, offset, self.line)
        if record is not None:
            self.records.write(record)

    # --- requests ---

    def _tokenize(self, asked: m.Tokenize) -> None:
        try:
            prompts = tuple(tuple(tokens) for tokens in self.engine.tokenize(asked.prompts))
            self._send(m.Tokenized(asked.batch, prompts))
        except ValueError as error:
            self._send(m.Tokenized(asked.batch, (), str(error)))

    def _insert(self, stint: Stint, admit: m.Admit) -> None:
        try:
            self.engine.insert(admit.requests)
        except ValueError as error:
            self._send(m.Failed(tuple(request.id for request in admit.requests), str(error)))
            return
        started = now()
        for request in admit.requests:
            stint.services[request.id] = Service(request.id, len(request.tokens), started)

    def _remove(self, stint: Stint, ids: tuple[int, ...]) -> None:
        """Out of the engine now; the next step message says so, and the seats are free."""
        known = [id for id in ids if id in stint.services]
        self.engine.remove(known)
        for id in known:
            self.records.write(stint.services.pop(id).record(stint.cell))
            stint.removed.append(Row(id, (), "", "cancelled"))

    # --- steps ---

    def _step(self, stint: Stint) -> None:
        in_flight = self.engine.in_flight
        begin = self.progress.busy_since = now()
        try:
            outcome = self.engine.step() if in_flight else StepOutcome(0, (), ())
        except RuntimeError as error:
            self._broken(stint, str(error))
            return
        finally:
            self.progress.busy_since = None
        end = now()
        self.progress.steps += 1
        removed, stint.removed = stint.removed, []
        if outcome.rows or outcome.read or removed:
            self._send(_step(outcome, removed, begin, end))
            self._stamp(stint, outcome, begin, end, in_flight)

    def _stamp(self, stint: Stint, outcome: StepOutcome, begin: int, end: int, in_flight: int) -> None:
        context = max([s.prompt_tokens + s.written for s in stint.services.values()], default=0)
        stint.steps += 1
        for id, tokens in outcome.reused:
            stint.services[id].reused = tokens
        for row in outcome.rows:
            service = stint.services[row.id]
            if row.tokens:
                service.written += len(row.tokens)
                service.first_token = service.first_token or end
                service.last_token = end
            if row.finish is not None:
                self.records.write(stint.services.pop(row.id).record(stint.cell))
        self.records.write(
            StepRecord(
                cell=stint.cell,
                begin=begin,
                end=end,
                decoding=outcome.decoding,
                reading=len(outcome.read),
                prompt_tokens=sum(read for _, read in outcome.read),
                tokens=sum(len(row.tokens) for row in outcome.rows),
                in_flight=in_flight,
                context=context,
                longest_read=max([read for _, read in outcome.read], default=0),
            )
        )

    def _broken(self, stint: Stint, cause: str) -> None:
        """The engine lost everything in it: say so once, and go on with an empty one."""
        self._send(m.Failed(tuple(stint.services), f"the engine broke: {cause}"))
        for service in stint.services.values():
            self.records.write(service.record(stint.cell))
        stint.services.clear()
        self.engine.reset()

    def _send(self, message: Message) -> None:
        """A router that takes nothing has left; its silence will say so."""
        try:
            self.line.send(message)
        except PeerSlow:
            return


def _step(outcome: StepOutcome, removed: list[Row], begin: int, end: int) -> m.Step:
    """The message of one step; rows that were removed meanwhile come first."""
    return m.Step(
        begin=begin,
        end=end,
        decoding=outcome.decoding,
        reading=len(outcome.read),
        prompt_tokens=sum(read for _, read in outcome.read),
        rows=(*removed, *outcome.rows),
        read=outcome.read,
        reused=outcome.reused,
    )
