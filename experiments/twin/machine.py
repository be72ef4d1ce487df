"""The paced machine, many steps at a time: what happens in `worker.paced`, without a look at every token.

Between two changes (a reply ends, a prompt is read, a request comes) all steps are alike: they are taken in one leap.
"""

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from experiments.twin.costs import StepCosts
from protocol.clock import SECOND
from router.core import Passage
from worker.profile import CostProfile


@dataclass(slots=True, eq=False)
class Seat:
    """A request in the machine: prompt tokens not yet read, how many decode steps there had been when it `joined` those
    who write, when its first token came, and of how many tokens the router was told."""

    passage: Passage
    started: int
    limit: int
    unread: int
    joined: int = -1
    first: int | None = None
    told: int = 0
    gone: bool = False


NOBODY: list[Seat] = []
NOTHING: list[tuple[Seat, int]] = []


@dataclass(slots=True)
class LeapingMachine:
    """Sizes as in `PacedMachine`. `steps` counts all steps, `decoded` those that decode, `unmeasured` how often a
    cost was not `measured`; `held` is the most requests at once, `longest_gap` the longest time between two tokens
    of one reply, in nanoseconds."""

    costs: StepCosts
    profile: CostProfile
    measured: CostProfile
    seats: int
    prefill_batch: int
    prefill_step: int
    steps: int = 0
    decoded: int = 0
    unmeasured: int = 0
    held: int = 0
    longest_gap: int = 0
    _waiting: deque[Seat] = field(default_factory=deque)
    _reading: list[Seat] = field(default_factory=list)
    _decoding: list[tuple[int, int, Seat]] = field(default_factory=list)
    _contexts: list[tuple[int, int, Seat]] = field(default_factory=list)
    _fresh: list[Seat] = field(default_factory=list)
    finished: list[Seat] = field(default_factory=list)
    read: list[tuple[Seat, int]] = field(default_factory=list)
    _sloped: bool = field(init=False)
    _joins: int = 0
    _grew: bool = False
    _last: tuple[int, int, int, int] = (0, 0, 0, 1)

    def __post_init__(self) -> None:
        self._sloped = self.costs.by_context

    @property
    def busy(self) -> bool:
        return bool(self._decoding or self._reading or self._waiting)

    @property
    def decoding(self) -> list[Seat]:
        """Everyone who writes."""
        return [seat for _, _, seat in self._decoding]

    def insert(self, passages: Sequence[Passage], now: int) -> None:
        """Take these requests together, in order."""
        self._waiting.extend([Seat(p, now, p.submit.max_tokens, p.unread) for p in passages])
        self._grew = True

    @property
    def everyone(self) -> list[Seat]:
        """All that are in the machine."""
        return [*self._waiting, *self._reading, *self.decoding]

    def remove(self, gone: Collection[Seat]) -> None:
        """Forget these requests."""
        for seat in gone:
            seat.gone = True
        self._waiting = deque(seat for seat in self._waiting if not seat.gone)
        self._reading = [seat for seat in self._reading if not seat.gone]
        self._fresh = [seat for seat in self._fresh if not seat.gone]
        self._decoding = [row for row in self._decoding if not row[2].gone]
        heapq.heapify(self._decoding)

    def advance(self, begin: int, until: int | None, one: bool) -> int:
        """Take steps that are alike, until one ends at `until` or later; or else a step that is not, or just `one`.
        Returns when the last one ends; `finished` are those whose replies end with it, `read` what was read in it."""
        if self._grew:
            self._grew = False
            self.held = max(self.held, len(self.everyone))
        decoding = self._decoding
        rows = len(decoding)
        if rows and not one and (rows >= self.seats or not (self._waiting or self._reading)):
            most = decoding[0][0] - self.decoded - 1
            if most > 0:
                return self._leap(begin, until, rows, most)
        return self._step(begin, rows)

    def _leap(self, begin: int, until: int | None, rows: int, most: int) -> int:
        context = self._context() if self._contexts else 0
        wait = None if until is None else until - begin
        steps, first_ns, longest_ns, ns, unmeasured = self.costs.stretch(rows, context, most, wait)
        self._last = begin, rows, context, steps
        self.finished, self.read = NOBODY, NOTHING
        if self._fresh:
            longest_ns = self._stamp_first(begin + first_ns, rows, first_ns, longest_ns)
        elif first_ns > longest_ns:
            longest_ns = first_ns
        if longest_ns > self.longest_gap:
            self.longest_gap = longest_ns
        self.unmeasured += unmeasured
        self.steps += steps
        self.decoded += steps
        return begin + ns

    def _step(self, begin: int, rows: int) -> int:
        cost, ns = 0.0, 0
        fresh, self._fresh = self._fresh, []
        self._last = begin, rows, 0, 1
        self.finished, self.read = NOBODY, NOTHING
        self.steps += 1
        if rows:
            cost, ns, measured = self.costs.step(rows, self._context() if self._contexts else 0)
            if not measured:
                self.unmeasured += 1
            self.decoded += 1
            if self._decoding[0][0] == self.decoded:
                self._finish()
        if (self._reading or self._waiting) and len(self._decoding) < self.seats:
            ns = self._read(cost, ns)
        end = begin + ns
        for seat in fresh:
            seat.first = end
        if ns > self.longest_gap and rows > len(fresh):
            self.longest_gap = ns
        return end

    @property
    def last_begin(self) -> int:
        """When the last step began."""
        begin, rows, context, steps = self._last
        return begin + (self.costs.stretch(rows, context, steps - 1).ns if steps > 1 else 0)

    def _finish(self) -> None:
        """Out of the machine, in the order in which they began to write."""
        self.finished = []
        while self._decoding and self._decoding[0][0] == self.decoded:
            seat = heapq.heappop(self._decoding)[2]
            seat.gone = True
            self.finished.append(seat)

    def _read(self, cost: float, ns: int) -> int:
        """Board, let those decode whose prompt has one token left, and read one chunk of the others, in a step that
        takes `cost` seconds without that; its nanoseconds."""
        if self._waiting:
            self._board()
        self.read, left, tokens = [], [], 0
        for seat in self._reading:
            if seat.unread > 1:
                left.append(seat)
            else:
                self._join(seat)
                self.read.append((seat, seat.unread))
        self._reading = left
        if not left:
            return ns
        for seat in left:
            part = min(self.prefill_step, seat.unread - 1)
            seat.unread -= part
            tokens += part
            self.read.append((seat, part))
        if not self.measured.read.covers(len(left), tokens):
            self.unmeasured += 1
        return round((cost + self.profile.read_s(len(left), tokens)) * SECOND)

    def _board(self) -> None:
        room = min(self.prefill_batch - len(self._reading), self.seats - len(self._decoding))
        for _ in range(min(room, len(self._waiting))):
            self._reading.append(self._waiting.popleft())

    def _join(self, seat: Seat) -> None:
        seat.joined = self.decoded
        self._joins += 1
        self._fresh.append(seat)
        heapq.heappush(self._decoding, (self.decoded + seat.limit, self._joins, seat))
        if self._sloped:
            heapq.heappush(self._contexts, (self.decoded - seat.passage.prompt_tokens, self._joins, seat))

    def _context(self) -> int:
        """Of the longest row."""
        while self._contexts[0][2].gone:
            heapq.heappop(self._contexts)
        return self.decoded - self._contexts[0][0]

    def _stamp_first(self, at: int, rows: int, first_ns: int, longest_ns: int) -> int:
        """First words come at `at`; the longest gap of a stretch that begins so."""
        if rows > len(self._fresh):
            longest_ns = max(first_ns, longest_ns)
        for seat in self._fresh:
            seat.first = at
        self._fresh = []
        return longest_ns
