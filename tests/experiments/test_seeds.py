"""Several arrival patterns in one run: its cells, its rows, and policies compared pair by pair on the same arrivals."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from clients.arrivals import poisson
from experiments.analyse_cli import analyse_command
from experiments.analysis import CellSummary, by_cell, summarise
from experiments.comparison import Comparison, comparisons
from experiments.objectives import Goodput, parse_objective
from experiments.plan import Offer, cells, drift_cell
from experiments.prefix_cli import prefix
from experiments.run_folder import MANIFEST, SUMMARY, RunFolderError, analyse, objectives_of, write_json
from experiments.rush import plan_lines
from experiments.rush_cli import check, parse_seeds, rush
from experiments.seeds import over_seeds, pooled, seeds_of
from experiments.sentences import comparison_lines, objective_lines
from experiments.show import show
from experiments.statistics import Spread
from experiments.sweep_cli import sweep
from experiments.tables import LOADS, load_lines
from protocol.records import RecordWriter, RouterRecord
from tests.experiments.commands import headway, run_folder, summary
from tests.experiments.test_plan import SETTINGS
from tests.virtual import STUDY_PROFILE, VirtualRush

FIVE = (12, 13, 14, 15, 16)
TWO_POLICIES = ("static", "continuous")


TEMPLATE = replace(VirtualRush("continuous", poisson(20, 4.0, 12), max_tokens=8).run(), rate=4.0)


def measured(spec: str, seed: int, ttft: float, **changes: Any) -> CellSummary:
    """A served cell whose typical first word came after `ttft` seconds."""
    first_words = Spread(20, ttft, 2 * ttft, 2 * ttft, 2 * ttft)
    named = replace(TEMPLATE, policy=spec, params={}, seed=seed, label=f"{spec} at 4/s, seed {seed}")
    return replace(named, ttft=first_words, **changes)


# --- the plan ---


def test_every_cell_is_measured_once_for_each_seed() -> None:
    """Policies take turns through the seeds too: with one rate, one would else always come first."""
    settings = replace(SETTINGS, policies=TWO_POLICIES, rates=(4.0,), seeds=(12, 13, 14))
    made = cells(settings, [Offer(4.0, None)])
    assert [(cell.name, cell.seed) for cell in made] == [
        ("c01-static-4-per-s-seed12", 12),
        ("c02-continuous-4-per-s-seed12", 12),
        ("c03-continuous-4-per-s-seed13", 13),
        ("c04-static-4-per-s-seed13", 13),
        ("c05-static-4-per-s-seed14", 14),
        ("c06-continuous-4-per-s-seed14", 14),
    ]
    assert made[0].label == "static at 4/s, seed 12"


def test_one_cell_is_repeated_for_drift_whatever_the_seeds() -> None:
    settings = replace(SETTINGS, seeds=FIVE)
    made = cells(settings, [Offer(4.0, None)])
    pair = drift_cell(made, settings, 1.0)
    assert pair is not None
    assert pair[1].name == "c16-drift"
    assert pair[1].seed == pair[0].seed
    assert len(made) == 15


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40, unique=True))
def test_names_are_in_the_order_of_the_run_however_many(seeds: list[int]) -> None:
    settings = replace(SETTINGS, seeds=tuple(seeds), requests=1)
    made = cells(settings, [Offer(rate, None) for rate in (1.0, 2.0, 4.0)])
    again = drift_cell(made[:1] + made, settings, 1.0)
    assert again is not None
    names = [cell.name for cell in made]
    assert names == sorted(names)
    assert len({*names}) == len({cell.label for cell in made}) == 9 * len(seeds)
    assert all("/" not in name and " " not in name for name in names)


def test_the_plan_names_each_cell_and_the_seeds_once() -> None:
    lines = plan_lines(replace(SETTINGS, policies=TWO_POLICIES, rates=(4.0,), seeds=FIVE), 0.01)
    assert "11 cells of 40 requests (440 in all)" in lines[0]
    assert len([line for line in lines if "4/s" in line]) == 3
    assert "  All but the repeated one once for each of 5 seeds: 12, 13, 14, 15, 16." in lines


# --- the command line ---


def test_seeds() -> None:
    assert parse_seeds("12,13, -4") == (12, 13, -4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--seeds", "12,12"), "names a seed twice"),
        (("--seeds", "12,x"), "whole numbers"),
        (("--seeds", ""), "whole numbers"),
        (("--seeds", "1.5"), "whole numbers"),
        (("--seeds", str(2**63)), "whole numbers"),
        (("--seed", "12", "--seeds", "12,13"), "leave out --seed"),
        (("--objective", "first.p95<1s"), "unknown metric 'first'; choose from ttft,"),
        (("--objective", "ttft.p95<1s", "--objective", "ttft.p95<2s"), "twice"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    asked = ["--engine", "paced", "--rates", "4", "--out", str(tmp_path / "runs"), *arguments]
    done = CliRunner().invoke(rush, asked)
    assert done.exit_code == 2
    assert says in done.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("experiment", [prefix, sweep])
def test_other_loads_take_objectives_too(tmp_path: Path, experiment: click.Command) -> None:
    done = CliRunner().invoke(experiment, ["--objective", "ttft.p96<1s", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "unknown percentile 'p96'" in done.output


def test_every_seed_is_checked() -> None:
    settings = replace(SETTINGS, workload="emails", seeds=FIVE)
    check(replace(settings, objectives=("ttft.p95<1s", "ttft.p50<1s")))
    with pytest.raises(ValueError, match="unknown percentile"):
        check(replace(settings, objectives=("ttft.p96<1s",)))


# --- one row for several seeds ---


def test_a_row_is_the_median_over_the_seeds() -> None:
    found = over_seeds([measured("one", seed, float(seed)) for seed in (3, 1, 2)])
    assert len(found) == 1
    assert (found[0].ttft.p50, found[0].ttft.p95, found[0].ttft.n) == (2.0, 4.0, 20)
    assert (found[0].label, found[0].seed, found[0].departures) == ("one at 4/s", None, None)
    assert (found[0].completed, found[0].requests) == (60, 60), "counts are added up"
    assert found[0].done_s == TEMPLATE.done_s


def test_a_figure_that_some_seeds_lack_is_the_median_of_the_others() -> None:
    nothing = Spread(0, None, None, None, None)
    few = [
        measured("one", 1, 1.0),
        measured("one", 2, 5.0),
        replace(measured("one", 3, 1.0), ttft=nothing, completed=0),
    ]
    (row,) = over_seeds(few)
    assert (row.ttft.p50, row.ttft.n, row.completed) == (3.0, 0, 40)


def test_cells_of_one_seed_stay_as_they_are() -> None:
    alone = [measured("one", 12, 1.0), measured("static", 12, 2.0), replace(measured("one", 12, 3.0), rate=8.0)]
    assert over_seeds(alone) == alone
    assert seeds_of(alone) == 1
    assert (seeds_of([]), over_seeds([])) == (0, [])
    assert seeds_of([*alone, measured("one", 13, 1.0)]) == 2


def test_objectives_of_a_row_count_every_request() -> None:
    """Forty-five requests cannot show a p95; twice as many can."""
    rows = [VirtualRush("continuous", poisson(45, 1.0, seed), max_tokens=4) for seed in (1, 2)]
    for row in rows:
        row.run()
    made = [judged(row, "ttft.p95<30s", seed) for seed, row in enumerate(rows)]
    assert [each.objectives[0].state for each in made] == ["not determined"] * 2
    (whole,) = over_seeds(made)
    assert (whole.objectives[0].state, whole.objectives[0].n) == ("met", 90)
    assert whole.goodput is not None
    assert (whole.goodput.requests, whole.goodput.offered, whole.goodput.share) == (90, 90, 1.0)
    assert objective_lines([whole])[0].endswith("ttft.p95<30s met (0 of 90 missed it).")


def test_seeds_that_differ_are_counted_in_words() -> None:
    """Three seeds: the servers kept up at two of them."""
    states = ("stable", "overloaded", "stable")
    made = [measured("one", seed, 1.0, load_state=state) for seed, state in enumerate(states)]
    made += [measured("static", seed, 1.0, load_state="stable") for seed in range(3)]
    assert load_lines(made) == [
        "one at a time at 4/s depends on the arrivals: of 3 seeds, stable at 2, overloaded at 1.",
        "static at 4/s is stable: its queue did not grow.",
    ]
    assert [row.load_state for row in over_seeds(made)] == [None, "stable"]
    assert load_lines([made[0], replace(made[1], seed=0)]) == [
        "one at a time at 4/s is stable: its queue did not grow.",
        f"one at a time at 4/s {LOADS['overloaded']}",
    ], "twice the same seed are two cells"


def test_what_all_seeds_say_together_is_kept() -> None:
    rows = [VirtualRush("continuous", poisson(45, 1.0, seed), max_tokens=4) for seed in (1, 2)]
    for row in rows:
        row.run()
    made = [replace(judged(row, "ttft.p95<30s", seed), load_state="stable") for seed, row in enumerate(rows)]
    (found,) = pooled(made)
    assert (found.seeds, found.load_states, found.label) == ([0, 1], {"stable": 2}, made[0].label)
    assert [(each.state, each.n) for each in found.objectives] == [("met", 90)]
    assert found.goodput is not None
    assert found.goodput.offered == 90
    assert pooled(made[:1]) == []


def judged(served: VirtualRush, objective: str, seed: int) -> CellSummary:
    return replace(summarise("virtual", by_cell(served.records)["virtual"], [parse_objective(objective)]), seed=seed)


# --- comparisons ---


def compared(differences: list[float], **changes: Any) -> Comparison:
    """Continuous against static, whose first words come after 10 s."""
    made = [measured("static", seed, 10.0) for seed in range(len(differences))]
    made += [measured("continuous", seed, 10.0 + each, **changes) for seed, each in enumerate(differences)]
    return next(each for each in comparisons(made) if each.metric == "ttft.p50")


NINE = [-8.1, -10.0, -9.3, -8.4, -9.9, -7.9, -10.4, -9.1, -8.8, -9.5]


def test_differences_are_pair_by_pair() -> None:
    found = compared(NINE)
    assert (found.policy, found.than, found.rate) == ("continuous", "static", 4.0)
    assert found.seeds == [*range(10)]
    assert found.differences == pytest.approx(NINE)
    assert found.mean == pytest.approx(sum(NINE) / 10)
    # Deviation 0.8396, error 0.2655, t of 9 degrees 2.2622.
    assert found.interval == pytest.approx((-9.7406, -8.5394), abs=0.0001)
    assert (found.method, found.shown) == ("paired Student t", True)


def test_a_difference_that_all_seeds_share_is_seen_through_their_noise() -> None:
    """Arrivals differ more than policies: by pairs alone the second is seen."""
    noise = [1.0, 30.0, 4.0, 12.0, 60.0]
    made = [measured("static", seed, each) for seed, each in enumerate(noise)]
    made += [measured("continuous", seed, each - 0.5) for seed, each in enumerate(noise)]
    found = comparisons(made)[0]
    assert (found.mean, found.shown) == (pytest.approx(-0.5), True)


def test_every_pair_every_rate_every_metric() -> None:
    made = [
        replace(measured(policy, seed, 1.0), rate=rate)
        for rate in (1.0, 4.0)
        for seed in (1, 2)
        for policy in ("continuous", "one", "static")
    ]
    found = comparisons(made)
    assert len(found) == 2 * 3 * 6
    assert [(each.policy, each.than) for each in found[::6]][:3] == [
        ("static", "one"),
        ("continuous", "one"),
        ("continuous", "static"),
    ]
    assert [each.metric for each in found[:4]] == ["ttft.p50", "ttft.p95", "reply.p50", "reply.p95"]


def test_only_seeds_that_both_served_count() -> None:
    made = [measured("static", seed, 3.0) for seed in (1, 2, 3)] + [
        measured("continuous", seed, 1.0) for seed in (2, 3)
    ]
    found = comparisons([*made, replace(measured("continuous", 1, 1.0), ttft=Spread(0, None, None, None, None))])[0]
    assert (found.seeds, found.differences) == ([2, 3], [-2.0, -2.0])
    assert comparisons(made[:3]) == []


SOONER = "At 4/s: continuous first words (p50) are "


@pytest.mark.parametrize(
    ("differences", "sentence"),
    [
        (NINE, SOONER + "9.14 s sooner than static's (95 % interval 8.54 to 9.74, 10 seeds)."),
        ([-each for each in NINE], SOONER + "9.14 s later than static's (95 % interval 8.54 to 9.74, 10 seeds)."),
        (
            [-9.0, -9.2, -8.8],
            SOONER + "9.00, 9.20, 8.80 s sooner than static's (below five seeds the differences alone).",
        ),
        ([0.002, 0.001], SOONER + "2.00, 1.00 ms later than static's (below five seeds the differences alone)."),
        (
            [0.002, -0.001],
            SOONER + "sooner than static's at some seeds and later at others: 2.00, -1.00 ms "
            "(below five seeds the differences alone).",
        ),
        (
            [1.0, -1.0, 2.0, -2.0, 0.5],
            "At 4/s: continuous first words (p50): no difference from static's could be shown (mean 0.10 s later, "
            "95 % interval -1.88 to 2.08, 5 seeds).",
        ),
    ],
)
def test_a_comparison_in_a_sentence(differences: list[float], sentence: str) -> None:
    assert comparison_lines([compared(differences)]) == [sentence]


def test_a_sentence_keeps_nothing_quiet() -> None:
    (line,) = comparison_lines([compared([-1.0, -1.0], completed=15, verdict="INVALID")])
    assert line.endswith("alone; 10 requests without a reply left out; INVALID measurements among them, at seed 0, 1).")
    nothing = replace(compared([-1.0]), seeds=[], differences=[], mean=None)
    assert "cannot be compared with static's: no seed has both" in comparison_lines([nothing])[0]
    words = replace(compared([-1.0]), than="one", policy="static:n=4,wait=1")
    assert "static n=4 wait=1 first words (p50) are 1.00 s sooner than one at a time's" in comparison_lines([words])[0]


def test_the_terminal_shows_the_typical_figure() -> None:
    made = [measured(policy, seed, 1.0) for seed in (1, 2) for policy in TWO_POLICIES]
    assert [line.split(" are ")[0] for line in comparison_lines(comparisons(made))] == [
        "At 4/s: continuous first words (p50)",
        "At 4/s: continuous whole replies (p50)",
    ]


# --- objectives in sentences ---


def test_objectives_in_sentences() -> None:
    rush_of = VirtualRush("one", poisson(20, 4.0, 12), max_tokens=1)
    rush_of.run()
    assert objective_lines([judged(rush_of, "tpot.p95<1s", 12)]) == ["one: tpot.p95<1s not determined (no data)."]
    few = judged(rush_of, "ttft.p95<60s", 12)
    assert few.goodput == Goodput(20, 20, 1.0, pytest.approx(20 / (poisson(20, 4.0, 12)[-1] / 1e9)))
    assert objective_lines([few])[0] == (
        "one: ttft.p95<60s not determined (0 of 20 missed it; with that many misses it takes 90 requests to call it "
        "met)."
    )
    assert objective_lines([TEMPLATE]) == []


# --- a whole run ---


def served_run(folder: Path, objectives: list[str]) -> None:
    """The folder of a rush of two policies and five seeds, in virtual time."""
    for number, (seed, spec) in enumerate([(seed, spec) for seed in FIVE for spec in TWO_POLICIES], start=1):
        made = VirtualRush(spec, poisson(20, 4.0, seed), max_tokens=32)
        made.run()
        name = f"c{number:02d}-{spec}-seed{seed}"
        writer = RecordWriter(folder / f"{name}.msgpack")
        for record in made.records:
            labels = {"label": f"{spec} at 4/s, seed {seed}", "rate": 4.0, "seed": seed, "requests": 20}
            more = {"labels": labels} if isinstance(record, RouterRecord) else {}
            writer.write(replace(record, cell=name, **more))
        writer.close()
    settings = {"seeds": [*FIVE], "objectives": objectives}
    write_json(folder / MANIFEST, {"experiment": "rush", "complete": True, "reason": None, "settings": settings})


def test_a_run_of_several_seeds_is_analysed_to_the_same_bytes(tmp_path: Path) -> None:
    served_run(tmp_path, ["ttft.p95<1s", "tpot.p50<40ms"])
    analyse(tmp_path)
    data = (tmp_path / SUMMARY).read_bytes()
    (tmp_path / SUMMARY).unlink()
    analyse(tmp_path)
    assert (tmp_path / SUMMARY).read_bytes() == data
    found = orjson.loads(data)
    assert [len(cell["objectives"]) for cell in found["cells"]] == [2] * 10
    assert {*found["cells"][0]["objectives"][0]} == {"objective", "state", "misses", "n", "needed"}
    assert {*found["cells"][0]["goodput"]} == {"requests", "offered", "share", "per_s"}
    assert len(found["comparisons"]) == 6
    assert [(each["label"], each["seeds"]) for each in found["pooled"]] == [
        ("static at 4/s", [*FIVE]),
        ("continuous at 4/s", [*FIVE]),
    ]
    assert [each["objectives"][0]["n"] for each in found["pooled"]] == [100, 100]
    first = found["comparisons"][0]
    assert (first["metric"], first["seeds"], first["method"]) == ("ttft.p50", [*FIVE], "paired Student t")
    assert first["interval"][0] < first["mean"] < first["interval"][1] < 0


def test_the_tables_of_several_seeds_have_one_row_a_policy_and_rate(tmp_path: Path) -> None:
    served_run(tmp_path, ["ttft.p95<1s"])
    made = analyse(tmp_path)
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=False)
    show(console, made, {"server": {"engine": "paced", "profile": STUDY_PROFILE}}, study=True)
    text = console.export_text()
    assert "100 requests, 4/s: the typical request (median, over 5 seeds)" in text
    assert "By offered rate: p50 and p95, each the median over 5 seeds" in text
    assert "(grey: n too small for an interval, p95 needs 72)" in text
    assert "batches left with" not in text
    assert text.count("100/100") == 2
    assert "sooner than static's (95 % interval" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("goodput") == 2
    beside = text[text.index("Beside the study's figures") :]
    assert (beside.count("static"), beside.count("continuous")) == (2, 2), "one row in each of its tables"


def test_a_run_can_be_asked_what_it_was_not_promised(tmp_path: Path) -> None:
    """Also one that was made by hand, and has no manifest to promise anything."""
    served_run(tmp_path, ["ttft.p95<1s"])
    for manifest in ("with", "without"):
        asked = CliRunner().invoke(analyse_command, [str(tmp_path), "--objective", "reply.p50<9s"])
        assert asked.exit_code == 0, asked.output
        assert "reply.p50<9s" in asked.output
        (kept,) = {each["objective"] for cell in summary(tmp_path)["cells"] for each in cell["objectives"]}
        assert kept == "reply.p50<9s", manifest
        (tmp_path / MANIFEST).unlink(missing_ok=True)
    wrong = CliRunner().invoke(analyse_command, [str(tmp_path), "--objective", "reply<9s"])
    assert wrong.exit_code == 2
    assert "METRIC.PERCENTILE<LIMIT" in wrong.output


def test_objectives_that_a_manifest_cannot_mean_are_said_in_one_line() -> None:
    for wrong in (["ttft"], [3], 3):
        with pytest.raises(RunFolderError, match=r"manifest\.json") as error:
            objectives_of({"settings": {"objectives": wrong}})
        assert "\n" not in str(error.value)
    assert objectives_of({}) == objectives_of({"settings": {"objectives": None}}) == []


@pytest.mark.alone
def test_several_seeds_live(tmp_path: Path) -> None:
    done = headway(
        *("rush", "--engine", "paced", "--profile", "instant", "--policies", "static,continuous", "--rates", "20"),
        *("--requests", "6", "--max-tokens", "4", "--seeds", "12,13", "--objective", "ttft.p50<10s"),
        *("--out", str(tmp_path / "runs")),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_folder(tmp_path / "runs")
    found = summary(folder)
    assert [cell["seed"] for cell in found["cells"]] == [12, 12, 13, 13]
    assert found["cells"][0]["label"] == "static at 20/s, seed 12"
    assert [len(each["differences"]) for each in found["comparisons"]] == [2] * 6
    assert "below five seeds the differences alone" in " ".join(done.stdout.split())
    before = (folder / "summary.json").read_bytes()
    assert headway("analyse", str(folder), cwd=tmp_path).returncode == 0
    assert (folder / "summary.json").read_bytes() == before
    again = headway("rush", "--like", str(folder), "--dry-run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "seeds: 12, 13." in again.stdout
