"""What it gains to know how long replies will be: how wrong a predictor is, its gain under load, none with seats to
spare."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.guesses import Guessed, wrong_order
from experiments.kept_summary import read_summary
from experiments.predictor_gains import METRICS, gains_tables, predictor_gains, untold
from experiments.run_folder import Summary
from router.policies import Continuous, Shortest
from tests.experiments.commands import headway, run_folder

pytestmark = pytest.mark.alone

PREDICTORS = ("oracle", "noisy:0.5", "noisy:1", "prompt")
SEATS = 8


def replies(lengths: Sequence[int], prompts: Sequence[int]) -> list[Guessed]:
    """Replies of these lengths, to prompts of those; nobody announces a length."""
    pairs = zip(lengths, prompts, strict=True)
    return [Guessed(id, prompt, length, None, length) for id, (length, prompt) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("prompts", "share"), [((1, 2, 3), 0.0), ((3, 2, 1), 1.0), ((2, 1, 3), 1 / 3), ((5, 5, 5), 0.5), ((1, 1, 2), 1 / 6)]
)
def test_pairs_in_the_wrong_order_are_counted(prompts: tuple[int, ...], share: float) -> None:
    """Three replies make three pairs; of a guess that two are alike half counts."""
    assert wrong_order(Shortest(predictor="prompt"), replies((10, 20, 30), prompts)) == pytest.approx(share)


def test_where_there_is_nothing_to_guess_there_is_no_error() -> None:
    assert wrong_order(Continuous(), replies((1, 2), (1, 2))) is None
    assert wrong_order(Shortest(), replies((7, 7, 7), (1, 2, 3))) is None
    assert wrong_order(Shortest(), []) is None


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=40))
def test_it_is_what_a_count_of_all_pairs_says(pairs: list[tuple[int, int]]) -> None:
    asked = replies(*zip(*pairs, strict=True))
    counted = [
        1.0 if b.prompt_tokens < a.prompt_tokens else 0.5 if b.prompt_tokens == a.prompt_tokens else 0.0
        for a in asked
        for b in asked
        if a.length < b.length
    ]
    expected = pytest.approx(sum(counted) / len(counted)) if counted else None
    assert wrong_order(Shortest(predictor="prompt"), asked) == expected
    assert wrong_order(Shortest(), asked) == (0.0 if counted else None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's machine, unlike replies: far more than eight seats can serve, and hardly anything."""
    out = tmp_path_factory.mktemp("predictors")
    guessing = [("--policy", f"shortest:seats={SEATS},predictor={each}") for each in PREDICTORS]
    policies = [word for option in [("--policy", f"continuous:seats={SEATS}"), *guessing] for word in option]
    crowd = ("--rates", "0.2,6", "--requests", "60", "--workload", "mixed", "--seeds", "12,13,14,15,16,17")
    done = headway("simulate", *policies, *crowd, "--out", str(out), cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (out / "printed").write_text(done.stdout)
    return next(path for path in out.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def found(folder: Path) -> Summary:
    return read_summary(folder)


def test_under_load_a_better_guess_gains_more(found: Summary) -> None:
    _, loaded = predictor_gains(found)
    assert [each.name for each in loaded.predictors] == [*PREDICTORS]
    wrong = [math.nan if each.wrong_order is None else each.wrong_order for each in loaded.predictors]
    assert wrong[0] == 0
    assert 0.05 < wrong[1] < wrong[2] < 0.35 < wrong[3] < 0.65
    for metric in METRICS:
        oracle, *_, prompt = [each.gains[f"{metric}.mean"] for each in loaded.predictors]
        assert oracle.shown
        assert oracle.interval is not None
        assert oracle.sooner is not None
        assert prompt.sooner is not None
        assert oracle.interval[0] > max(0, prompt.sooner)


def test_the_gain_is_the_mean_difference_over_the_seeds(found: Summary) -> None:
    """From the cells themselves."""
    cells = {(cell.policy, cell.params.get("predictor"), cell.rate, cell.seed): cell for cell in found.cells}
    differences = []
    for seed in range(12, 18):
        ours, theirs = (
            cells["shortest", "oracle", 6.0, seed].reply.mean,
            cells["continuous", None, 6.0, seed].reply.mean,
        )
        assert ours is not None
        assert theirs is not None
        differences.append(theirs - ours)
    (oracle, *_) = predictor_gains(found)[1].predictors
    assert oracle.gains["reply.mean"].sooner == pytest.approx(sum(differences) / 6)


def test_with_seats_to_spare_it_says_that_no_difference_could_be_shown(folder: Path, found: Summary) -> None:
    spare, loaded = predictor_gains(found)
    assert all(gain.shown is False for each in spare.predictors for gain in each.gains.values())
    assert len(gains_tables([spare])) == 0
    assert len(gains_tables([loaded])) == 2
    printed = (folder.parent / "printed").read_text()
    said = " ".join(printed.split())
    assert "at 0.2/s, 8 seats, 6 seeds: no difference from continuous could be shown, whatever the predictor" in said
    assert "at 6/s, 8 seats, 6 seeds: no difference" not in said
    tables = printed[printed.index("First word, by predictor") : printed.index("Shortest first at 0.2/s")]
    assert max(map(len, tables.splitlines())) <= 80
    assert "…" not in tables
    assert untold(found.comparisons, [spare, loaded]) == []


def test_the_page_shows_gain_against_error(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    data = page.partition('id="data">')[2].partition("</script>")[0]
    specs = orjson.loads(data)["specs"]
    assert {"ttft-gains", "reply-gains"} <= specs.keys()
    (rows,) = [rows for rows in specs["reply-gains"]["datasets"].values() if "wrong" in rows[0]]
    assert {row["name"] for row in rows} == {*PREDICTORS}


def test_the_summary_is_computed_again_to_the_same_bytes(folder: Path) -> None:
    before = (folder / "summary.json").read_bytes()
    assert headway("analyse", str(folder), cwd=folder).returncode == 0
    assert (folder / "summary.json").read_bytes() == before


def test_one_predictor_or_one_seed_makes_no_table(found: Summary) -> None:
    few = [cell for cell in found.cells if cell.params.get("predictor") in (None, "oracle")]
    assert predictor_gains(replace(found, cells=few)) == []
    assert predictor_gains(replace(found, comparisons=[])) == []
    assert predictor_gains(replace(found, cells=[c for c in found.cells if c.policy == "shortest"])) == []


def test_a_real_run_says_how_wrong_its_predictors_were(tmp_path: Path) -> None:
    done = headway(
        *("rush", "--engine", "paced", "--profile", "instant", "--rates", "40", "--requests", "12", "--quick"),
        *("--workload", "mixed", "--max-tokens", "32", "--policy", "shortest:predictor=prompt", "--policy", "shortest"),
        *("--policy", "continuous", "--out", "runs"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = {
        cell.params.get("predictor"): cell.wrong_order for cell in read_summary(run_folder(tmp_path / "runs")).cells
    }
    assert kept["oracle"] == 0
    assert kept["prompt"] is not None
    assert kept["prompt"] > 0.1
    assert kept[None] is None
