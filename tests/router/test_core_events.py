"""The router's core under any order of events: seats, the queue, and exactly one end for every request."""

from collections import Counter
from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.clock import SECOND
from protocol.messages import Admit, Cancel, Ended, Refused, Row, Step, Submit, Tokens
from router.core import Action, Core, ToClient, ToWorker, Write
from router.policies import parse_policy

CLIENTS = (b"ann", b"bob")
CONTEXT = 20
SPECS = ("one", "static:n=3,wait=0.5", "static:n=1,wait=0", "continuous:seats=1", "continuous:seats=4")


class CoreEvents(RuleBasedStateMachine):
    """Plays clients and worker, and keeps its own book of who is where."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.owners: dict[int, bytes] = {}
        self.ends: dict[int, str] = {}
        self.written: Counter[int] = Counter()
        self.aboard: dict[int, tuple[int, int]] = {}
        self.departed: dict[int, tuple[int, int]] = {}
        self.leaving: set[int] = set()
        self.admissions = 0

    @initialize(spec=st.sampled_from(SPECS), queue=st.integers(1, 4), timeout=st.sampled_from([None, 0.7, 3.0]))
    def build(self, spec: str, queue: int, timeout: float | None) -> None:
        self.core = Core(parse_policy(spec), "cell", queue, timeout)
        self.come()

    # --- what the core answers ---

    def act(self, actions: Collection[Action]) -> None:
        for action in actions:
            match action:
                case ToClient(client, Tokens(_, rows)):
                    assert rows
                    for row in rows:
                        self.tell(client, row)
                case ToClient(client, Ended(id, end, detail)):
                    assert detail
                    self.end(client, id, end)
                case ToWorker(Admit(requests)):
                    self.board([request.id for request in requests])
                case ToWorker(Cancel(ids)):
                    assert set(ids) <= set(self.aboard) - self.leaving
                    self.leaving |= set(ids)
                case Write(record):
                    self.written[record.id] += 1
                    assert record.end == self.ends[record.id]
                    assert (record.admitted, record.departure) == self.departed.get(record.id, (None, None))
                    assert record.ended == self.now

    def tell(self, client: bytes, row: Row) -> None:
        assert self.owners[row.id] == client
        assert row.id not in self.ends, "words after the end"
        if row.finish is not None:
            self.end(client, row.id, "cancelled" if row.finish == "cancelled" else "completed")

    def end(self, client: bytes, id: int, end: str) -> None:
        assert self.owners[id] == client
        assert id not in self.ends, "a second end"
        self.ends[id] = end

    def board(self, ids: list[int]) -> None:
        """First come, first served; one ordinal for everyone who boards together."""
        assert self.core.worker
        assert ids
        assert not set(ids) & (set(self.departed) | set(self.ends))
        assert ids == sorted(ids)
        assert all(passage.id > ids[-1] for passage in self.core.waiting)
        for id in ids:
            self.departed[id] = self.aboard[id] = (self.now, self.admissions)
        self.admissions += 1

    # --- what happens ---

    @rule(client=st.sampled_from(CLIENTS), tokens=st.integers(0, 12), most=st.integers(1, 12))
    def submit(self, client: bytes, tokens: int, most: int) -> None:
        id, full = len(self.owners), len(self.core.waiting) >= self.core.queue
        self.owners[id] = client
        fits = tokens > 0 and tokens + most <= CONTEXT
        self.act(self.core.submitted(self.now, client, Submit(id, client.decode(), tuple(range(tokens)), most)))
        refused = "failed" if not self.core.worker else "rejected" if not fits or full else None
        assert self.ends.get(id) == refused

    @precondition(lambda self: len(self.core.waiting) + len(self.core.running) > 0)
    @rule(client=st.sampled_from(CLIENTS), data=st.data())
    def submit_again(self, client: bytes, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from([p.id for p in (*self.core.waiting, *self.core.running)]))
        (answer,) = self.core.submitted(self.now, client, Submit(id, "again", (1,), 1))
        assert isinstance(answer, ToClient)
        (holder,) = [p for p in (*self.core.waiting, *self.core.running) if p.id == id]
        assert answer.client == client
        if holder.client == client:
            assert isinstance(answer.message, Refused)
            assert answer.message.id is None
        else:
            assert isinstance(answer.message, Ended)
            assert (answer.message.id, answer.message.end) == (id, "rejected")

    @precondition(lambda self: self.core.worker)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some decode, some finish; cancelled ones are let go of, now or a step later; a ghost is ignored."""
        chosen = data.draw(st.lists(st.sampled_from([*self.aboard, 10_000]), unique=True))
        finishes = st.sampled_from([None, None, "stop", "length", "cancelled"])
        rows = tuple(self.row(id, data.draw(finishes)) for id in chosen)
        for row in rows:
            if row.finish is not None:
                self.aboard.pop(row.id, None)
                self.leaving.discard(row.id)
        read = tuple((id, 1) for id in self.aboard)
        self.act(self.core.stepped(self.now, Step(self.now, self.now, len(rows), len(read), len(read), rows, read)))

    def row(self, id: int, finish: str | None) -> Row:
        return Row(id, (), "", "cancelled") if id in self.leaving else Row(id, (5,), "5", finish)

    @rule(client=st.sampled_from(CLIENTS), data=st.data())
    def cancel(self, client: bytes, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from([*self.owners, 10_000]), max_size=3))
        theirs = {id for id in ids if self.owners.get(id) == client and id not in self.ends}
        before = set(self.ends)
        self.act(self.core.cancelled(self.now, client, ids, "not wanted"))
        assert set(self.ends) - before == theirs

    @rule(client=st.sampled_from(CLIENTS), goodbye=st.booleans())
    def vanish(self, client: bytes, goodbye: bool) -> None:
        core = self.core
        self.act(core.client_left(self.now, client) if goodbye else core.client_lost(self.now, client, "gone"))
        assert self.core.open_for(client) == 0

    @precondition(lambda self: self.core.worker)
    @rule(data=st.data())
    def break_down(self, data: st.DataObject) -> None:
        lost = data.draw(st.lists(st.sampled_from([*self.aboard, 10_000]), unique=True))
        self.forget(lost)
        self.act(self.core.failed(self.now, lost, "the engine broke"))

    @precondition(lambda self: self.core.worker)
    @rule()
    def die(self) -> None:
        self.forget(list(self.aboard))
        self.act(self.core.worker_gone(self.now, "the worker died"))
        assert not self.core.waiting
        assert not self.core.running

    def forget(self, ids: list[int]) -> None:
        for id in ids:
            self.aboard.pop(id, None)
            self.leaving.discard(id)

    @precondition(lambda self: not self.core.worker)
    @rule()
    def come(self) -> None:
        self.act(self.core.worker_came(self.now, CONTEXT))

    @rule(duration=st.integers(1, 2 * SECOND))
    def pass_time(self, duration: int) -> None:
        self.now += duration

    @precondition(lambda self: self.core.wake_at is not None)
    @rule()
    def wake(self) -> None:
        self.now = max(self.now, self.core.wake_at or 0)
        self.act(self.core.woken(self.now))
        assert self.core.wake_at is None or self.core.wake_at > self.now

    @rule()
    def wake_for_nothing(self) -> None:
        self.act(self.core.woken(self.now))
        assert self.core.wake_at is None or self.core.wake_at > self.now

    # --- what is always true ---

    @invariant()
    def seats_and_queue(self) -> None:
        """Whoever is aboard keeps the seat until the worker let go, cancelled or not."""
        core = self.core
        assert {passage.id for passage in core.running} == set(self.aboard)
        assert core.free == core.policy.seats - len(self.aboard) >= 0
        assert len(core.waiting) <= core.queue
        assert [passage.id for passage in core.waiting] == sorted(passage.id for passage in core.waiting)

    @invariant()
    def one_end_and_one_record_each(self) -> None:
        assert self.written == Counter(dict.fromkeys(self.ends, 1))
        assert self.core.ended == len(self.ends)
        assert self.core.completed == sum(end == "completed" for end in self.ends.values())

    @invariant()
    def nobody_is_lost(self) -> None:
        open = {id for id in self.owners if id not in self.ends}
        assert open == {p.id for p in self.core.waiting} | set(self.aboard) - self.leaving
        for client in CLIENTS:
            assert self.core.open_for(client) == sum(self.owners[id] == client for id in open)

    @invariant()
    def admissions_are_counted(self) -> None:
        assert self.core.departures == self.admissions
        assert {ordinal for _, ordinal in self.departed.values()} == set(range(self.admissions))

    @invariant()
    def nobody_waits_without_a_reason(self) -> None:
        if self.core.waiting:
            assert self.core.worker
            assert self.core.running or self.core.policy_wake is not None
            if self.core.policy.name == "continuous":
                assert self.core.free == 0
        else:
            assert self.core.policy_wake is None, "nobody waits for this alarm"


CoreEvents.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCoreEvents = CoreEvents.TestCase
