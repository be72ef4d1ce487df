"""Policies with an order of their own, or a budget: what each promises, over any crowd."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.clock import MS, SECOND, nanoseconds
from protocol.messages import Submit
from router.core import Core
from router.policies import Continuous, Deadline, Priority, Shortest, parse_policy
from tests.router.crowd import CLIENT, CONTEXT, STEP, Crowd, asked

FEW = settings(max_examples=25, deadline=None)
GAPS = st.integers(0, 100 * MS)


@st.composite
def crowds(draw: st.DrawFn, most: int = 25, users: int = 3) -> list[tuple[int, Submit]]:
    """Requests of a few users that come within a second or two, much faster than they are served."""
    arrivals, at = [], 0
    for id in range(draw(st.integers(1, most))):
        at += draw(GAPS)
        expected = draw(st.none() | st.integers(1, 12))
        more: dict[str, Any] = {"priority": draw(st.integers(-2, 2)), "max_tokens": draw(st.integers(1, 12))}
        more["deadline"] = draw(st.none() | st.floats(0, 1.5))
        user = f"user-{draw(st.integers(0, users - 1))}"
        arrivals.append((at, asked(id, expected, draw(st.integers(1, 40)), user, **more)))
    return arrivals


def everybody_is_served(crowd: Crowd) -> bool:
    return {id: end for id, (_, end, _) in crowd.ends.items()} == dict.fromkeys(crowd.received, "completed")


# --- shortest, priority ---


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_a_queue_that_stands_is_served_shortest_first(lengths: list[int]) -> None:
    arrivals = [(0, asked(0)), *[(1, asked(id, length)) for id, length in enumerate(lengths, start=1)]]
    order = Crowd("shortest:seats=1", arrivals).serve().order
    assert order == [0, *sorted(range(1, len(lengths) + 1), key=lambda id: lengths[id - 1])]


def test_a_prompt_may_stand_for_the_reply() -> None:
    arrivals = [(0, asked(0)), (1, asked(1, 1, prompt=9)), (1, asked(2, 9, prompt=1)), (1, asked(3, 5, prompt=5))]
    assert Crowd("shortest:seats=1,predictor=prompt", arrivals).serve().order == [0, 2, 3, 1]


def test_a_length_nobody_announced_is_the_longest_allowed() -> None:
    arrivals = [(0, asked(0)), (1, asked(1, None, max_tokens=7)), (1, asked(2, 8)), (1, asked(3, 6))]
    assert Crowd("shortest:seats=1", arrivals).serve().order == [0, 3, 1, 2]


@FEW
@given(crowds(), st.integers(1, 3), st.sampled_from(["oracle", "noisy:0.7", "prompt"]), st.sampled_from([0, 0.01, 0.1]))
def test_nobody_starves_behind_shorter_ones(
    arrivals: list[tuple[int, Submit]], seats: int, predictor: str, patience: float
) -> None:
    """Whoever gets ahead came less than `patience` x tokens after the one it passes."""
    policy = Shortest(seats, predictor, patience)
    crowd = Crowd(policy, arrivals).serve()
    assert everybody_is_served(crowd)
    seen = {id: _passage(submit) for id, submit in enumerate(submit for _, submit in arrivals)}
    for ahead, behind in _pairs(crowd.order):
        head_start = crowd.received[ahead] - crowd.received[behind]
        assert head_start <= nanoseconds(patience) * policy.predicted(seen[behind]) + 1


@FEW
@given(crowds(), st.integers(1, 3), st.sampled_from([0, 0.02, 10]))
def test_nobody_starves_behind_higher_classes(arrivals: list[tuple[int, Submit]], seats: int, patience: float) -> None:
    crowd = Crowd(Priority(seats, patience), arrivals).serve()
    assert everybody_is_served(crowd)
    classes = {submit.id: submit.priority for _, submit in arrivals}
    for ahead, behind in _pairs(crowd.order):
        above = classes[ahead] - classes[behind]
        assert crowd.received[ahead] - crowd.received[behind] <= max(0, above) * nanoseconds(patience)


@pytest.mark.parametrize(
    ("spec", "unloved", "loved"),
    [
        ("shortest:seats=1,patience=0.01", {"expected": 100}, {"expected": 1}),
        ("priority:seats=1,patience=0.5", {"priority": -2, "expected": 1}, {"expected": 1}),
    ],
)
def test_at_95_percent_load_nobody_is_passed_over_for_long(
    spec: str, unloved: dict[str, Any], loved: dict[str, Any]
) -> None:
    """Reading and writing one token takes two steps. Those that come within the one second of head start go first, and
    what they hold up; without ageing all 400 would."""
    others = [(2 + round(id * 2 * STEP / 0.95), asked(id, **loved)) for id in range(2, 402)]
    crowd = Crowd(spec, [(0, asked(0, 20)), (1, asked(1, **unloved)), *others]).serve()
    admitted = next(at for at, id in crowd.admitted if id == 1)
    assert SECOND < admitted < SECOND * 1.35
    ahead = crowd.order[: crowd.order.index(1)]
    assert max(crowd.received[id] for id in ahead) <= SECOND + 1


def test_the_highest_class_is_served_first() -> None:
    arrivals = [(0, asked(0)), *[(1, asked(id, priority=id % 3)) for id in range(1, 7)]]
    assert Crowd("priority:seats=1", arrivals).serve().order == [0, 2, 5, 1, 4, 3, 6]


@pytest.mark.parametrize("spec", ["shortest:patience=0", "priority:patience=0"])
@given(arrivals=crowds())
@FEW
def test_without_patience_it_is_first_come_first_served(spec: str, arrivals: list[tuple[int, Submit]]) -> None:
    assert Crowd(spec, arrivals).serve().order == sorted(range(len(arrivals)))


@pytest.mark.parametrize("name", ["shortest:predictor=noisy:2", "priority", "fair"])
@given(arrivals=crowds())
@FEW
def test_with_seats_to_spare_it_is_continuous(name: str, arrivals: list[tuple[int, Submit]]) -> None:
    """The same requests, admitted at the same times."""
    assert Crowd(name, arrivals).serve().admitted == Crowd("continuous", arrivals).serve().admitted


def test_a_noisy_prediction_has_the_error_it_says_and_is_the_same_every_time() -> None:
    policy, again = (parse_policy("shortest:predictor=noisy:0.5") for _ in range(2))
    assert isinstance(policy, Shortest)
    assert isinstance(again, Shortest)
    seen = [_passage(asked(id, 100)) for id in range(2_000)]
    logs = [math.log(policy.predicted(each) / 100) for each in seen]
    assert logs == [math.log(again.predicted(each) / 100) for each in seen]
    mean = sum(logs) / len(logs)
    assert mean == pytest.approx(0, abs=0.04)
    assert (sum((log - mean) ** 2 for log in logs) / len(logs)) ** 0.5 == pytest.approx(0.5, rel=0.06)


# --- deadline ---


@FEW
@given(crowds(), st.integers(1, 3), st.sampled_from([0, 0.01, 0.05]))
def test_only_the_hopeless_are_rejected_and_they_at_once(
    arrivals: list[tuple[int, Submit]], seats: int, pace: float
) -> None:
    policy = Deadline(seats, pace)

    def nobody_hopeless_waits(crowd: Crowd) -> None:
        assert all(policy.latest_start(each) >= crowd.now - 1 for each in crowd.core.waiting)

    crowd = Crowd(policy, arrivals, look=nobody_hopeless_waits).serve()
    submits = {submit.id: submit for _, submit in arrivals}
    for id, (at, end, detail) in crowd.ends.items():
        deadline = submits[id].deadline
        if end == "rejected":
            assert deadline is not None
            tokens = submits[id].expected_tokens or submits[id].max_tokens
            assert at + nanoseconds(pace) * tokens > crowd.received[id] + nanoseconds(deadline)
            assert detail is not None
            assert detail.startswith(f"hopeless: its deadline, {deadline:g} s after receipt, cannot be met")
        else:
            assert end == "completed"


@given(st.lists(st.none() | st.integers(1, 100), min_size=1, max_size=20))
def test_the_earliest_deadline_is_served_first(deadlines: list[int | None]) -> None:
    arrivals = [(0, asked(0)), *[(1, asked(id, deadline=at)) for id, at in enumerate(deadlines, start=1)]]
    order = Crowd("deadline:seats=1", arrivals).serve().order
    assert order == [0, *sorted(range(1, len(deadlines) + 1), key=lambda id: deadlines[id - 1] or math.inf)]


def test_what_cannot_be_written_in_time_is_rejected_when_it_comes() -> None:
    arrivals = [(5, asked(0, 100, deadline=0.9)), (5, asked(1, 100, deadline=1.1))]
    crowd = Crowd("deadline:pace=0.01", arrivals).serve()
    assert crowd.ends[0] == (
        5,
        "rejected",
        "hopeless: its deadline, 0.9 s after receipt, cannot be met any more with 0.01 s for each of 100 tokens",
    )
    assert crowd.order == [1]


# --- fair ---


@FEW
@given(crowds(users=4), st.integers(1, 4))
def test_users_who_keep_waiting_are_served_alike(arrivals: list[tuple[int, Submit]], seats: int) -> None:
    """None gets further ahead of another, from when both began to wait, than by a longest reply in every seat."""
    bound = seats * max(submit.max_tokens for _, submit in arrivals)
    ahead: dict[tuple[str, str], int] = {}

    def shares_are_alike(crowd: Crowd) -> None:
        here = {each.user for each in crowd.core.waiting}
        for a, b in [(a, b) for a in here for b in here if a < b]:
            apart = crowd.core.served.get(a, 0) - crowd.core.served.get(b, 0)
            began = ahead.setdefault((a, b), apart)
            assert abs(apart) <= max(bound, abs(began))
        for pair in [pair for pair in ahead if not here.issuperset(pair)]:
            del ahead[pair]

    crowd = Crowd(f"fair:seats={seats}", arrivals, look=shares_are_alike).serve()
    assert everybody_is_served(crowd)


def test_a_greedy_user_keeps_nobody_waiting_longer_than_for_the_next_seat() -> None:
    """Under first come, first served the others would wait for all hundred."""
    greedy = [(0, asked(id, 8, user="greedy")) for id in range(100)]
    others = [(STEP * 20 + id, asked(id, 8, user=f"user-{id}")) for id in range(100, 104)]
    fair, continuous = (Crowd(spec, [*greedy, *others]).serve() for spec in ("fair:seats=4", "continuous:seats=4"))
    one_reply = 10 * STEP
    waits = {id: at - fair.received[id] for at, id in fair.admitted if id >= 100}
    assert len(waits) == 4
    assert max(waits.values()) <= one_reply
    assert continuous.order[-4:] == [100, 101, 102, 103]


def test_shares_in_the_long_run_are_of_tokens_not_of_requests() -> None:
    """One user asks for replies four times as long as the other's."""
    arrivals = [(0, asked(id, *((40, 3, "long") if id % 2 else (10, 3, "short")))) for id in range(400)]
    served: Counter[str] = Counter()

    def half_way(crowd: Crowd) -> None:
        if len(crowd.admitted) == 150:
            served.update(crowd.core.served)

    Crowd("fair:seats=2", arrivals, look=half_way).serve()
    assert served["long"] == pytest.approx(served["short"], rel=0.1)


