"""The tables after a rush: 80 columns are enough, nothing is cut off, and what was not measured says so."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from clients.arrivals import all_at_once, poisson
from experiments import reference
from experiments.analysis import CellSummary
from experiments.run_folder import Summary
from experiments.show import show
from experiments.statistics import Spread
from experiments.study_tables import SECONDS, Units, one_reply_s
from experiments.study_tables import load_table as study_loads
from experiments.study_tables import typical_table as study_table
from experiments.tables import (
    GREY,
    MISSING,
    highest,
    load_lines,
    load_table,
    remarks,
    seconds_text,
    server,
    typical_table,
    verdict_lines,
)
from tests.virtual import VirtualRush

WIDTH = 80
SAME = {"server": {"engine": "paced", "profile": "qwen3-4b-4bit-m4max"}}
NOTHING = Spread(0, None, None, None, None)


def measured(spec: str, rate: float | None) -> CellSummary:
    """A cell of 40 requests, in virtual time."""
    arrivals = all_at_once(40) if rate is None else poisson(40, rate, 12)
    load = None if rate is None else 4.0
    return replace(VirtualRush(spec, arrivals).run(), label=f"{spec} at {rate or 0}", rate=rate, load=load, seed=12)


def summary(*cells: CellSummary, **changes: Any) -> Summary:
    whole = Summary(1, "rush", True, None, list(cells), None, None, None)
    return replace(whole, **changes)


@pytest.fixture(scope="module")
def study() -> Summary:
    return summary(*[measured(spec, rate) for rate in (1.0, 4.0) for spec in ("continuous", "one", "static")])


def unmeasured(cell: CellSummary) -> CellSummary:
    spreads = dict.fromkeys(("ttft", "writing", "reply", "queue_wait", "tpot", "gap", "send_lag", "service"), NOTHING)
    return replace(cell, **spreads, done_s=None, tokens_per_s=None, completed=0, failed=40)


def slower(cell: CellSummary, factor: float) -> CellSummary:
    """Every latency so many times as long."""

    def stretch(spread: Spread) -> Spread:
        times = [
            None if value is None else value * factor for value in (spread.p50, spread.p95, spread.p99, spread.max)
        ]
        return Spread(spread.n, *times)

    return replace(
        cell,
        ttft=stretch(cell.ttft),
        writing=stretch(cell.writing),
        reply=stretch(cell.reply),
        tpot=stretch(cell.tpot),
        done_s=None if cell.done_s is None else cell.done_s * factor,
        tokens_per_s=None if cell.tokens_per_s is None else cell.tokens_per_s / factor,
    )


def printed(of: Summary, study: bool = True, same_profile: bool = True) -> str:
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=False)
    show(console, of, SAME if same_profile else {}, study)
    return console.export_text()


def shown(table: Any) -> str:
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=False)
    console.print(table)
    return console.export_text()


def assert_whole(text: str) -> None:
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert "…" not in text
    assert "None" not in text
    assert "nan" not in text


@pytest.mark.parametrize("same_profile", [True, False])
@pytest.mark.parametrize("factor", [0.001, 0.1, 1, 10, 100])
def test_eighty_columns_are_enough(study: Summary, factor: float, same_profile: bool) -> None:
    assert_whole(printed(replace(study, cells=[slower(cell, factor) for cell in study.cells]), True, same_profile))


@pytest.mark.parametrize("spec", ["static:n=16,wait=0.25", "continuous:seats=16", "static:wait=0.1234"])
def test_a_server_with_settings_is_not_cut_off(spec: str) -> None:
    assert_whole(printed(summary(measured("one", 4.0), measured(spec, 4.0))))


def test_all_at_once_has_no_rate() -> None:
    text = printed(summary(measured("one", None), measured("static", None)))
    assert_whole(text)
    assert "40 requests, at once" in text


def test_what_was_not_measured_says_so(study: Summary) -> None:
    text = printed(replace(study, cells=[unmeasured(cell) for cell in study.cells]), True, False)
    assert_whole(text)
    assert text.count(MISSING) >= 6 * 3 + 6 * 5 + 3 * 5
    assert "0.000" not in text


def test_a_run_without_a_cell() -> None:
    assert printed(summary(), study=False) == "No cell was measured.\n"


def rows(table: Any) -> list[list[str]]:
    return [list(map(str, cells)) for cells in zip(*(column.cells for column in table.columns), strict=True)]


def test_the_typical_request_at_the_highest_rate(study: Summary) -> None:
    """In the study's order of servers, whatever the order of the run."""
    assert rows(typical_table(study.cells)) == [
        ["one at a time", "14.0 s", "27.9 s", "0.80 s", "6.3 ms", "14.8 s", "37.4 s"],
        ["static", "4.81 s", "8.73 s", "2.52 s", "19.8 ms", "7.33 s", "18.6 s"],
        ["continuous", "0.47 s", "1.19 s", "6.53 s", "51.4 ms", "6.76 s", "12.8 s"],
    ]
    assert "40 requests, 4/s, load 4" in shown(typical_table(study.cells))
    assert [cell.rate for cell in highest(study.cells)] == [4.0] * 3


