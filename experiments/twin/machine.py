"""The paced machine, many steps at a time: what happens in `worker.paced`, without a look at every token.

Between two changes (a reply ends, a prompt is read, a request comes) all steps are alike: they are taken in one leap.
"""

import heapq
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from experiments.twin.costs import StepCosts
from protocol.clock import SECOND
from router.core import Passage


@dataclass(slots=True, eq=False)
class Seat(Passage):
    """A request in the router and in the machine, which takes it when it is admitted: after how many decode steps of
    the machine it `leaves` (0: it does not write yet), and when its first and its last token came."""

    leaves: int = 0
    first: int | None = None
    last: int | None = None

    def wrote(self, decoded: int) -> int:
        """Its tokens after so many decode steps; below 0 for one that joined later."""
        return self.submit.max_tokens + decoded - self.leaves if self.leaves else 0


NOBODY: list[Seat] = []
NOTHING: list[tuple[Seat, int]] = []
leaves = attrgetter("leaves")


@dataclass(slots=True)
class LeapingMachine:
    """Sizes as in `PacedMachine`. `steps` counts all steps, `decoded` those that decode, `unmeasured` how often a
    cost was not measured; `here` is how many requests are in the machine, `held` the most at once, `longest_gap` the
    longest time between two tokens of one reply, in nanoseconds."""

    costs: StepCosts
    seats: int
    prefill_batch: int
    prefill_step: int
    steps: int = 0
    decoded: int = 0
    unmeasured: int = 0
    here: int = 0
    held: int = 0
    longest_gap: int = 0
    decoding: list[Seat] = field(default_factory=list)
    finished: list[Seat] = field(default_factory=list)
    read: list[tuple[Seat, int]] = field(default_factory=list)
    _waiting: deque[Seat] = field(default_factory=deque)
    _reading: list[Seat] = field(default_factory=list)
    _fresh: list[Seat] = field(default_factory=list)
    _contexts: list[tuple[int, int, Seat]] = field(default_factory=list)
    _last: tuple[int, int, int, int] = (0, 0, 0, 1)

    def insert(self, seats: Sequence[Seat]) -> None:
        """Take these requests together, in order."""
        self.here += len(seats)
        self._waiting.extend(seats)

    def remove(self) -> list[Seat]:
        """Forget the requests that have ended; they are returned."""
        gone = [seat for seat in (*self._waiting, *self._reading, *self.decoding) if seat.ended is not None]
        self._waiting = deque(seat for seat in self._waiting if seat.ended is None)
        self._reading, self._fresh, self.decoding = (
            [seat for seat in seats if seat.ended is None] for seats in (self._reading, self._fresh, self.decoding)
        )
        self.here -= len(gone)
        return gone

    def advance(self, begin: int, until: int | None, one: bool) -> int:
        """Take steps until some replies end (those of `finished`) or a step ends at `until` or later; or just `one`.
        Returns when the last one ends; `read` is what is read in it, to be taken off `unread` by then."""
        if self.here > self.held:
            self.held = self.here
        self.finished = NOBODY
        while True:
            self.read, rows = NOTHING, len(self.decoding)
            if one or not rows or (self.here > rows and rows < self.seats):
                end = self._step(begin, rows)
            else:
                end = self._leap(begin, until, rows)
            if one or self.finished or (until is not None and end >= until):
                return end
            for seat, tokens in self.read:
                seat.unread -= tokens
            begin = end

    def _leap(self, begin: int, until: int | None, rows: int) -> int:
        """Steps that are alike. Whoever waits for a seat gets it in the very step that frees it, which is not."""
        most = self.decoding[0].leaves - self.decoded - (self.here > rows)
        if not most:
            return self._step(begin, rows)
        context = self._context() if self._contexts else 0
        wait = None if until is None else until - begin
        steps, first_ns, longest_ns, ns, unmeasured = self.costs.stretch(rows, context, most, wait)
        self._last = begin, rows, context, steps
        self.unmeasured += unmeasured
        self.steps += steps
        self.decoded += steps
        if self.decoding[0].leaves == self.decoded:
            self._finish()
        if rows > len(self._fresh) and first_ns > longest_ns:
            longest_ns = first_ns
        if longest_ns > self.longest_gap:
            self.longest_gap = longest_ns
        if self._fresh:
            self._greet(begin + first_ns)
        return begin + ns

    def _step(self, begin: int, rows: int) -> int:
        cost, ns = 0.0, 0
        fresh, self._fresh = self._fresh, []
        self._last = begin, rows, 0, 1
        self.steps += 1
        if rows:
            cost, ns, measured = self.costs.step(rows, self._context() if self._contexts else 0)
            if not measured:
                self.unmeasured += 1
            self.decoded += 1
            if self.decoding[0].leaves == self.decoded:
                self._finish()
        if (self._waiting or self._reading) and len(self.decoding) < self.seats:
            ns = self._read(cost, ns)
        end = begin + ns
        for seat in fresh:
            seat.first = end
        if ns > self.longest_gap and rows > len(fresh):
            self.longest_gap = ns
        return end

    @property
    def decodes(self) -> bool:
        """Whether the last step does."""
        return self._last[1] > 0

    @property
    def last_begin(self) -> int:
        """When the last step began."""
        begin, rows, context, steps = self._last
        if steps == 1:
            return begin
        _, _, _, ns, _ = self.costs.stretch(rows, context, steps - 1)
        return begin + ns

    def _finish(self) -> None:
        """Out of the machine, in the order in which they began to write."""
        decoding, count = self.decoding, 1
        while count < len(decoding) and decoding[count].leaves == self.decoded:
            count += 1
        self.finished = decoding[:count]
        del decoding[:count]
        self.here -= count

    def _read(self, cost: float, ns: int) -> int:
        """Board, let those decode whose prompt has one token left, and read one chunk of the others, in a step that
        takes `cost` seconds without that; its nanoseconds."""
        if self._waiting:
            self._board()
        self.read = read = []
        left, longest, started, step = [], 0, 0, self.prefill_step
        for seat in self._reading:
            part = seat.unread
            if part > 1:
                part = part - 1 if part <= step else step
                if part > longest:
                    longest = part
                left.append(seat)
            else:
                self._join(seat)
                started += part
            read.append((seat, part))
        self._reading = left
        if not read:
            return ns
        chunk_s, measured = self.costs.chunk(len(left), longest, started)
        if not measured:
            self.unmeasured += 1
        return round((cost + chunk_s) * SECOND)

    def _board(self) -> None:
        room = min(self.prefill_batch - len(self._reading), self.seats - len(self.decoding))
        while self._waiting and room > 0:
            self._reading.append(self._waiting.popleft())
            room -= 1

    def _join(self, seat: Seat) -> None:
        seat.leaves = self.decoded + seat.submit.max_tokens
        self._fresh.append(seat)
        if self.decoding and self.decoding[-1].leaves > seat.leaves:
            insort(self.decoding, seat, key=leaves)
        else:
            self.decoding.append(seat)
        if self.costs.by_context:
            heapq.heappush(self._contexts, (self.decoded - seat.prompt_tokens, seat.id, seat))

    def _context(self) -> int:
        """Of the longest row."""
        while self._contexts[0][2].ended is not None:
            heapq.heappop(self._contexts)
        return self.decoded - self._contexts[0][0]

    def _greet(self, at: int) -> None:
        """First words come at `at`."""
        for seat in self._fresh:
            seat.first = at
        self._fresh = []