# --- budget ---


@FEW
@given(crowds(), st.integers(1, 4), st.integers(1, 60), st.integers(1, 20))
def test_a_budget_is_never_exceeded_but_by_one_alone(
    arrivals: list[tuple[int, Submit]], seats: int, tokens: int, chunk: int
) -> None:
    def within(crowd: Crowd) -> None:
        unread = [each.unread for each in crowd.core.running if each.unread]
        assert sum(unread) <= tokens or len(unread) == 1

    crowd = Crowd(f"budget:seats={seats},tokens={tokens}", arrivals, chunk, within).serve()
    assert everybody_is_served(crowd)
    assert crowd.order == sorted(crowd.order)


@given(arrivals=crowds())
@FEW
def test_a_budget_for_all_is_continuous(arrivals: list[tuple[int, Submit]]) -> None:
    budget, continuous = (Crowd(spec, arrivals, 7).serve() for spec in ("budget:tokens=100000", "continuous"))
    assert budget.admitted == continuous.admitted


# --- how long a decision takes ---


class Counted:
    """A number that counts how often it is compared."""

    comparisons = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: "Counted") -> bool:
        Counted.comparisons += 1
        return self.value < other.value


class Counting(Continuous):
    """Last come, first served, the comparisons counted."""

    def order(self, request: Any, served: int) -> Counted:
        return Counted(-request.id)


@pytest.mark.parametrize("users", [1, 7, 10**6])
def test_a_decision_takes_log_queue_comparisons(users: int) -> None:
    """With 20,000 waiting some hundred, on average over those that follow, where looking at all would take 20,000."""
    core = Core(Counting(seats=1), "cell", 10**6)
    core.worker_came(0, CONTEXT)
    for id in range(20_000):
        core.submitted(id, CLIENT, asked(id, user=f"user-{id % users}"))
    Counted.comparisons = 0
    for round in range(100):
        core.failed(SECOND + round, [next(iter(core.running)).id], "enough")
    assert next(iter(core.running)).id == 20_000 - 100
    assert Counted.comparisons / 100 < 16 * math.log2(20_000)


def _passage(submit: Submit) -> Any:
    core = Core(parse_policy("one"), "cell")
    core.worker_came(0, CONTEXT)
    core.submitted(0, CLIENT, submit)
    return next(iter(core.running))


def _pairs(order: list[int]) -> list[tuple[int, int]]:
    """Who was admitted ahead of whom, though later in coming."""
    return [(ahead, behind) for i, ahead in enumerate(order) for behind in order[i + 1 :] if behind < ahead]