def test_the_loads(study: Summary) -> None:
    found = rows(load_table(study.cells))
    assert [row[:2] for row in found] == [
        ["1/s", "one at a time"],
        ["", "static"],
        ["", "continuous"],
        ["4/s", "one at a time"],
        ["", "static"],
        ["", "continuous"],
    ]
    assert found[3][2:] == ["14.0 s", "26.5 s", "14.8 s", "27.3 s", "138", "40/40"]


def test_a_percentile_of_too_few_requests_is_grey(study: Summary) -> None:
    """Forty requests are enough for a median and its interval, not for a p95; seventy-two are."""

    def styles(cell: CellSummary) -> list[str]:
        table = load_table([cell])
        return [str(next(iter(column.cells)).style) for column in table.columns[2:6]]

    cell = study.cells[0]
    assert styles(cell) == ["", GREY, "", GREY]
    assert "(grey: n too small for an interval, p95 needs 72)" in shown(load_table(study.cells))
    few, many = (replace(cell, ttft=replace(cell.ttft, n=n), reply=replace(cell.reply, n=n)) for n in (5, 72))
    assert styles(few) == [GREY] * 4
    assert "p50 needs 6, p95 needs 72" in shown(load_table([few]))
    assert styles(many) == [""] * 4
    assert "grey" not in shown(load_table([many]))
    assert "grey" not in shown(load_table([unmeasured(cell)])), "what is n/a has no n"


def test_beside_the_study_in_seconds(study: Summary) -> None:
    found = rows(study_table(highest(study.cells), SECONDS))
    assert found[0] == ["one at a time", "14.0 / 13.8", "27.9 / 27.6", "0.80 / 0.81", "14.8 / 14.6", "37.4 / 37.1"]
    assert [row[0] for row in found] == ["one at a time", "static", "continuous"]


def test_the_studys_tables_are_grey_where_ours_are(study: Summary) -> None:
    """Forty requests again: enough for a median, not for a p95; the study's own figure has no n to show."""
    offered = [(4.0, cell) for cell in study.cells if cell.rate == 4.0]
    by_load = study_loads(offered, SECONDS)
    assert [str(next(iter(column.cells)).style) for column in by_load.columns[2:6]] == ["", GREY, "", GREY]
    assert "p95 needs 72" in shown(by_load)
    few = [replace(cell, ttft=replace(cell.ttft, n=5)) for _, cell in offered]
    typical = study_table(few, SECONDS)
    assert str(next(iter(typical.columns[1].cells)).style) == GREY
    assert "grey" not in shown(study_table([cell for _, cell in offered], SECONDS))


def test_beside_the_study_in_replies_of_each_machine(study: Summary) -> None:
    """A machine ten times as slow, under ten times less load, looks the same: ours over one reply here, the study's
    over its 0.93 s."""
    one = next(cell for cell in study.cells if cell.policy == "one" and cell.rate == 4.0)
    alone = Spread(40, *[9.3] * 4)
    slow = [replace(slower(cell, 10), service=alone if cell.policy == "one" else NOTHING) for cell in study.cells]
    found = rows(study_table(highest(slow), Units(one_reply_s(replace(study, cells=slow)), 0.93)))
    assert one.ttft.p50 is not None
    assert found[0][1] == f"{one.ttft.p50 / 0.93:.1f} / {13.82 / 0.93:.1f}" == "15.1 / 14.9"
    assert one_reply_s(replace(study, cells=slow)) == 9.3


