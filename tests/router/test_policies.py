"""Policies as tables: what is waiting and running, and who enters then."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.clock import SECOND
from router.policies import (
    POLICIES,
    Continuous,
    Decision,
    OneAtATime,
    Policy,
    PolicyError,
    Static,
    label,
    params,
    parse_policy,
)


@dataclass(frozen=True)
class Request:
    """A request as policies see it, waiting or running."""

    id: int
    received: int = 0
    user: str = "someone"
    priority: int = 0
    deadline: float | None = None
    prompt_tokens: int = 10
    max_tokens: int = 10
    expected_tokens: int | None = None
    written: int = 0
    unread: int = 0


@dataclass
class State:
    """A view: requests received at these nanoseconds wait, with ids from 0; so many others run."""

    waiting: tuple[Request, ...]
    running: tuple[Request, ...]
    free: int
    served: Mapping[str, int] = field(default_factory=dict)

    def first(self, most: int) -> tuple[Request, ...]:
        return self.waiting[:most]


def state(policy: Policy, received: tuple[int, ...], running: int) -> State:
    waiting = tuple(Request(id, at) for id, at in enumerate(received))
    return State(waiting, tuple(Request(1_000 + n) for n in range(running)), policy.seats - running)


ONE, BUS, SEATS = OneAtATime(), Static(3, 0.5), Continuous(4)
HALF = SECOND // 2


@pytest.mark.parametrize(
    ("policy", "received", "running", "now", "decision"),
    [
        (ONE, (), 0, 5, Decision()),
        (ONE, (1, 2, 3), 0, 5, Decision((0,))),
        (ONE, (1, 2, 3), 1, 5, Decision()),
        (BUS, (), 0, 5, Decision()),
        (BUS, (7,), 0, 7, Decision(wake_at=7 + HALF)),
        (BUS, (7, 9), 0, 9, Decision(wake_at=7 + HALF)),
        (BUS, (7, 9), 0, 6 + HALF, Decision(wake_at=7 + HALF)),
        (BUS, (7, 9), 0, 7 + HALF, Decision((0, 1))),
        (BUS, (7, 8, 9), 0, 9, Decision((0, 1, 2))),
        (BUS, (7, 8, 9, 9, 9), 0, 9, Decision((0, 1, 2))),
        (BUS, (7, 8, 9, 9, 9), 0, 9 * SECOND, Decision((0, 1, 2))),
        (BUS, (7, 8, 9), 1, 9, Decision()),
        (BUS, (7,), 3, 9 * SECOND, Decision()),
        (SEATS, (), 0, 5, Decision()),
        (SEATS, (1, 2, 3), 0, 5, Decision((0, 1, 2))),
        (SEATS, (1, 2, 3), 2, 5, Decision((0, 1))),
        (SEATS, (1, 2, 3), 4, 5, Decision()),
        (SEATS, (1, 2, 3, 4, 5, 6), 0, 5, Decision((0, 1, 2, 3))),
    ],
)
def test_decisions(policy: Policy, received: tuple[int, ...], running: int, now: int, decision: Decision) -> None:
    assert policy.decide(now, state(policy, received, running)) == decision


def test_a_bus_that_waits_for_nobody_leaves_at_once() -> None:
    policy = Static(8, 0)
    assert policy.decide(3, state(policy, (3,), 0)) == Decision((0,))


def test_the_defaults_are_the_studys() -> None:
    assert [parse_policy(name) for name in ("one", "static", "continuous")] == [
        OneAtATime(),
        Static(8, 0.5),
        Continuous(64),
    ]
    assert [parse_policy(name).seats for name in [*POLICIES][:3]] == [1, 8, 64]


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ("static:n=4", Static(4, 0.5)),
        ("static:wait=2", Static(8, 2.0)),
        ("static:wait=0,n=1", Static(1, 0.0)),
        ("static:n=100000,wait=86400", Static(100_000, 86_400.0)),
        ("continuous:seats=1", Continuous(1)),
    ],
)
def test_specs(spec: str, policy: Policy) -> None:
    assert parse_policy(spec) == policy


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "one, static, continuous"),
        ("fifo", "unknown policy 'fifo'; choose from one, static, continuous"),
        ("Static", "one, static, continuous"),
        ("one:seats=1", "policy one has no 'seats'; it takes no settings"),
        ("continuous:", "policy continuous has no ''; it takes seats"),
        ("static:seats=8", "policy static has no 'seats'; it takes n, wait"),
        ("static:n=8,", "it takes n, wait"),
        ("static:n=8,n=9", "policy static: n is given twice"),
        ("static:n", "n is a whole number from 1 to 100000, not ''"),
        ("static:n=0", "n is a whole number from 1 to 100000, not '0'"),
        ("static:n=100001", "n is a whole number from 1 to 100000, not '100001'"),
        ("static:n=2.5", "n is a whole number from 1 to 100000, not '2.5'"),
        ("static:wait=-1", "wait is a number from 0 to 86400, not '-1'"),
        ("static:wait=nan", "wait is a number from 0 to 86400, not 'nan'"),
        ("static:wait=inf", "wait is a number from 0 to 86400, not 'inf'"),
        ("static:wait=soon", "wait is a number from 0 to 86400, not 'soon'"),
        ("continuous:seats=-3", "seats is a whole number from 1 to 100000, not '-3'"),
    ],
)
def test_what_is_no_policy_is_said_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(spec)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (OneAtATime(), "one"),
        (Static(), "static"),
        (Static(16, 0.5), "static:n=16"),
        (Static(16, 2.0), "static:n=16,wait=2"),
        (Continuous(), "continuous"),
        (Continuous(8), "continuous:seats=8"),
    ],
)
def test_labels_name_only_what_is_not_the_default(policy: Policy, word: str) -> None:
    assert label(policy) == word


def test_params_are_the_settings_by_name() -> None:
    assert [params(policy) for policy in (ONE, BUS, SEATS)] == [{}, {"n": 3, "wait": 0.5}, {"seats": 4}]


ANY_POLICY = st.one_of(
    st.just(OneAtATime()),
    st.builds(Static, st.integers(1, 100_000), st.floats(0, 86_400)),
    st.builds(Continuous, st.integers(1, 100_000)),
)


@given(ANY_POLICY)
def test_a_label_is_a_spec_of_the_same_policy(policy: Policy) -> None:
    assert parse_policy(label(policy)) == policy
    assert type(policy)(**params(policy)) == policy


@given(ANY_POLICY, st.lists(st.integers(0, 10 * SECOND)), st.integers(0, 5), st.integers(0, 20 * SECOND))
def test_every_decision_keeps_the_rules(policy: Policy, received: list[int], running: int, now: int) -> None:
    view = state(policy, tuple(sorted(at for at in received if at <= now)), min(running, policy.seats))
    decision = policy.decide(now, view)
    assert decision.admit == tuple(range(len(decision.admit)))
    assert len(decision.admit) <= min(view.free, len(view.waiting))
    assert decision.reject == ()
    assert decision.wake_at is None or (decision.wake_at > now and not decision.admit)
