"""The paced engine: writes numbers instead of words, and takes the time a cost profile says.

`PacedMachine` is the pure half, stepped like mlx-lm's batch generator; a simulator runs it without the sleep.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.clock import MS, nanoseconds, now, seconds, sleep_until
from protocol.messages import ChatTurn, Row, Submit
from worker.engine import StepOutcome
from worker.profile import CostProfile

CONTEXT = 131_072
VOCABULARY = 32_000
LATE = 5 * MS


@dataclass(slots=True, eq=False)
class PacedRow:
    """One request in the machine: prompt tokens not yet read, tokens written."""

    id: int
    prompt: int
    limit: int
    unread: int
    written: int = 0


@dataclass(slots=True)
class PacedMachine:
    """What a batch generator does in one step, and what that costs. `seats` bounds the decoding rows that still let
    prompts in, `prefill_batch` the prompts read together, `prefill_step` the tokens of each read in one step. Steps
    that were not `measured` (by default: that the profile was not measured at) are counted as `clamped`."""

    profile: CostProfile
    seats: int
    prefill_batch: int
    prefill_step: int
    measured: CostProfile | None = None
    clamped: int = 0
    _waiting: deque[PacedRow] = field(default_factory=deque)
    _reading: list[PacedRow] = field(default_factory=list)
    _decoding: list[PacedRow] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._reading) + len(self._decoding)

    @property
    def ids(self) -> set[int]:
        return {row.id for row in (*self._waiting, *self._reading, *self._decoding)}

    def insert(self, requests: Sequence[Submit]) -> None:
        """Take these requests together, in order."""
        self._waiting.extend(PacedRow(r.id, len(r.tokens), r.max_tokens, len(r.tokens)) for r in requests)

    def remove(self, ids: Iterable[int]) -> None:
        """Forget these requests; unknown ids are ignored."""
        gone = set(ids)
        self._waiting = deque(row for row in self._waiting if row.id not in gone)
        self._reading = [row for row in self._reading if row.id not in gone]
        self._decoding = [row for row in self._decoding if row.id not in gone]

    def step(self) -> tuple[float, StepOutcome]:
        """One step and its duration in seconds: decode every row, move prompts read in an earlier step to decoding,
        read one chunk. With every seat decoding, half-read prompts stand still."""
        decoding = len(self._decoding)
        duration, rows = self._decode()
        read: list[tuple[int, int]] = []
        if len(self._decoding) < self.seats:
            self._board()
            read += self._start_decoding()
            duration += self.profile.start_s(len(read)) + self._read_chunk(read)
        return duration, StepOutcome(decoding, tuple(read), rows)

    def _decode(self) -> tuple[float, tuple[Row, ...]]:
        if not self._decoding:
            return 0.0, ()
        context = max(row.prompt + row.written for row in self._decoding)
        self.clamped += not (self.measured or self.profile).covers(len(self._decoding), context)
        duration = self.profile.decode_s(len(self._decoding), context)
        rows = tuple([_write(row) for row in self._decoding])
        self._decoding = [row for row in self._decoding if row.written < row.limit]
        return duration, rows

    def _board(self) -> None:
        room = min(self.prefill_batch - len(self._reading), self.seats - len(self._decoding))
        for _ in range(min(room, len(self._waiting))):
            self._reading.append(self._waiting.popleft())

    def _start_decoding(self) -> list[tuple[int, int]]:
        """Rows with one prompt token left decode from the next step on, which feeds them that token."""
        ready = [row for row in self._reading if row.unread <= 1]
        self._reading = [row for row in self._reading if row.unread > 1]
        self._decoding += ready
        return [(row.id, row.unread) for row in ready if row.unread]

    def _read_chunk(self, read: list[tuple[int, int]]) -> float:
        longest = 0
        for row in self._reading:
            part = min(self.prefill_step, row.unread - 1)
            row.unread -= part
            longest = max(longest, part)
            read.append((row.id, part))
        self.clamped += not (self.measured or self.profile).read.covers(len(self._reading), longest)
        return self.profile.read_s(len(self._reading), longest)


def _write(row: PacedRow) -> Row:
    row.written += 1
    finish = "length" if row.written == row.limit else None
    text = str(row.written) if row.written == 1 else f" {row.written}"
    return Row(row.id, (row.written,), text, finish)


class PacedEngine:
    """The machine in real time. A reply counts "1 2 3 ..." up to its limit: there is no end of sequence, and no stop
    string is looked for."""

    context = CONTEXT

    def __init__(self, profile: CostProfile, prefill_batch: int, prefill_step: int) -> None:
        """Sizes as in `PacedMachine`; seats are known once `warm_up` says so."""
        self._profile, self._prefill_batch, self._prefill_step = profile, prefill_batch, prefill_step
        self._seats = prefill_batch
        self._machine = self._fresh_machine()
        self._due = self._ended = self._planned = self._took = 0

    @property
    def facts(self) -> dict[str, Any]:
        """`profile_s` is what all steps should have taken by the profile, `took_s` what they took."""
        return {
            "engine": "paced",
            "model": self._profile.name,
            "device": "none",
            "clamped_steps": self._machine.clamped,
            "profile_s": seconds(self._planned),
            "took_s": seconds(self._took),
        }

    @property
    def in_flight(self) -> int:
        return self._machine.in_flight

    def tokenize(self, conversations: Sequence[Sequence[ChatTurn]]) -> list[list[int]]:
        """One token a word."""
        words = [[word for turn in turns for word in turn.content.split()] for turns in conversations]
        return [[zlib.crc32(word.encode()) % VOCABULARY for word in prompt] for prompt in words]

    def insert(self, requests: Sequence[Submit]) -> None:
        here = self._machine.ids
        for request in requests:
            if not request.tokens or len(request.tokens) + request.max_tokens > CONTEXT or request.id in here:
                raise ValueError(f"request {request.id} is empty, too long, or here already")
        self._machine.insert(requests)

    def remove(self, ids: Iterable[int]) -> None:
        self._machine.remove(ids)
        self._rest_if_empty()

    def step(self) -> StepOutcome:
        """One step of the machine. Costs are from one step's end to the next one's, so a busy engine keeps to that
        timeline, and what the worker does between two steps is part of it; a worker that is late restarts it."""
        at = now()
        begin = self._due if at - self._due < LATE else at
        duration, outcome = self._machine.step()
        planned = nanoseconds(duration)
        self._due = begin + planned
        sleep_until(self._due)
        ended = now()
        self._planned += planned
        self._took += ended - (self._ended or at)
        self._ended = ended
        self._rest_if_empty()
        return outcome

    def _rest_if_empty(self) -> None:
        """The next request begins a timeline of its own, and what passes until then is no step's."""
        if not self._machine.in_flight:
            self._due = self._ended = 0

    def warm_up(self, seats: int, prompt_lengths: Sequence[int]) -> None:
        """Nothing to warm; the batch generator too lets in at least as many as it reads together."""
        self._seats = max(seats, self._prefill_batch)
        self.reset()

    def reset(self) -> None:
        self._machine = self._fresh_machine()
        self._due = self._ended = self._planned = self._took = 0

    def _fresh_machine(self) -> PacedMachine:
        return PacedMachine(self._profile, self._seats, self._prefill_batch, self._prefill_step)

    def peak_memory(self) -> int | None:
        return None

    def close(self) -> None:
        pass
