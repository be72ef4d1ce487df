"""From event to event is exactly what it is step by step: every stamp, every decision, whatever the policy does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.arrivals import poisson
from experiments.analysis import gaps, written
from experiments.twin.ahead import Ahead
from experiments.twin.costs import step_costs
from experiments.twin.crowd import Asked, Crowd, LikeCrowd
from experiments.twin.machine import LeapingMachine, Seat
from experiments.twin.stepwise import Stepwise
from protocol.clock import nanoseconds, seconds
from protocol.records import RequestRecord, StepRecord, merge
from router.core import Core
from router.policies import Decision, Policy, View, parse_policy
from worker.paced import PacedMachine
from worker.profile import CostProfile, DecodePoint, ReadCost, StartCost, extended, load_profile

STUDY = load_profile("qwen3-4b-4bit-m4max")
SLOPED = CostProfile(
    "sloped", "",
    tuple(DecodePoint(r, c, (0.005 + 0.001 * r) * (1 + c / 100)) for c in (10, 40, 90) for r in (1, 4, 12)),
    ReadCost(0.01, 0.02, 0.0003, 0.000007, most_prompts=2, most_tokens=80),
    StartCost(0.006, 0.0009),
)  # fmt: skip
PROFILES = (STUDY, SLOPED, extended(SLOPED), load_profile("instant"))
POLICIES = (
    "one", "static", "static:n=3,wait=0.1", "continuous", "continuous:seats=3", "budget:seats=4,tokens=100",
    "fair:seats=3", "shortest:seats=2", "priority:seats=3", "deadline:seats=2,pace=0.01",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """A crowd that is written down."""

    times: Sequence[int]
    asked: Sequence[Asked]

    def requests(self) -> Iterator[Asked]:
        return iter(self.asked)


@dataclass(frozen=True, slots=True)
class Case:
    """All that decides a simulation."""

    policy: str
    crowd: Crowd
    profile: CostProfile
    queue: int
    timeout: float | None
    prefill_batch: int
    prefill_step: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small crowds that meet: some come at the same time, or as a step ends."""
    times = sorted(
        draw(
            st.lists(st.integers(0, 40).map(lambda t: t * 50_000_000) | st.integers(0, 10**9), min_size=1, max_size=14)
        )
    )
    asked = [
        Asked(
            *(id, draw(st.sampled_from("abc")), (0,) * draw(st.sampled_from([1, 2, 5, 60, 200]))),
            *(draw(st.sampled_from([1, 2, 3, 20, 40])), draw(st.sampled_from([None, 5, 20]))),
            *(draw(st.integers(0, 2)), draw(st.sampled_from([None, 0.5, 2.0]))),
        )
        for id in range(len(times))
    ]
    return Case(
        draw(st.sampled_from(POLICIES)), Given(times, asked), draw(st.sampled_from(PROFILES)),
        draw(st.sampled_from([3, 4096])), draw(st.sampled_from([None, 0.05, 0.5, 2.0])),
        draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([16, 2048])),
    )  # fmt: skip


def stepwise(case: Case, policy: Policy | None = None) -> tuple[Core, PacedMachine, dict[str, list[Any]]]:
    made = policy or parse_policy(case.policy)
    kept: dict[str, list[Any]] = {"client-0": [], "router": [], "worker": []}
    core = Core(made, "cell", case.queue, case.timeout)
    machine = PacedMachine(case.profile, max(made.seats, case.prefill_batch), case.prefill_batch, case.prefill_step)
    Stepwise(core, case.crowd, machine, lambda role, record: kept[role].append(record)).run()
    return core, machine, kept


def ahead(case: Case, policy: Policy | None = None) -> tuple[Ahead, dict[int, tuple[Any, ...]]]:
    """The driver when all is over, and the stamps of every request."""
    made, kept = policy or parse_policy(case.policy), dict[int, tuple[Any, ...]]()
    seats = max(made.seats, case.prefill_batch)
    costs = step_costs(case.profile, case.profile)
    machine = LeapingMachine(costs, seats, case.prefill_batch, case.prefill_step)

    def keep(seat: Seat, *ending: str | None) -> None:
        assert seat.id not in kept
        kept[seat.id] = seat_stamps(seat, *ending)

    driver = Ahead(made, "cell", case.crowd, machine, case.queue, case.timeout, keep)
    driver.run()
    return driver, kept


def merged(kept: dict[str, list[Any]]) -> dict[int, RequestRecord]:
    records = [r for several in kept.values() for r in several if isinstance(r, RequestRecord)]
    return {id: record for (_, id), record in merge(records).items()}


