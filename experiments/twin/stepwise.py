"""A cell in virtual time, step by step: the router's core and the paced machine, stamped like a real run's requests."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from clients.sender import Reply
from experiments.twin.crowd import Asked, Crowd
from protocol.clock import nanoseconds
from protocol.messages import Admit, Cancel, Ended, Row, Step, Submit, Tokens
from protocol.records import RequestRecord, StepRecord
from router.core import Action, Core, ToClient, ToWorker, Write
from worker.paced import CONTEXT, PacedMachine

CLIENT = b"everyone"
ASKED = tuple(field.name for field in fields(Asked))


@dataclass(slots=True, eq=False)
class Service:
    """What the worker stamps of a request, and how long it is in tokens."""

    id: int
    started: int
    tokens: int
    first: int | None = None
    last: int | None = None

    def record(self, cell: str) -> RequestRecord:
        return RequestRecord(
            cell, self.id, reused=0, started=self.started, first_token=self.first, last_token=self.last
        )


class Stepwise:
    """One core, one crowd, one machine; nothing takes time but the machine's steps. `write` gets every record as it
    comes, of a client, the router or the worker (named first)."""

    def __init__(self, core: Core, crowd: Crowd, machine: PacedMachine, write: Callable[[str, Any], None]) -> None:
        self.core, self.machine, self.write = core, machine, write
        self._times, self._requests = iter(crowd.times), crowd.requests()
        self._due = next(self._times, None)
        self._step: Step | None = None
        self._removed: list[Row] = []
        self._open: dict[int, Reply] = {}
        self._services: dict[int, Service] = {}
        self.steps = 0

    def run(self) -> None:
        """From the first arrival to the last word. Raises what the policy raises."""
        self._act(0, self.core.worker_came(0, CONTEXT))
        while (at := self._next_event()) is not None:
            self._happen(at)
            if self._step is None and (self.machine.in_flight or self._removed):
                self._begin_step(at)

    def _next_event(self) -> int | None:
        ends = self._step.end if self._step is not None else None
        return min([time for time in (self._due, ends, self.core.wake_at) if time is not None], default=None)

    def _happen(self, at: int) -> None:
        """In the order of the router's loop: the worker first, then clients, then what is due."""
        if self._step is not None and self._step.end == at:
            step, self._step = self._step, None
            self._stamp(step)
            self._act(at, self.core.stepped(at, step))
        while self._due == at:
            asked = next(self._requests)
            self._due = next(self._times, None)
            self._open[asked.id] = Reply(asked.id, at, at)
            self._act(at, self.core.submitted(at, CLIENT, Submit(**{name: getattr(asked, name) for name in ASKED})))
        if (wake := self.core.wake_at) is not None and wake <= at:
            self._act(at, self.core.woken(at))

    def _begin_step(self, at: int) -> None:
        held = self.machine.in_flight
        duration, outcome = self.machine.step()
        tokens_read = sum(read for _, read in outcome.read)
        rows, self._removed = (*self._removed, *outcome.rows), []
        end = at + nanoseconds(duration)
        self._step = Step(at, end, outcome.decoding, len(outcome.read), tokens_read, rows, outcome.read)
        self.steps += 1
        self._keep_step(self._step, held)

    def _keep_step(self, step: Step, held: int) -> None:
        context = max([service.tokens for service in self._services.values()], default=0)
        written = sum(len(row.tokens) for row in step.rows)
        longest = max([read for _, read in step.read], default=0)
        figures = (step.decoding, step.reading, step.prompt_tokens, written, held, context, longest)
        self.write("worker", StepRecord(self.core.cell, step.begin, step.end, *figures))

    def _stamp(self, step: Step) -> None:
        """What the worker stamps at the end of a step."""
        for row in step.rows:
            service = self._services.get(row.id)
            if service is None:
                continue
            if row.tokens:
                service.tokens += len(row.tokens)
                service.first = step.end if service.first is None else service.first
                service.last = step.end
            if row.finish is not None:
                self._leave(row.id)

    def _leave(self, id: int) -> None:
        service = self._services.pop(id, None)
        if service is not None:
            self.write("worker", service.record(self.core.cell))

    def _act(self, at: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Write(record):
                    self.write("router", record)
                case ToWorker(Admit(requests)):
                    self.machine.insert(requests)
                    self._services |= {r.id: Service(r.id, at, len(r.tokens)) for r in requests}
                case ToWorker(Cancel(ids)):
                    self._remove(ids)
                case ToClient(_, Tokens(_, rows)):
                    for row in rows:
                        self._take(row, at)
                case ToClient(_, Ended(id, end, detail)):
                    self._end(id, end, detail, None)

    def _remove(self, ids: tuple[int, ...]) -> None:
        here = [id for id in ids if id in self.machine.ids]
        self.machine.remove(ids)
        for id in here:
            self._leave(id)
        self._removed += [Row(id, (), "", "cancelled") for id in here]

    def _take(self, row: Row, at: int) -> None:
        self._open[row.id].take(row, at)
        if row.finish is not None:
            self._end(row.id, "completed", None, row.finish)

    def _end(self, id: int, end: str, detail: str | None, finish: str | None) -> None:
        """A second end of one request is a KeyError here."""
        self.write("client-0", self._open.pop(id).record(self.core.cell, end, detail, finish))
