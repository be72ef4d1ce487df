"""The live router decides as the simulation does: its whole loop, on the wire's own bytes and a clock of the test's,
lives through what was simulated, and has to admit the same requests, in the same order, at the same nanosecond."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import router.loop as live
from experiments.twin.ahead import Ahead
from experiments.twin.costs import step_costs
from experiments.twin.crowd import Asked
from experiments.twin.machine import LeapingMachine, Seat
from experiments.twin.stepwise import Stepwise
from protocol import messages as m
from protocol.clock import MS, SECOND
from protocol.messages import Message, decode, encode
from protocol.records import QueueRecord, RequestRecord, read
from router.core import Action, Core
from router.policies import POLICIES, parse_policy
from tests.experiments.twin.test_ahead import PROFILES, Case, Given, cases
from worker.paced import CONTEXT, PacedMachine
from worker.profile import CostProfile, DecodePoint, ReadCost

RUN, CLIENT, WORKER = "run-1", b"the client", b"the worker"
BEGIN = 2 * SECOND
SPECS = (
    "one", "static:n=3,wait=0.1", "continuous:seats=3", "budget:seats=4,tokens=100", "fair:seats=3",
    "shortest:seats=2", "shortest:seats=2,predictor=prompt", "shortest:seats=2,predictor=noisy:1", "priority:seats=2",
    "deadline:seats=2,pace=0.01",
)  # fmt: skip
# Steps end at the very moments at which requests come.
ROUND = CostProfile("round", "", (DecodePoint(1, 0, 0.05),), ReadCost(0.0, 0.0, 0.0))
Admissions = list[tuple[int, tuple[int, ...]]]


@dataclass(slots=True)
class Turn:
    """What happens at one moment, in the order in which a router takes it; `woken` if nothing else does."""

    at: int
    worker: list[Message] = field(default_factory=list)
    client: list[Message] = field(default_factory=list)
    woken: bool = False


class Overheard(Core):
    """The simulation's core, which writes down every event."""

    turns: list[Turn]

    def submitted(self, now: int, client: bytes, submit: m.Submit) -> list[Action]:
        if not self.turns or self.turns[-1].at != now or self.turns[-1].woken:
            self.turns.append(Turn(now))
        self.turns[-1].client.append(submit)
        return super().submitted(now, client, submit)

    def stepped(self, now: int, step: m.Step) -> list[Action]:
        self.turns.append(Turn(now, [step]))
        return super().stepped(now, step)

    def woken(self, now: int) -> list[Action]:
        if not self.turns or self.turns[-1].at != now:
            self.turns.append(Turn(now))
        self.turns[-1].woken = True
        return super().woken(now)


class Boarding(PacedMachine):
    """The stepwise machine, which writes down who came in together."""

    boarded: Admissions

    def insert(self, requests: Sequence[Any]) -> None:
        self.boarded.append((len(self.boarded), tuple([request.id for request in requests])))
        super().insert(requests)


@dataclass(slots=True)
class BoardingAhead(LeapingMachine):
    """The same of the other driver."""

    boarded: Admissions = field(default_factory=list)

    def insert(self, seats: Iterable[Seat]) -> None:
        together = [*seats]
        assert {seat.departure for seat in together} == {len(self.boarded)}
        self.boarded.append((len(self.boarded), tuple([seat.id for seat in together])))
        LeapingMachine.insert(self, together)


@dataclass(frozen=True, slots=True)
class Decided:
    """All that a router decided: who was admitted together, in order, what became of each request and when, and how
    long its queue was."""

    admissions: Admissions
    requests: dict[int, RequestRecord]
    queue: tuple[int, int]


def stepwise(case: Case) -> tuple[Decided, list[Turn]]:
    policy, kept = parse_policy(case.policy), list[RequestRecord]()
    core, seats = Overheard(policy, "cell", case.queue, case.timeout), max(policy.seats, case.prefill_batch)
    core.turns = []
    machine = Boarding(case.profile, seats, case.prefill_batch, case.prefill_step)
    machine.boarded = []
    Stepwise(core, case.crowd, machine, lambda role, record: kept.append(record) if role == "router" else None).run()
    queue = core.queue_area, core.longest_queue
    return Decided(machine.boarded, {each.id: each for each in kept}, queue), core.turns


def ahead(case: Case) -> Decided:
    policy, kept = parse_policy(case.policy), dict[int, RequestRecord]()
    costs, sizes = step_costs(case.profile, case.profile), (case.prefill_batch, case.prefill_step)
    machine = BoardingAhead(costs, max(policy.seats, case.prefill_batch), *sizes)

    def keep(seat: Seat, *end: Any) -> None:
        kept[seat.id] = driver.core._record(seat, *end)

    driver = Ahead(policy, "cell", case.crowd, machine, case.queue, case.timeout, keep)
    driver.run()
    return Decided(machine.boarded, kept, (driver.core.queue_area, driver.core.longest_queue))


# --- the live router, on the test's clock ---


@dataclass(slots=True)
class Listed:
    """A mailbox whose wire is two lists of bytes."""

    socket: object
    came: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    sent: list[bytes] = field(default_factory=list)

    def send(self, peer: bytes, message: Message) -> None:
        self.sent.append(encode(message, RUN))
        if isinstance(message, m.Bye) and peer == WORKER:
            self.deliver(WORKER, m.Bye())

    def deliver(self, peer: bytes, *said: Message) -> None:
        self.came.extend([(peer, encode(message, RUN)) for message in said])

    def receive(self) -> tuple[bytes, bytes] | None:
        return self.came.popleft() if self.came else None

    def wait(self, timeout_ms: int) -> bool:
        return bool(self.came)

    def close(self) -> None:
        assert not self.came