def test_one_reply_is_the_calibrations_where_nothing_ran_alone(study: Summary) -> None:
    batches = [cell for cell in study.cells if cell.policy != "one"]
    calibration = replace(study.cells[0], service=Spread(4, *[2.5] * 4))
    assert one_reply_s(replace(study, cells=batches, calibration=calibration)) == 2.5
    assert one_reply_s(replace(study, cells=batches)) is None
    text = printed(replace(study, cells=batches), True, False)
    assert f"One reply alone takes {MISSING} here" in text
    assert_whole(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0.0, "0.000 s"),
        (0.0994, "0.099 s"),
        (0.0996, "0.10 s"),
        (0.47, "0.47 s"),
        (1.234, "1.23 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (14.03, "14.0 s"),
        (99.96, "100 s"),
        (1137.2, "1137 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds_text(value) == text


def test_servers_in_the_studys_words(study: Summary) -> None:
    cell = study.cells[0]
    named = [("one", {}), ("static", {"n": 8, "wait": 0.5}), ("static", {"n": 4, "wait": 0.5}), ("later", {"x": 2})]
    words = [server(replace(cell, policy=policy, params=params)) for policy, params in named]
    assert words == ["one at a time", "static", "static n=4", "later x=2"]
    guessing = replace(cell, policy="shortest", params={"seats": 64, "predictor": "noisy:0.5", "patience": 0.1})
    assert server(guessing) == "shortest first predictor=noisy:0.5"


def test_remarks_say_what_figures_do_not(study: Summary) -> None:
    """When batches left, what was late or lost, how the machine drifted; nothing where there is nothing to say."""
    static = next(cell for cell in study.cells if cell.policy == "static" and cell.rate == 4.0)
    one = next(cell for cell in study.cells if cell.policy == "one")
    faulty = replace(one, late=2, failed=3)
    drift = {"label": one.label, "first_done_s": 10.0, "repeat_done_s": 11.0, "change": 0.1, "drifted": True}
    assert remarks(summary(one)) == []
    assert remarks(summary(static, faulty, drift=drift)) == [
        "static at 4.0: batches left with 2, 7, 8, 8, 8, 7.",
        "one at 1.0: of 40 requests, 2 sent over 1 ms late, 3 failed.",
        "The machine drifted: one at 1.0, repeated at the end, took 10.0% more time.",
    ]
    calm = drift | {"change": 0.001, "drifted": False}
    assert remarks(summary(one, drift=calm)) == ["No drift: one at 1.0, repeated at the end, took 0.1% more time."]


def test_the_studys_figures_are_typed_in_right() -> None:
    """Its prose and its tables agree: a whole reply is about the first word and the writing."""
    for figures in reference.TYPICAL.values():
        assert figures.ttft + figures.writing == pytest.approx(figures.reply, rel=0.03)
        assert figures.ttft < figures.longest < figures.done
    for (rate, policy), load in reference.LOADS.items():
        assert load.ttft_p50 < load.ttft_p95 < load.reply_p95
        assert load.ttft_p50 < load.reply_p50 < load.reply_p95
        assert load.tokens_per_s >= reference.LOADS[1, policy].tokens_per_s * min(rate, 1)


def test_a_verdict_that_all_share_takes_one_line(study: Summary) -> None:
    """Nothing is said of cells that nobody judged."""
    first, *others = [replace(cell, verdict="VALID") for cell in study.cells]
    assert verdict_lines(study.cells) == []
    assert verdict_lines([first, *others]) == ["All 6 cells VALID."]
    assert verdict_lines([first]) == ["The cell continuous at 1.0 is VALID."]
    battery = [replace(cell, verdict="SUSPECT", reasons=["it ran on battery"]) for cell in study.cells]
    assert verdict_lines(battery) == ["All 6 cells SUSPECT: it ran on battery."]


def test_a_cell_that_is_not_valid_says_why(study: Summary) -> None:
    first, second, third, *_ = [replace(cell, verdict="VALID") for cell in study.cells]
    bad = replace(first, verdict="INVALID", reasons=["1 request was lost on the way", "it ran on battery"])
    said = "continuous at 1.0: INVALID: 1 request was lost on the way; it ran on battery."
    assert verdict_lines([bad, second, third]) == [said]
    text = printed(replace(study, cells=[bad, second, third]), study=False)
    assert_whole(text)
    assert "1 request was lost on the way" in text


def test_the_load_at_the_highest_rate_is_said_in_words(study: Summary) -> None:
    states = {"one": "overloaded", "static": "not determined", "continuous": "stable"}
    cells = [replace(cell, load_state=states[cell.policy]) for cell in study.cells]
    assert load_lines(cells) == [
        "one at a time at 4/s is overloaded: its queue grew throughout, so its percentiles depend on how long the run "
        "lasted.",
        "static at 4/s may be stable or overloaded: the run was too short to tell.",
        "continuous at 4/s is stable: its queue did not grow.",
    ]
    assert_whole(printed(replace(study, cells=cells), study=False))
    assert load_lines([replace(cells[0], rate=None)]) == []