def stamps(r: RequestRecord) -> tuple[Any, ...]:
    times = (r.received, r.admitted, r.departure, r.started, r.first_received, r.last_received, r.ended)
    return (*times, written(r), r.end, r.detail, r.finish)


def seat_stamps(s: Seat, *ending: str | None) -> tuple[Any, ...]:
    """The same: the machine takes a request as soon as it is admitted."""
    times = (s.received, s.admitted, s.departure, s.admitted, s.first, s.last, s.ended)
    return (*times, s.written, *ending)


@settings(max_examples=150)
@given(cases())
def test_every_stamp_is_the_same(case: Case) -> None:
    core, machine, kept = stepwise(case)
    driver, found = ahead(case)
    requests, steps = merged(kept), [r for r in kept["worker"] if isinstance(r, StepRecord)]
    assert found == {id: stamps(r) for id, r in requests.items()}
    for name in ("queue_area", "longest_queue", "tokens", "completed", "departures"):
        assert getattr(driver.core, name) == getattr(core, name), name
    assert dict(driver.core.served) == dict(core.served)
    assert driver.machine.steps == len(steps)
    assert driver.machine.held == max(step.in_flight for step in steps) if steps else not driver.machine.held
    assert driver.machine.unmeasured == machine.clamped
    if all(r.end == "completed" for r in requests.values()):
        longest = max([gap for r in requests.values() for gap in gaps(r)], default=0.0)
        assert seconds(driver.machine.longest_gap) == longest


@dataclass(slots=True)
class Watchful:
    """Continuous, and writes down all that it is shown when it is asked."""

    seen: list[Any]
    seats: int = 3
    name: ClassVar[str] = "watchful"

    def decide(self, now: int, view: View) -> Decision:
        running = [(r.id, r.written, r.unread) for r in view.running]
        waiting = [(r.id, r.received) for r in view.waiting]
        self.seen.append((now, running, waiting, view.free, dict(view.served)))
        enough = len(self.seen) % 3 == 0 or not running
        return Decision(tuple(r.id for r in view.first(view.free))) if enough else Decision(wake_at=now + 7_000_000)


@settings(max_examples=60)
@given(cases())
def test_a_policy_is_asked_at_the_same_times_and_shown_the_same(case: Case) -> None:
    """So the same policy decides the same, whatever it looks at."""
    one, other = Watchful([]), Watchful([])
    stepwise(case, one)
    ahead(case, other)
    assert one.seen == other.seen


@given(st.sampled_from([1, 3, 7]), st.integers(0, 120), st.integers(1, 60), st.integers(1, 10**9))
def test_a_stretch_is_the_sum_of_its_steps(rows: int, context: int, most: int, until: int) -> None:
    """Each rounded by itself, so that no error adds up."""
    for profile in PROFILES:
        costs = step_costs(profile, profile)
        each = [nanoseconds(profile.decode_s(rows, context + i)) for i in range(most)]
        unmeasured = sum(not profile.covers(rows, context + i) for i in range(most))
        whole = most, each[0], max(each[1:], default=0), sum(each), unmeasured
        assert costs.stretch(rows, context, most) == whole
        steps, _, _, ns, _ = costs.stretch(rows, context, most, until)
        assert ns == sum(each[:steps])
        assert steps == most or sum(each[:steps]) >= until > sum(each[: steps - 1])


def test_the_studys_static_buses_leave_as_they_did() -> None:
    case = Case("static", LikeCrowd(poisson(40, 4.0, 12), 60, 128), STUDY, 4096, None, 8, 2048)
    _, found = ahead(case)
    buses = [sum(departure == number for _, _, departure, *_ in found.values()) for number in range(6)]
    assert buses == [2, 7, 8, 8, 8, 7]


def test_what_a_profile_was_not_measured_at_follows_its_outermost_slopes() -> None:
    wider = extended(SLOPED)
    per_row = SLOPED.decode_s(12, 90) - SLOPED.decode_s(11, 90)
    per_token = SLOPED.decode_s(12, 90) - SLOPED.decode_s(12, 89)
    assert wider.decode_s(20, 90) == pytest.approx(SLOPED.decode_s(12, 90) + 8 * per_row)
    assert wider.decode_s(12, 190) == pytest.approx(SLOPED.decode_s(12, 90) + 100 * per_token)
    for point in SLOPED.decode:
        assert wider.decode_s(point.rows, point.context) == pytest.approx(point.s)
    falling = replace(SLOPED, decode=(DecodePoint(1, 0, 2.0), DecodePoint(2, 0, 1.0)))
    assert extended(falling).decode_s(50, 0) == 1.0