@dataclass(slots=True)
class World:
    """Client and worker of a live router: they do what was simulated, and time passes only while the router waits."""

    turns: deque[Turn]
    now: int = 0
    front: Listed = field(default_factory=lambda: Listed("front"))
    back: Listed = field(default_factory=lambda: Listed("back"))

    def poll(self, patience_ms: int) -> list[tuple[object, int]]:
        """Until somebody speaks, the router's patience is at an end, or its policy wants to be asked: for that the
        router has to be awake within a millisecond, and here it is at once."""
        until = self.now + patience_ms * MS
        if self.turns and self.turns[0].at <= until:
            turn = self.turns.popleft()
            assert turn.worker or turn.client or until < turn.at + MS, "the router sleeps when its policy wants to act"
            self._happen(turn)
        else:
            self.now = until
        self.back.deliver(WORKER, m.Beat("w"))
        self.front.deliver(CLIENT, m.Beat("c"))
        return [(box.socket, 1) for box in (self.back, self.front)]

    def _happen(self, turn: Turn) -> None:
        self.now = max(self.now, turn.at)
        self.back.deliver(WORKER, *turn.worker)
        self.front.deliver(CLIENT, *turn.client)


def life(turns: Sequence[Turn]) -> deque[Turn]:
    """The whole of a cell: everybody arrives and is ready, then what was simulated, and goodbye."""
    arrival = Turn(0, [m.Hello("worker", "w"), m.WorkerReady(CONTEXT, False, {})], [m.Hello("client", "c")])
    ready = Turn(0, [m.WorkerReady(CONTEXT, True, {})], [])
    return deque([arrival, Turn(0, [], [m.ClientReady(1, (1,))]), ready, *turns, Turn(turns[-1].at, [], [m.Bye()])])


@contextmanager
def on_the_tests_clock(world: World) -> Iterator[None]:
    """The router's loop with its wire and clock replaced, and without what it asks of the machine."""
    boxes = {"front": world.front, "back": world.back}
    replaced: dict[str, Any] = {
        "now": lambda: world.now,
        "mailbox": lambda context, endpoint, run: boxes[endpoint],
        "poller": lambda *boxes: world,
        "run_first": lambda rank: "default",
        **dict.fromkeys(("stay_in_memory", "tighten_timers", "quiet_collector"), lambda: None),
    }
    with patch.multiple(live, **replaced):
        yield


def lived(case: Case, turns: Sequence[Turn], folder: Path) -> Decided:
    """What the live router decides."""
    world = World(life(turns))
    settings = live.RouterSettings(
        *("front", "back", RUN, "cell", parse_policy(case.policy), case.queue, case.timeout, 1, folder)
    )
    with on_the_tests_clock(world):
        assert live.RouterLoop(settings, SimpleNamespace(requested=False)).serve() == 0  # type: ignore[arg-type]
    assert not world.turns
    admits = [message for data in world.back.sent if isinstance(message := decode(data, RUN), m.Admit)]
    admissions = [(number, tuple([submit.id for submit in admit.requests])) for number, admit in enumerate(admits)]
    records = [*read(folder / "cell.router.msgpack")]
    (queue,) = [record for record in records if isinstance(record, QueueRecord)]
    requests = {record.id: record for record in records if isinstance(record, RequestRecord)}
    return Decided(admissions, requests, (queue.area_ns, queue.longest))


def test_every_policy_is_among_these() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == {*POLICIES}


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=25)
@given(drawn=cases(), profile=st.sampled_from([*PROFILES, ROUND, ROUND]))
def test_the_live_router_admits_as_simulated(spec: str, drawn: Case, profile: CostProfile) -> None:
    """Both drivers of the simulation, and every stamp that a router makes; a worker comes before the crowd does."""
    crowd = Given([BEGIN + time for time in drawn.crowd.times], drawn.crowd.asked)  # type: ignore[attr-defined]
    case = replace(drawn, policy=spec, crowd=crowd, profile=profile)
    simulated, turns = stepwise(case)
    with TemporaryDirectory() as folder:
        assert lived(case, turns, Path(folder)) == simulated
    assert ahead(case) == simulated


def test_who_comes_as_a_seat_is_freed_comes_after_those_who_waited(tmp_path: Path) -> None:
    """In the simulation as live the worker is heard before the clients: a shorter request is a moment too late."""
    asked = [Asked(id, "anna", (0, 0), tokens, tokens) for id, tokens in enumerate((5, 40, 1))]
    first = Case("shortest:seats=1", Given([BEGIN, BEGIN + MS], asked[:2]), ROUND, 4096, None, 8, 2048)
    freed = stepwise(first)[0].requests[0].ended
    assert freed is not None
    case = replace(first, crowd=Given([BEGIN, BEGIN + MS, freed], asked))
    simulated, turns = stepwise(case)
    assert simulated.admissions == [(0, (0,)), (1, (1,)), (2, (2,))]
    assert lived(case, turns, tmp_path) == simulated == ahead(case)
