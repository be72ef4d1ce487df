"""A crowd before the router's core in made-up time: a worker that writes a token a step for everyone it has read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.clock import MS
from protocol.messages import Admit, Row, Step, Submit
from router.core import Action, Core, ToWorker, Write
from router.policies import Policy, parse_policy

CONTEXT = 2**21
CLIENT = b"crowd"
STEP = 10 * MS


def asked(id: int, expected: int | None = 4, prompt: int = 3, user: str = "ann", **more: Any) -> Submit:
    """A request whose reply has as many tokens as `max_tokens` says, 4 if it does not."""
    length = more.pop("max_tokens", expected or 4)
    return Submit(id, user, (1,) * prompt, length, expected_tokens=expected, **more)


@dataclass
class Crowd:
    """Requests with the times they come at, in nanoseconds and in order; `chunk` prompt tokens are read a step."""

    policy: str | Policy
    arrivals: Sequence[tuple[int, Submit]]
    chunk: int = 1_000
    look: Callable[["Crowd"], None] = lambda crowd: None
    now: int = 0
    admitted: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[int, tuple[int, str, str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = Core(parse_policy(self.policy) if isinstance(self.policy, str) else self.policy, "cell", 10**6)
        self.received = {submit.id: at for at, submit in self.arrivals}

    def serve(self) -> "Crowd":
        """Until nobody is left; `look` is called after everything that happens."""
        core, due = self.core, [*reversed(self.arrivals)]
        self._act(core.worker_came(0, CONTEXT))
        step_end: int | None = None
        while due or core.waiting or core.running:
            times = [due[-1][0] if due else None, step_end, core.wake_at]
            self.now = min(time for time in times if time is not None)
            if step_end == self.now:
                self._act(core.stepped(self.now, self._step()))
                step_end = None
            while due and due[-1][0] == self.now:
                self._act(core.submitted(self.now, CLIENT, due.pop()[1]))
            if core.wake_at is not None and core.wake_at <= self.now:
                self._act(core.woken(self.now))
            if step_end is None and core.running:
                step_end = self.now + STEP
        return self

    @property
    def order(self) -> list[int]:
        """Ids in the order of their admission."""
        return [id for _, id in self.admitted]

    def _step(self) -> Step:
        left, read, rows = self.chunk, [], []
        for passage in self.core.running:
            if passage.unread and left:
                part = min(left, passage.unread)
                read.append((passage.id, part))
                left -= part
            elif not passage.unread:
                last = passage.written + 1 == passage.max_tokens
                rows.append(Row(passage.id, (1,), "a", "length" if last else None))
        return Step(self.now - STEP, self.now, len(rows), len(read), self.chunk - left, tuple(rows), tuple(read))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToWorker(Admit(requests)):
                    self.admitted += [(self.now, request.id) for request in requests]
                case Write(record):
                    assert record.id not in self.ends
                    self.ends[record.id] = (self.now, record.end, record.detail)
        self.look(self)
