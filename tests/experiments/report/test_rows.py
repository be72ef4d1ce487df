"""What is drawn is what the records say: parts add up, levels integrate to the waits, thinning hides no peak."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.arrivals import poisson
from experiments.analysis import CellRecords, summarise
from experiments.report.rows import (
    CURVE,
    POINTS,
    STAMPS,
    Levels,
    bus_departures,
    cell_rows,
    choices,
    curve,
    drawn_customers,
    envelope,
    life_parts,
    queue_levels,
    seat_levels,
    share_of,
    thinned,
    worker_steps,
)
from experiments.statistics import nearest_rank, spread
from protocol.clock import SECOND, seconds
from protocol.records import QueueRecord, RequestRecord, StepRecord
from tests.virtual import VirtualRush

ALL = 10**9


@pytest.fixture(scope="module")
def static() -> VirtualRush:
    """The study's rush at 4 a second."""
    rush = VirtualRush("static", poisson(40, 4.0, 12))
    rush.run()
    return rush


def area(levels: Levels, name: str) -> float:
    """The integral over time, in seconds."""
    spans = zip(levels.n[name], pairwise(levels.t), strict=False)
    return sum(count * (after - before) for count, (before, after) in spans)


# --- thinning ---


@given(st.lists(st.integers(), max_size=300), st.integers(2, 50))
def test_thinned_items_are_spread_from_the_first_to_the_last(items: list[int], most: int) -> None:
    places = thinned(range(len(items)), most)
    assert len(places) == min(len(items), most)
    assert places == sorted(set(places))
    if items:
        assert (places[0], places[-1]) == (0, len(items) - 1)
        assert max((b - a for a, b in pairwise(places)), default=0) <= -(-len(items) // (most - 1)) + 1


@given(st.lists(st.integers(0, 1_000), max_size=300), st.integers(4, 50))
def test_an_envelope_keeps_the_highest_and_the_lowest(values: list[int], most: int) -> None:
    kept = envelope(values, most)
    assert kept == sorted(set(kept))
    assert len(kept) <= most
    if values:
        assert (kept[0], kept[-1]) == (0, len(values) - 1)
        assert max(values) == max(values[i] for i in kept)
        assert min(values) == min(values[i] for i in kept)


@given(st.integers(1, 10_000))
def test_all_cells_together_stay_below_the_page_s_limit(cells: int) -> None:
    each = share_of(POINTS, 18_000, cells)
    assert each * cells <= max(18_000, 10 * cells)


# --- customers ---


def test_the_parts_of_a_life_add_up() -> None:
    stamps = (0, 1, 2, 40, 50, 80, 200, 81, 201, 202)
    request = RequestRecord("c", 1, **dict(zip(STAMPS, stamps, strict=True)), end="completed")
    assert life_parts(request) == [(0, 50), (50, 80), (80, 200)]


def test_a_life_that_was_cut_short_ends_with_the_part_it_came_to() -> None:
    rejected = RequestRecord("c", 1, intended=5, sent=6, received=7, ended=9, end="rejected")
    assert life_parts(rejected) == [(5, 9), None, None]
    reading = RequestRecord("c", 1, intended=5, received=7, admitted=20, started=21, ended=90, end="failed")
    assert life_parts(reading) == [(5, 21), (21, 90), None]
    unsent = RequestRecord("c", 1, intended=5)
    assert life_parts(unsent) == [None, None, None]


def test_without_the_worker_s_word_the_others_stand_for_it() -> None:
    request = RequestRecord("c", 1, intended=0, admitted=40, first_received=81, last_received=201, end="completed")
    assert life_parts(request) == [(0, 40), (40, 81), (81, 201)]


@given(st.lists(st.one_of(st.none(), st.integers(0, 1_000)), min_size=10, max_size=10))
def test_parts_follow_each_other_whatever_was_stamped(stamps: list[int | None]) -> None:
    parts = life_parts(RequestRecord("c", 1, **dict(zip(STAMPS, stamps, strict=True))))
    known = [part for part in parts if part is not None]
    assert all(begin <= end for begin, end in known)
    assert all(before[1] == after[0] for before, after in pairwise(known))


def test_who_was_ahead_and_how_full_it_was(static: VirtualRush) -> None:
    """The first bus has 2 aboard when the second batch, of 7, gathers: its first finds nobody waiting."""
    cell = static.cell
    requests = [replace(request, started=request.admitted) for request in cell.requests]
    found = drawn_customers(requests, worker_steps(cell.steps, 0), 0, 100)
    assert [each.ahead for each in found[:9]] == [0, 1, 0, 1, 2, 3, 4, 5, 6]
    assert [each.seats for each in found[2:9]] == [(7, 7)] * 7


# --- levels ---


def test_the_queue_s_levels_integrate_to_all_waits(static: VirtualRush) -> None:
    """Little's law, against the router's own account."""
    (told,) = (record for record in static.records if isinstance(record, QueueRecord))
    levels = queue_levels(static.cell.requests, 0, ALL)
    assert area(levels, "waiting") == pytest.approx(told.area_ns / SECOND, rel=1e-3)
    assert max(levels.n["waiting"]) == told.longest
    assert levels.n["waiting"][-1] == 0


def test_seats_integrate_to_the_steps(static: VirtualRush) -> None:
    steps = static.cell.steps
    levels = seat_levels(worker_steps(steps, 0), 0, ALL)
    for name in ("decoding", "reading"):
        busy = sum(getattr(step, name) * seconds(step.end - step.begin) for step in steps)
        assert area(levels, name) == pytest.approx(busy, rel=1e-3)


def test_nobody_sits_in_a_pause() -> None:
    second = round(SECOND)
    steps = [
        StepRecord("c", 0, second, 2, 0, 0, 2, 2, 0, 0),
        StepRecord("c", 3 * second, 4 * second, 1, 1, 9, 1, 2, 0, 9),
    ]
    levels = seat_levels(worker_steps(steps, 0), 0, ALL)
    assert levels.t == [0, 1, 3, 4]
    assert levels.n == {"decoding": [2, 0, 1, 0], "reading": [0, 0, 1, 0]}


def test_the_study_s_buses(static: VirtualRush) -> None:
    buses = bus_departures(static.cell.requests, 0)
    assert [aboard for _, aboard in buses] == [2, 7, 8, 8, 8, 7]
    assert [at for at, _ in buses] == sorted(at for at, _ in buses)


def test_nothing_recorded_is_nothing_drawn() -> None:
    assert queue_levels([], 0, ALL).t == []
    assert seat_levels(worker_steps([], 0), 0, ALL).t == []
    assert drawn_customers([], worker_steps([], 0), 0, 10) == []


# --- distributions and choices ---


def test_a_curve_of_many_is_thinned_and_its_figures_are_of_all() -> None:
    requests = [
        RequestRecord("c", i, intended=0, first_received=(i + 1) * SECOND, end="completed") for i in range(1_000)
    ]
    values = [float(i + 1) for i in range(1_000)]
    found = curve(requests, "ttft", spread(values))
    assert len(found.s) == CURVE
    assert (found.s[0], found.s[-1], found.share[-1]) == (1, 1_000, 1)
    for s, share in zip(found.s, found.share, strict=True):
        assert nearest_rank(values, share) == pytest.approx(s)
    assert found.spread.p95 == 950


def test_cells_are_found_by_rate_and_server_and_else_by_label(static: VirtualRush) -> None:
    figures = summarise("virtual", static.cell)
    assert choices("rush", [figures]) == [{"rate": "at once", "server": "static"}]
    assert choices("sweep", [figures]) == [{"cell": "static"}]
    assert choices("rush", [figures, figures]) == [{"cell": "static"}] * 2


def test_an_empty_cell_has_rows_too() -> None:
    rows = cell_rows("c", CellRecords(), summarise("c", CellRecords()), {}, 1)
    assert (rows.customers, rows.until, rows.departures) == ([], 0.0, [])
