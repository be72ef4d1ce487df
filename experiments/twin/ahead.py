"""A cell in virtual time, from event to event: exactly what `experiments.twin.stepwise` does, without every token."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from experiments.twin.crowd import Crowd
from experiments.twin.machine import LeapingMachine, Seat
from protocol.messages import Submit
from router.core import Action, Core, Passage, Write
from router.policies import Policy
from router.precedence import Precedence
from worker.paced import CONTEXT

CLIENT = b"everyone"
NOBODY: tuple[int | None, Any] = None, None
KEPT = cast(Write, None)  # what is to be written is kept already

# What became of a request: itself, and how it ended (end, detail, finish) as in `protocol.records.RequestRecord`.
Keep = Callable[[Seat, str, str | None, str | None], None]


class AheadCore(Core):
    """The router's core without messages: what it admits, stops and closes it hands over, and it asks how far replies
    are when its policy does."""

    passage: ClassVar[type[Passage]] = Seat

    def __init__(
        self, policy: Policy, cell: str, queue: int, timeout: float | None, around: "Ahead", keep: Keep
    ) -> None:
        super().__init__(policy, cell, queue, timeout)
        self.around, self.keep = around, keep

    @property
    def running(self) -> Collection[Passage]:
        self.around.catch_up()
        return super().running

    @property
    def served(self) -> Mapping[str, int]:
        self.around.catch_up()
        return super().served

    def _in_order(self, precedence: Precedence[Passage], most: int) -> Sequence[Passage]:
        self.around.catch_up()
        return super()._in_order(precedence, most)

    def outlook(self, due: int | None) -> tuple[int | None, bool]:
        """When the router is next needed, if the next request is `due` then; and whether it is at every step until
        then, since a request waits although a seat is free."""
        wake = self.wake_at
        event = due if wake is None or (due is not None and due < wake) else wake
        return event, bool(self._waiting) and self.free > 0

    def wrote(self, seat: Seat, tokens: int) -> None:
        """A request has so many more tokens."""
        self._count(seat, tokens)

    def freed(self, now: int, finished: Sequence[Seat], removed: Sequence[Seat]) -> None:
        """The worker let go of these: what `stepped` says of rows that end."""
        for seat in removed:
            self._finish(now, seat, "cancelled")
        for seat in finished:
            seat.last = now
            self._count(seat, seat.submit.max_tokens - seat.written)
            self._finish(now, seat, "length")
        self._ask(now)

    def asked_again(self, now: int) -> None:
        """A step ended, and nothing else."""
        self._ask(now)

    def _admit(self, now: int, ids: tuple[int, ...]) -> list[Action]:
        self.around.machine.insert(self._seated(now, ids))  # type: ignore[arg-type]  # they are Seats here
        return []

    def _stop(self, passage: Passage) -> list[Action]:
        self.around.stopping = True
        return []

    def _close(self, now: int, passage: Passage, end: str, detail: str | None, finish: str | None) -> Write:
        seat: Seat = passage  # type: ignore[assignment]  # they all are here
        seat.ended = now
        self.ended += 1
        if seat.leaves and seat.last is None:
            self.around.break_off(seat)
        self.keep(seat, end, detail, finish)
        return KEPT


class Ahead:
    """One policy, one crowd, one machine; nothing takes time but the machine's steps."""

    def __init__(
        self, policy: Policy, cell: str, crowd: Crowd, machine: LeapingMachine, queue: int, timeout: float | None,
        keep: Keep,
    ) -> None:  # fmt: skip
        """`keep` gets every request as it ends."""
        self.core = AheadCore(policy, cell, queue, timeout, self, keep)
        self.machine = machine
        self.stopping = False
        self._arrivals = zip(crowd.times, cast(Iterator[Submit], crowd.requests()), strict=True)
        self._due: int | None
        self._next: Any
        self._due, self._next = next(self._arrivals, NOBODY)
        self._event = self._due
        self._now = 0
        self._watched = False
        self._removed: list[Seat] = []
        self._owed: list[Seat] = []
        self._under_way = 0  # decode steps that have begun and not ended: 1 or 0
        self._caught_up = 0

    def run(self) -> None:
        """From the first arrival to the last word. Raises PolicyFailed."""
        self.core.worker_came(0, CONTEXT)
        at: int | None = 0
        while at is not None:
            at = self._advance(at) if self.machine.here or self._removed else self._event
            while self._event is not None and self._event == at:
                self._happen(at)

    def _advance(self, begin: int) -> int:
        """The machine's steps until the router has to hear of one; what happens during that; and the router's word at
        its end."""
        machine, removed = self.machine, self._removed
        end = self._now = machine.advance(begin, self._event, self._watched or bool(removed))
        if removed:
            self._removed = []
        if self._event is not None and self._event < end:
            self._under_way = int(machine.decodes)
            while self._event is not None and self._event < end:
                self._happen(self._event)
            self._now, self._under_way = end, 0
            while self._owed:
                self.core.wrote(self._owed.pop(), 1)
        for seat, tokens in machine.read:
            seat.unread -= tokens
        if machine.finished or removed:
            self.core.freed(end, machine.finished, removed)
            self._event, self._watched = self.core.outlook(self._due)
        elif self._watched:
            self.core.asked_again(end)
            self._event, self._watched = self.core.outlook(self._due)
        return end

    # --- the router ---

    def _happen(self, at: int) -> None:
        """In the order of the router's loop: clients, then what is due."""
        self._now, core = at, self.core
        while self._due == at:
            request = self._next
            self._due, self._next = next(self._arrivals, NOBODY)
            core.submitted(at, CLIENT, request)
        wake = core.wake_at
        if wake is not None and wake <= at:
            core.woken(at)
            if self.stopping:
                self._remove()
        self._event, self._watched = core.outlook(self._due)

    def _remove(self) -> None:
        """Those who were stopped, out of the machine."""
        self.catch_up()
        gone, self.stopping = self.machine.remove(), False
        if self._under_way:
            self._owed += [seat for seat in gone if seat.wrote(self.machine.decoded) > 0]
        self._removed = [*self._removed, *gone]

    def catch_up(self) -> None:
        """Tell the router of all tokens whose step has ended."""
        ended = self.machine.decoded - self._under_way
        if ended == self._caught_up:
            return
        self._caught_up = ended
        finishing = self.machine.finished if self._under_way else ()
        for seat in (*self.machine.decoding, *finishing):
            more = seat.wrote(ended) - seat.written
            if more > 0:
                self.core.wrote(seat, more)

    def break_off(self, seat: Seat) -> None:
        """Its client has got what was written until now, and gets no more."""
        self.catch_up()
        if seat.written:
            seat.last = self.machine.last_begin if self._under_way else self._now
        else:
            seat.first = None
