"""A cell in virtual time, from event to event: exactly what `experiments.twin.stepwise` does, without every token."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

from experiments.twin.crowd import Crowd
from experiments.twin.machine import LeapingMachine, Seat
from protocol.messages import Submit
from router.core import Action, Core, Passage, ToWorker, Write
from router.policies import Policy
from worker.paced import CONTEXT

CLIENT = b"everyone"
UNKNOWN = cast(Write, None)  # what is to be kept is kept already


class Ended(NamedTuple):
    """What became of a request, times in nanoseconds; `written` counts the tokens that its client got."""

    passage: Passage
    started: int | None
    first: int | None
    last: int | None
    written: int
    end: str
    detail: str | None
    finish: str | None


class AheadCore(Core):
    """The router's core without messages: what it admits it hands over, what ended it hands over, and it asks how far
    replies are when its policy does."""

    def __init__(self, policy: Policy, cell: str, queue: int, timeout: float | None, around: "Ahead") -> None:
        super().__init__(policy, cell, queue, timeout)
        self.around = around
        self._completing: Seat | None = None

    @property
    def running(self) -> Collection[Passage]:
        self.around.catch_up()
        return super().running

    @property
    def served(self) -> Mapping[str, int]:
        self.around.catch_up()
        return super().served

    def first(self, most: int) -> Any:
        if self._precedence is not None:
            self.around.catch_up()
        return super().first(most)

    def wrote(self, passage: Passage, tokens: int) -> None:
        """A request has so many more tokens."""
        self._count(passage, tokens)

    def freed(self, now: int, finished: Sequence[Seat], removed: Sequence[Seat]) -> list[Action]:
        """The worker let go of these: what `stepped` says of rows that end."""
        for seat in removed:
            self._finish(now, seat.passage, "cancelled")
        for seat in finished:
            self._count(seat.passage, seat.limit - seat.told)
            self._completing = seat
            self._finish(now, seat.passage, "length")
        self._completing = None
        return self._ask(now)

    def asked_again(self, now: int) -> list[Action]:
        """A step ended, and nothing else."""
        return self._ask(now)

    def _admit(self, now: int, ids: tuple[int, ...]) -> list[Action]:
        self.around.machine.insert(self._seated(now, ids), now)
        return []

    def _close(self, now: int, passage: Passage, end: str, detail: str | None, finish: str | None) -> Write:
        passage.ended = now
        self.ended += 1
        self.around.closed(passage, end, detail, finish, self._completing)
        return UNKNOWN


class Ahead:
    """One policy, one crowd, one machine; nothing takes time but the machine's steps."""

    def __init__(
        self, policy: Policy, cell: str, crowd: Crowd, machine: LeapingMachine, queue: int, timeout: float | None,
        keep: Callable[[Ended], None],
    ) -> None:  # fmt: skip
        """`keep` gets every request as it ends."""
        self.core = AheadCore(policy, cell, queue, timeout, self)
        self.machine, self._keep = machine, keep
        self._times, self._requests = iter(crowd.times), crowd.requests()
        self._due = self._event = next(self._times, None)
        self._now = 0
        self._watched = False
        self._removed: list[Seat] = []
        self._owed: list[Passage] = []
        self._under_way = 0  # decode steps that have begun and not ended: 1 or 0
        self._caught_up = 0

    def run(self) -> None:
        """From the first arrival to the last word. Raises PolicyFailed."""
        self._act(self.core.worker_came(0, CONTEXT))
        at: int | None = 0
        while at is not None:
            at = self._advance(at) if self._removed or self.machine.busy else self._event
            while self._event is not None and self._event == at:
                self._happen(at)

    def _advance(self, begin: int) -> int:
        """One step of the machine, or many alike; what happens meanwhile; and the router's word at the end of it."""
        machine, removed = self.machine, self._removed
        decoded = machine.decoded
        end = self._now = machine.advance(begin, self._event, self._watched or bool(removed))
        if removed:
            self._removed = []
        if self._event is not None and self._event < end:
            self._under_way = 1 if machine.decoded > decoded else 0
            self._wait(end)
        for seat, tokens in machine.read:
            seat.passage.unread -= tokens
        if machine.finished or removed:
            self._act(self.core.freed(end, machine.finished, removed))
        elif self._watched:
            self._act(self.core.asked_again(end))
        return end

    def _wait(self, end: int) -> None:
        """What happens until the step that is under way ends."""
        while self._event is not None and self._event < end:
            self._happen(self._event)
        self._now, self._under_way = end, 0
        for passage in self._owed:
            self.core.wrote(passage, 1)
        self._owed = []

    # --- the router ---

    def _happen(self, at: int) -> None:
        """In the order of the router's loop: clients, then what is due."""
        self._now = at
        while self._due == at:
            request = next(self._requests)
            self._due = next(self._times, None)
            self._act(self.core.submitted(at, CLIENT, cast(Submit, request)))
        wake = self.core.wake_at
        if wake is not None and wake <= at:
            self._act(self.core.woken(at))

    def _act(self, actions: Sequence[Action]) -> None:
        core, due = self.core, self._due
        for action in actions:
            if type(action) is ToWorker:
                self._remove(action.message.ids)  # type: ignore[union-attr]  # whoever is admitted is in already
        wake = core.wake_at
        self._event = due if wake is None or (due is not None and due < wake) else wake
        self._watched = bool(core.waiting) and core.free > 0

    def _remove(self, ids: Collection[int]) -> None:
        self.catch_up()
        seats = [seat for seat in self.machine.everyone if seat.passage.id in ids]
        if self._under_way:
            self._owed += [seat.passage for seat in seats if 0 <= seat.joined < self.machine.decoded]
        self.machine.remove(seats)
        self._removed = [*self._removed, *seats]

    @property
    def _finishing(self) -> Sequence[Seat]:
        """Whose last token is being written."""
        return self.machine.finished if self._under_way else ()

    def catch_up(self) -> None:
        """Tell the router of all tokens whose step has ended."""
        ended = self.machine.decoded - self._under_way
        if ended == self._caught_up:
            return
        self._caught_up = ended
        for seat in (*self.machine.decoding, *self._finishing):
            more = ended - seat.joined - seat.told
            if more > 0:
                self.core.wrote(seat.passage, more)
                seat.told += more

    def closed(self, passage: Passage, end: str, detail: str | None, finish: str | None, seat: Seat | None) -> None:
        """A request ended; `seat` is where it completed."""
        if seat is not None:
            self._keep(Ended(passage, seat.started, seat.first, self._now, seat.limit, end, detail, finish))
            return
        here = (*self.machine.everyone, *self._finishing)
        seat = next((seat for seat in here if seat.passage is passage), None)
        first, last, written = (None, None, 0) if seat is None else self._seen(seat)
        self._keep(Ended(passage, seat.started if seat else None, first, last, written, end, detail, finish))

    def _seen(self, seat: Seat) -> tuple[int | None, int | None, int]:
        """First and last token of a reply that is broken off now, and how many there were."""
        written = self.machine.decoded - self._under_way - seat.joined if seat.joined >= 0 else 0
        if written <= 0:
            return None, None, 0
        return seat.first, self.machine.last_begin if self._under_way else self._now, written
