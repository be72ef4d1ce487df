"""Two runs side by side: which cells are the same, what is noise, what gates say, and when nothing may be concluded."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from experiments.analysis import CellSummary
from experiments.compare_cli import compare_command
from experiments.compare_runs import BEYOND, FAILED, HELD, MISSING, NOT_KNOWN, WITHIN, Change, Compared, compare
from experiments.gates import Gate, check_gates, crossed, parse_gate, relative_change
from experiments.objectives import Goodput
from experiments.run_folder import MANIFEST, SUMMARY, Summary, write_json
from experiments.statistics import Spread
from tests.experiments.test_headline import cell
from tests.experiments.test_tables import unmeasured

AMOUNTS = st.floats(0.001, 1e6)


# --- gates ---


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("ttft.p95>+10%", Gate("ttft.p95>+10%", "ttft.p95", True, pytest.approx(0.1), True, True)),
        ("tokens_per_s<-5%", Gate("tokens_per_s<-5%", "tokens_per_s", False, pytest.approx(-0.05), True, True)),
        (" reply.p50 > 2 s ", Gate("reply.p50 > 2 s", "reply.p50", True, 2.0, False, False)),
        ("tpot.p99>+20ms", Gate("tpot.p99>+20ms", "tpot.p99", True, pytest.approx(0.02), True, False)),
        ("goodput<90%", Gate("goodput<90%", "goodput", False, pytest.approx(0.9), False, False)),
        ("goodput<-5%", Gate("goodput<-5%", "goodput", False, pytest.approx(-0.05), True, True)),
        ("tokens_per_s<100", Gate("tokens_per_s<100", "tokens_per_s", False, 100.0, False, False)),
    ],
)
def test_a_gate(text: str, gate: Gate) -> None:
    assert parse_gate(text) == gate


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "METRIC.PERCENTILE>+N% such as ttft.p95>+10%"),
        ("ttft.p95=+10%", "METRIC.PERCENTILE>+N%"),
        ("ttft.p95>+x%", "METRIC.PERCENTILE>+N%"),
        ("first.p95>+10%", "unknown metric 'first'; choose from ttft, reply,"),
        ("ttft>+10%", "name a percentile: ttft.p50, ttft.p95, ttft.p99"),
        ("ttft.p90>+10%", "name a percentile"),
        ("goodput.p50<90%", "write goodput"),
        ("ttft.p95>10%", "write a limit of ttft as 500ms or 2s, or as a change such as +10%"),
        ("ttft.p95>10", "as 500ms or 2s"),
        ("tokens_per_s<10s", "as 100"),
        ("goodput<1s", "as 90%"),
        ("ttft.p95>" + "9" * 400 + "s", "too large"),
    ],
)
def test_what_is_no_gate_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_gate(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "before", "after", "failed"),
    [
        ("ttft.p95>+10%", 2.0, 2.21, True),
        ("ttft.p95>+10%", 2.0, 2.19, False),
        ("ttft.p95>+10%", 2.0, 1.0, False),
        ("tokens_per_s<-5%", 100.0, 94.0, True),
        ("tokens_per_s<-5%", 100.0, 96.0, False),
        ("ttft.p95>+200ms", 1.0, 1.3, True),
        ("reply.p50>2s", None, 2.5, True),
        ("goodput<90%", 0.5, 0.95, False),
        ("goodput<-5%", 0.0, 0.0, False),
        ("ttft.p95>+10%", 0.0, 0.1, True),
        ("ttft.p95>+10%", None, 1.0, None),
        ("ttft.p95>+10%", 1.0, None, None),
    ],
)
def test_when_a_gate_fails(text: str, before: float | None, after: float | None, failed: bool | None) -> None:
    assert crossed(parse_gate(text), before, after) is failed


@given(AMOUNTS, AMOUNTS)
def test_a_run_is_never_worse_than_itself(before: float, after: float) -> None:
    better, worse = sorted((before, after))
    gate = parse_gate("ttft.p95>+0%")
    assert crossed(gate, before, before) is False
    assert crossed(gate, worse, better) is False
    assert crossed(gate, better, worse) is (better < worse and relative_change(better, worse) > 0)


# --- the same cells ---


def run(*cells: CellSummary, **changes: Any) -> Summary:
    return replace(Summary(1, "rush", True, None, list(cells), None, None, None), **changes)


def compared(before: Summary, after: Summary, *gates: str, manifests: Any = ({}, {})) -> Compared:
    return compare((before, manifests[0]), (after, manifests[1]), check_gates(gates))


def change(found: Compared, figure: str = "ttft.p50", at: int = 0) -> Change:
    return next(each for each in found.cells[at].changes if each.figure == figure)


ONE, CONTINUOUS = cell("one", 13.8, 14.6, verdict="VALID"), cell("continuous", 0.43, 6.4, verdict="VALID")


def test_a_run_beside_itself() -> None:
    found = compared(run(ONE, CONTINUOUS), run(ONE, CONTINUOUS), "ttft.p50>+0%", "tokens_per_s<-0%")
    assert found.passed
    assert [each.label for each in found.cells] == [ONE.label, CONTINUOUS.label]
    assert {each.difference for row in found.cells for each in row.changes} == {0.0}
    assert [each.state for each in found.gates] == [HELD] * 4
    assert (found.faults, found.only_before, found.only_after, found.depends) == ([], [], [], [])


def test_a_load_is_the_same_at_another_rate() -> None:
    ours = replace(ONE, load=4.0, rate=1.3, label="one at 1.3/s")
    theirs = replace(ONE, load=4.0, rate=1.5, label="one at 1.5/s")
    assert compared(run(ours), run(theirs)).cells[0].rates == (1.3, 1.5)
    without = compared(run(replace(ours, load=None)), run(replace(theirs, load=None)))
    assert (without.only_before, without.only_after) == (["one at 1.3/s"], ["one at 1.5/s"])


def test_settings_tell_cells_apart() -> None:
    loaded = [replace(CONTINUOUS, load=4.0, params={"seats": seats}) for seats in (4, 64)]
    assert len(compared(run(*loaded), run(*loaded)).cells) == 2


def test_a_cell_that_is_missing_fails_and_a_new_one_does_not() -> None:
    assert compared(run(ONE), run(ONE, CONTINUOUS)).passed
    found = compared(run(ONE, CONTINUOUS), run(ONE))
    assert found.only_before == [CONTINUOUS.label]
    assert found.faults == [f"the second run has no {CONTINUOUS.label}"]
    assert not compared(run(), run()).passed


# --- noise ---


def test_of_single_seeds_intervals_of_the_percentile_decide() -> None:
    """Forty requests with a p50 interval of a tenth to either side, and none for p95."""
    near, far = (run(replace(ONE, ttft=cell("one", ttft, 1).ttft)) for ttft in (15.0, 30.0))
    assert change(compared(run(ONE), near)).noise == WITHIN
    assert change(compared(run(ONE), far)).noise == BEYOND
    assert change(compared(run(ONE), far), "ttft.p95").noise == NOT_KNOWN
    assert change(compared(run(ONE), far), "tokens_per_s").noise == NOT_KNOWN


def seeded(figures: list[float]) -> Summary:
    made = [replace(cell("one", each, 9.0), seed=seed) for seed, each in enumerate(figures)]
    return run(*[replace(each, label=f"{each.label}, seed {each.seed}") for each in made])


NOISE = [1.0, 30.0, 4.0, 12.0, 60.0]


def test_over_seeds_pairs_decide() -> None:
    """Arrivals differ more than the runs; by pairs half a second is seen. Deviation 0.1, t of 4 degrees 2.776."""
    steady = [0.4, 0.5, 0.6, 0.5, 0.5]
    later = change(compared(seeded(NOISE), seeded([a + b for a, b in zip(NOISE, steady, strict=True)])))
    assert (later.noise, later.method, later.seeds) == (BEYOND, "paired Student t", [0, 1, 2, 3, 4])
    assert later.difference == pytest.approx(0.5)
    assert later.interval == pytest.approx((0.5 - 2.776 * 0.0707 / 5**0.5, 0.5 + 2.776 * 0.0707 / 5**0.5), abs=1e-3)
    assert (later.before, later.after) == (pytest.approx(21.4), pytest.approx(21.9))
    assert later.relative == pytest.approx(0.5 / 21.4)
    mixed = compared(seeded(NOISE), seeded([a + b for a, b in zip(NOISE, [1, -1, 2, -2, 0.5], strict=True)]))
    assert change(mixed).noise == WITHIN
    assert mixed.cells[0].label == "one at 4.0"


def test_few_seeds_leave_noise_unknown_and_a_single_one_is_a_single_run() -> None:
    assert change(compared(seeded(NOISE[:3]), seeded(NOISE[:3]))).noise == NOT_KNOWN
    alone = run(replace(ONE, seed=1))
    found = compared(seeded([13.0, 13.8, 14.0]), alone)
    assert (change(found).seeds, change(found).noise) == ([1], WITHIN)
    other = compared(seeded(NOISE), run(replace(ONE, seed=99)))
    assert other.only_before == ["one at 4.0 with a seed of the first"]
    assert not other.passed


# --- what nothing may be concluded from ---


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (run(ONE, complete=False, reason="interrupted"), "the second run is incomplete: interrupted"),
        (run(replace(ONE, verdict="INVALID")), "the second run: one at 4.0 is INVALID"),
        (run(unmeasured(ONE)), "one at 4.0: no request was completed in both"),
        (run(), "the second run has no cells"),
    ],
)
def test_a_fault_fails_with_or_without_a_gate(after: Summary, says: str) -> None:
    for gates in ((), ("tokens_per_s<-99%",)):
        found = compared(run(ONE), after, *gates)
        assert not found.passed
        assert says in found.faults
    assert not compared(after, run(ONE)).passed


def test_a_figure_that_a_gate_asks_for_and_nobody_has() -> None:
    found = compared(run(ONE), run(ONE), "goodput<90%")
    assert [each.state for each in found.gates] == [MISSING]
    assert not found.passed
    kept = replace(ONE, goodput=Goodput(36, 40, 0.9, None))
    assert compared(run(kept), run(kept), "goodput<90%").passed


def test_a_gate_fails_in_one_cell() -> None:
    slower = replace(CONTINUOUS, ttft=replace(CONTINUOUS.ttft, p95=1.0))
    found = compared(run(ONE, CONTINUOUS), run(ONE, slower), "ttft.p95>+10%")
    assert [(each.cell, each.state) for each in found.gates] == [(ONE.label, HELD), (CONTINUOUS.label, FAILED)]
    assert not found.passed


def test_what_a_measurement_depends_on_is_named() -> None:
    before, after = ({"versions": {"mlx": version}, "worker": {"device": "cpu"}} for version in ("0.1", "0.2"))
    assert compared(run(ONE), run(ONE), manifests=(before, after)).depends == ["versions mlx: '0.1' then, '0.2' now"]


# --- the command ---


def kept(folder: Path, made: Summary) -> str:
    folder.mkdir()
    write_json(folder / MANIFEST, {"experiment": "rush", "settings": {}})
    write_json(folder / SUMMARY, asdict(made))
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """A run, and one whose first words come later."""
    later = cell("continuous", 0.9, 6.5, verdict="VALID")
    return [kept(tmp_path / "a", run(ONE, CONTINUOUS)), kept(tmp_path / "b", run(ONE, later))]


def asked(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(compare_command, [*arguments], env={"COLUMNS": "80"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def test_the_command_says_what_it_found(runs: list[str]) -> None:
    status, text = asked(*runs, "--fail-if", "ttft.p50>+10%", "--fail-if", "reply.p50>+10%")
    assert status == 1
    assert "FAILED: ttft.p50>+10% in continuous at 4.0 (0.43 s to 0.90 s)." in text
    assert "Held: reply.p50>+10% in one at 4.0 (14.6 s to 14.6 s)." in text
    assert "Within noise: the 95 % interval" in text
    table = [line for line in text.splitlines() if line.startswith("  ") and "p5" in line]
    assert "  ttft.p50      0.43 s  0.90 s  +109.3%  beyond noise" in [line.rstrip() for line in table]
    assert max(map(len, table)) <= 80
    assert asked(*runs)[0] == 0, "without a gate a difference is no failure"


def test_the_command_for_scripts(runs: list[str]) -> None:
    status, text = asked(*runs, "--json", "--fail-if", "ttft.p50>+10%")
    found = orjson.loads(text)
    assert (status, found["passed"]) == (1, False)
    assert [each["state"] for each in found["gates"]] == ["held", "failed"]
    assert found["cells"][1]["changes"][0]["difference"] == pytest.approx(0.47)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--fail-if", "ttft>1"), "--fail-if ttft>1: name a percentile"), (("--fail-if", "x"), "--fail-if is METRIC")],
)
def test_a_bad_gate_is_said_before_anything(runs: list[str], arguments: tuple[str, ...], says: str) -> None:
    (Path(runs[0]) / SUMMARY).write_text("{")
    status, text = asked(*runs, *arguments)
    assert status == 2
    assert says in text


def test_a_folder_that_is_no_run(runs: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, text = asked(runs[0], str(tmp_path / "empty"))
    assert status == 2
    assert "no run folder" in text
    (Path(runs[1]) / SUMMARY).write_bytes(orjson.dumps({"schema": 1, "cells": [{"label": "old"}]}))
    status, text = asked(*runs)
    assert status == 2
    assert "of another version" in text


def test_seeds_in_the_table_have_an_interval(tmp_path: Path) -> None:
    made = [kept(tmp_path / "a", seeded(NOISE)), kept(tmp_path / "b", seeded([each + 0.5 for each in NOISE]))]
    status, text = asked(*made)
    assert status == 0
    assert "one at 4.0, means over 5 seeds" in text
    assert "beyond noise: 0.50 to 0.50 s" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("  ")) <= 80


def test_a_spread_without_values_has_no_difference() -> None:
    nothing = replace(ONE, tpot=Spread(0, None, None, None, None))
    found = change(compared(run(nothing), run(nothing), "tpot.p50>1s"), "tpot.p50")
    assert (found.difference, found.relative, found.noise) == (None, None, NOT_KNOWN)
