"""A rush in virtual time: the router's core and the paced machine, stamped and summarised by the product's own code,
without sockets and without sleeping."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from clients.sender import Reply
from experiments.analysis import CellRecords, CellSummary, by_cell, summarise
from protocol.clock import nanoseconds
from protocol.messages import Admit, Cancel, Ended, Row, Step, Submit, Tokens
from protocol.records import ClientRecord, QueueRecord, RouterRecord, StepRecord
from router.core import Action, Core, ToClient, ToWorker, Write
from router.policies import params, parse_policy
from worker.paced import CONTEXT, PacedMachine
from worker.profile import CostProfile, load_profile

CELL = "virtual"
CLIENT = b"everyone"
STUDY_PROFILE = "qwen3-4b-4bit-m4max"
STUDY_PROMPT, STUDY_TOKENS, PREFILL_BATCH, PREFILL_STEP = 60, 128, 8, 2048


class VirtualRush:
    """One policy, requests at `arrivals` (nanoseconds), one worker; nothing takes time but the worker's steps."""

    def __init__(
        self,
        spec: str,
        arrivals: Sequence[int],
        profile: CostProfile | None = None,
        max_tokens: int = STUDY_TOKENS,
        timeout: float | None = None,
    ) -> None:
        """`spec` names the policy; without a `profile` the study's is used."""
        policy = parse_policy(spec)
        costs = profile or load_profile(STUDY_PROFILE)
        self.core = Core(policy, CELL, timeout=timeout)
        self.machine = PacedMachine(costs, max(policy.seats, PREFILL_BATCH), PREFILL_BATCH, PREFILL_STEP)
        self.max_tokens = max_tokens
        self.due = deque(enumerate(arrivals))
        self.step: Step | None = None
        self.removed: list[Row] = []
        self.open: dict[int, Reply] = {}
        self.records: list[Any] = [
            RouterRecord(CELL, policy.name, params(policy), self.core.queue, timeout, 1, "run", {"label": spec}),
            ClientRecord(CELL, 0, 1, len(arrivals), 0, 0, {}, tuple(range(len(arrivals))), tuple(arrivals)),
        ]

    def run(self) -> CellSummary:
        """From the first arrival to the last word."""
        self._act(0, self.core.worker_came(0, CONTEXT))
        while (at := self._next_event()) is not None:
            self._happen(at)
            if self.step is None and (self.machine.in_flight or self.removed):
                self._begin_step(at)
        assert not self.open
        self.records.append(QueueRecord(CELL, self.core.queue_area, self.core.longest_queue, 0, None))
        return summarise(CELL, self.cell)

    @property
    def cell(self) -> CellRecords:
        """What was recorded."""
        return by_cell(self.records)[CELL]

    def _next_event(self) -> int | None:
        arrival = self.due[0][1] if self.due else None
        ends = self.step.end if self.step is not None else None
        return min([time for time in (arrival, ends, self.core.wake_at) if time is not None], default=None)

    def _happen(self, at: int) -> None:
        """In the order of the router's loop: the worker first, then clients, then what is due."""
        if self.step is not None and self.step.end == at:
            step, self.step = self.step, None
            self._act(at, self.core.stepped(at, step))
        while self.due and self.due[0][1] == at:
            id, _ = self.due.popleft()
            self.open[id] = Reply(id, at, at)
            request = Submit(id, f"user-{id}", tuple(range(STUDY_PROMPT)), self.max_tokens)
            self._act(at, self.core.submitted(at, CLIENT, request))
        if self.core.wake_at is not None and self.core.wake_at <= at:
            self._act(at, self.core.woken(at))

    def _begin_step(self, at: int) -> None:
        held = self.machine.in_flight
        duration, outcome = self.machine.step()
        end, tokens_read = at + nanoseconds(duration), sum(read for _, read in outcome.read)
        rows, self.removed = (*self.removed, *outcome.rows), []
        self.step = Step(at, end, outcome.decoding, len(outcome.read), tokens_read, rows, outcome.read)
        written = sum(len(row.tokens) for row in rows)
        record = StepRecord(CELL, at, end, outcome.decoding, len(outcome.read), tokens_read, written, held, 0)
        self.records.append(record)

    def _act(self, at: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Write():
                    self.records.append(action.record)
                case ToWorker(Admit() as admit):
                    self.machine.insert(admit.requests)
                case ToWorker(Cancel(ids)):
                    here = self.machine.ids
                    self.machine.remove(ids)
                    self.removed += [Row(id, (), "", "cancelled") for id in ids if id in here]
                case ToClient(_, Tokens() as tokens):
                    for row in tokens.rows:
                        self._take(row, at)
                case ToClient(_, Ended() as ended):
                    self._end(ended.id, ended.end, ended.detail, None)

    def _take(self, row: Row, at: int) -> None:
        self.open[row.id].take(row, at)
        if row.finish is not None:
            self._end(row.id, "completed", None, row.finish)

    def _end(self, id: int, end: str, detail: str | None, finish: str | None) -> None:
        """A second end of one request is a KeyError here."""
        self.records.insert(0, self.open.pop(id).record(CELL, end, detail, finish))
