"""A rush with its twin: the same cells simulated, its error per figure, and what its costs are from."""

from pathlib import Path

import orjson
import pytest

from experiments.kept_summary import read_summary
from experiments.twin.comparison import FIGURES
from tests.experiments.commands import headway, run_folder, summary
from tests.virtual import STUDY_PROFILE
from worker.profile import load_profile

pytestmark = pytest.mark.alone

RUSH = ("rush", "--engine", "paced", "--rates", "12", "--requests", "12", "--max-tokens", "12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A brief rush on the study's profile, and its twin on costs fitted from the rush itself."""
    out = tmp_path_factory.mktemp("twin")
    done = headway(*RUSH, "--policies", "static,continuous", "--quick", "--twin", "--out", str(out), cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from this run's own steps, so its error says little of others" in " ".join(done.stdout.split())
    return run_folder(out)


def test_the_twin_is_near_the_run(folder: Path) -> None:
    found = summary(folder)["twin"]
    assert [cell["label"] for cell in found["cells"]] == [cell["label"] for cell in summary(folder)["cells"]]
    errors = [abs(each["error"]) for cell in found["cells"] for each in cell["figures"]]
    assert len(errors) == 2 * len(FIGURES)
    assert found["median"] <= 0.05
    assert max(errors) == found["worst"] <= 0.15
    assert not found["unseen"]


def test_its_error_is_against_the_figures_of_the_run(folder: Path) -> None:
    found = summary(folder)
    for cell, twin in zip(found["cells"], found["twin"]["cells"], strict=True):
        known = {each["figure"]: each for each in twin["figures"]}
        assert known["ttft.p95"]["measured"] == cell["ttft"]["p95"]
        assert known["tokens_per_s"]["measured"] == cell["tokens_per_s"]
        for each in known.values():
            assert each["error"] == each["simulated"] / each["measured"] - 1


def test_it_is_simulated_again_by_analyse(folder: Path) -> None:
    before = (folder / "summary.json").read_bytes()
    assert headway("analyse", str(folder), cwd=folder).returncode == 0
    assert (folder / "summary.json").read_bytes() == before
    assert read_summary(folder).twin is not None


def test_a_profile_fitted_from_another_run_is_unseen(folder: Path, tmp_path: Path) -> None:
    fitted = headway("fit", str(folder), "--out", "mine.json", cwd=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    assert "all steps" in fitted.stdout
    profile = orjson.loads((tmp_path / "mine.json").read_bytes())
    assert profile["read"]["per_prompt_s"] == pytest.approx(0.12, rel=0.1)
    steps = {point["rows"]: point["s"] for point in profile["decode"]}
    assert steps[max(steps)] == pytest.approx(load_profile(STUDY_PROFILE).decode_s(max(steps), 0), rel=0.1)
    done = headway(
        *RUSH,
        "--policies",
        "continuous",
        "--quick",
        "--twin",
        "--profile-fit",
        "mine.json",
        "--out",
        "runs",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = summary(run_folder(tmp_path / "runs"))["twin"]
    assert found["unseen"]
    assert found["median"] <= 0.1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--profile-fit", "x"), "--profile-fit is about the twin: ask for one with --twin"),
        (("--twin", "--profile-fit", "nothing"), "unknown profile 'nothing'"),
        (("--twin", "--profile-fit", "."), "no run folder"),
    ],
)
def test_mistakes_are_found_before_anything_starts(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = headway(*RUSH, *arguments, "--out", "runs", cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_trace_is_replayed_and_simulated_alike(tmp_path: Path) -> None:
    """Two prompts share their first block; a token of a synthetic prompt is a word."""
    lines = [
        {"timestamp": at, "input_length": size, "output_length": reply, "hash_ids": [7, at]}
        for at, size, reply in [(0, 600, 3), (400, 700, 5), (900, 520, 4), (900, 515, 2)]
    ]
    (tmp_path / "trace.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    asked = ("--trace", "trace.jsonl", "--speed", "2", "--policies", "continuous")
    real = headway("rush", "--engine", "paced", "--profile", "instant", *asked, "--out", "real", cwd=tmp_path)
    assert real.returncode == 0, real.stderr
    virtual = headway("simulate", *asked, "--out", "virtual", cwd=tmp_path)
    assert virtual.returncode == 0, virtual.stderr
    for out in ("real", "virtual"):
        (cell,) = summary(run_folder(tmp_path / out))["cells"]
        assert (cell["completed"], cell["tokens"], cell["prompt_tokens"]) == (4, 14, 2335), out
        assert cell["rate"] == pytest.approx(3 / 0.45)
    refused = headway("simulate", *asked, "--rates", "1", cwd=tmp_path)
    assert "--trace says who comes when" in refused.stderr
