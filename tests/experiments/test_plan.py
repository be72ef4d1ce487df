"""The plan of a rush: which cells, in which order, at which rates, and for how long."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.arrivals import poisson
from experiments.cell import Cell
from experiments.plan import (
    START_UP_S,
    STUDY_CAPACITY,
    STUDY_LOADS,
    Offer,
    RushSettings,
    cells,
    drift_cell,
    expected_s,
    minutes,
    named_policies,
    offers,
    schedule,
    two_digits,
    with_seats,
)
from router.policies import parse_policy
from worker.options import Server

SETTINGS = RushSettings(
    server=Server(engine="paced", profile="instant"),
    policies=("one", "static", "continuous"),
    rates=(1.0, 2.0, 4.0),
    loads=STUDY_LOADS,
    arrivals="poisson",
    requests=40,
    max_tokens=128,
    ignore_eos=True,
    workload="study",
    prompts=None,
    seeds=(12,),
    clients=2,
    queue=4096,
    timeout=None,
)


def planned(settings: RushSettings = SETTINGS) -> list[Cell]:
    return cells(settings, offers(settings, None) or [])


def test_policies_are_interleaved() -> None:
    """ABC at the first rate, CAB at the second, BCA at the third."""
    assert [cell.label for cell in planned()] == [
        "one at 1/s",
        "static at 1/s",
        "continuous at 1/s",
        "continuous at 2/s",
        "one at 2/s",
        "static at 2/s",
        "static at 4/s",
        "continuous at 4/s",
        "one at 4/s",
    ]


def test_the_fourth_rate_begins_as_the_first() -> None:
    order = planned(replace(SETTINGS, rates=(1.0, 2.0, 4.0, 8.0)))[-3:]
    assert [cell.policy.partition(":")[0] for cell in order] == ["one", "static", "continuous"]


def test_two_policies_take_turns() -> None:
    order = planned(replace(SETTINGS, policies=("one", "static")))
    assert [cell.policy.partition(":")[0] for cell in order] == ["one", "static", "static", "one", "one", "static"]


def test_names_are_files_in_the_order_of_the_run() -> None:
    settings = replace(SETTINGS, policies=("one", "static:n=4,wait=0.25"), rates=(0.5,))
    assert [cell.name for cell in planned(settings)] == ["c01-one-0.5-per-s", "c02-static-n4-wait0.25-0.5-per-s"]
    at_once = planned(replace(SETTINGS, arrivals="at-once"))
    assert [(cell.name, cell.label, cell.rate) for cell in at_once] == [
        ("c01-one-at-once", "one all at once", None),
        ("c02-static-at-once", "static all at once", None),
        ("c03-continuous-at-once", "continuous all at once", None),
    ]


def test_a_cells_policy_is_what_was_asked_to_the_last_digit() -> None:
    for spec in ("one", "static:wait=10000.75", "static:n=100000,wait=0.1234567", "continuous:seats=3"):
        (cell,) = planned(replace(SETTINGS, policies=(spec,), rates=(1.0,)))
        assert parse_policy(cell.policy) == parse_policy(spec)


WAITS = st.lists(st.floats(0, 100), min_size=1, max_size=4, unique=True)
RATES = st.lists(st.integers(1, 100), min_size=1, max_size=6, unique=True)


@given(WAITS, RATES)
def test_names_and_labels_are_unique(waits: list[float], rates: list[int]) -> None:
    policies = tuple(f"static:wait={wait!r}" for wait in waits)
    made = planned(replace(SETTINGS, policies=policies, rates=tuple(map(float, rates))))
    assert len({cell.name for cell in made}) == len({cell.label for cell in made}) == len(waits) * len(rates)
    assert [cell.name for cell in made] == sorted(cell.name for cell in made)
    assert all("/" not in cell.name and ":" not in cell.name and " " not in cell.name for cell in made)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(1.0, 1.0), (0.926, 0.93), (3.7037, 3.7), (12.49, 12.0), (0.04629, 0.046), (185.2, 190.0), (0.0999, 0.1)],
)
def test_two_digits(value: float, rounded: float) -> None:
    assert two_digits(value) == rounded


def test_auto_rates_on_the_studys_machine_are_the_studys() -> None:
    auto = replace(SETTINGS, rates=None)
    assert offers(auto, 1.08) == [Offer(load, load) for load in (0.5, 1.0, 2.0, 4.0)]
    assert offers(auto, None) is None


def test_auto_rates_scale_with_the_machine() -> None:
    tenth = offers(replace(SETTINGS, rates=None), STUDY_CAPACITY / 10)
    assert tenth == [Offer(0.05, 0.5), Offer(0.1, 1.0), Offer(0.2, 2.0), Offer(0.4, 4.0)]
    assert offers(replace(SETTINGS, rates=None, loads=(1.0, 4.0)), 0.25) == [Offer(0.23, 1.0), Offer(0.93, 4.0)]


def test_given_rates_and_all_at_once_need_no_calibration() -> None:
    assert offers(SETTINGS, None) == offers(SETTINGS, 3.0) == [Offer(1.0, None), Offer(2.0, None), Offer(4.0, None)]
    assert offers(replace(SETTINGS, arrivals="at-once", rates=None), None) == [Offer(None, None)]


def test_the_shortest_cell_is_repeated_at_the_end() -> None:
    made = planned()
    pair = drift_cell(made, SETTINGS, 1.0)
    assert pair is not None
    first, again = pair
    assert first in made
    assert first.label == "continuous at 4/s"
    assert again == replace(first, name="c10-drift", label="continuous at 4/s (repeated)")


def test_nothing_is_repeated_in_a_quick_run_or_a_run_of_one_cell() -> None:
    assert drift_cell(planned(), replace(SETTINGS, drift_cell=False), 1.0) is None
    assert drift_cell(planned()[:1], SETTINGS, 1.0) is None


def test_the_schedule_is_the_clients() -> None:
    cell = Cell("", "", "one", requests=40, max_tokens=1, rate=4.0)
    assert schedule(cell) == [time / 1e9 for time in poisson(40, 4.0, 12)]
    assert schedule(replace(cell, rate=None, requests=3)) == [0, 0, 0]
    assert schedule(replace(cell, rate=2.0, arrivals="constant", requests=2)) == [0.5, 1.0]


@pytest.mark.parametrize(("policy", "gain"), [("one", 1.0), ("static:n=8,wait=0.5", 2.1), ("continuous:seats=8", 3.5)])
def test_a_backlog_takes_one_reply_after_another_over_the_gain(policy: str, gain: float) -> None:
    cell = Cell("", "", policy, requests=40, max_tokens=1)
    assert expected_s(cell, 2.0) == pytest.approx(START_UP_S + 40 * 2.0 / gain)


def test_a_calm_cell_takes_its_arrivals_and_a_last_reply() -> None:
    cell = Cell("", "", "one", requests=10, max_tokens=1, rate=0.5, arrivals="constant")
    assert expected_s(cell, 1.0) == pytest.approx(START_UP_S + 20 + 2)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.1, "1 s"), (59.0, "59 s"), (89.9, "90 s"), (90, "2 minutes"), (121, "3 minutes")]
)
def test_minutes(seconds: float, words: str) -> None:
    assert minutes(seconds) == words


def test_policies_with_seats_take_the_runs() -> None:
    assert named_policies("one, static,continuous", 16) == ("one", "static", "continuous:seats=16")
    assert named_policies("continuous", 64) == ("continuous",)
    assert named_policies("fair", 16) == ("fair:seats=16",)
    assert with_seats("shortest:predictor=noisy:0.5", 16) == "shortest:seats=16,predictor=noisy:0.5,patience=0.1"
    assert with_seats("continuous:seats=4", 16) == "continuous:seats=4"
