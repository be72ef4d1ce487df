"""`headway capacity` from the command line to its run folder: real runs beside the twin, and mistakes."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from experiments.cli import main
from experiments.headline import headline
from experiments.kept_summary import read_summary
from tests.experiments.commands import headway, run_folder, summary
from worker.profile import CostProfile, DecodePoint, ReadCost, as_json

pytestmark = pytest.mark.alone

# Replies of four tokens take 12 ms alone; four at once get 180 a second done.
FAST = CostProfile("fast", "", (DecodePoint(1, 0, 0.002), DecodePoint(4, 0, 0.004)), ReadCost(0.0, 0.001, 0.0))
ASKED = (
    *("--objective", "reply.p95<60ms", "--profile", "fast.json", "--max-tokens", "4"),
    *("--policies", "continuous", "--seats", "4"),
)


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with real cells on the paced engine: its folder and what was printed."""
    out = tmp_path_factory.mktemp("capacity")
    (out / "fast.json").write_bytes(orjson.dumps(as_json(FAST)))
    done = headway("capacity", *ASKED, "--confirm", "--engine", "paced", "--out", "runs", cwd=out, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_folder(out / "runs"), done.stdout


def test_real_runs_bear_the_twin_out(confirmed: tuple[Path, str]) -> None:
    below, above = summary(confirmed[0])["findings"]["confirmed"]
    (row,) = summary(confirmed[0])["findings"]["policies"]
    assert below["rate"] == pytest.approx(0.8 * row["interval"][0], rel=0.05)
    assert above["rate"] == pytest.approx(1.2 * row["interval"][1], rel=0.05)
    assert [below["objectives"][0]["state"], above["objectives"][0]["state"]] == ["met", "missed"]
    assert {below["verdict"], above["verdict"]} <= {"VALID", "SUSPECT"}
    (figures,) = below["objectives"]
    assert figures["error"] == pytest.approx(figures["simulated_s"] / figures["measured_s"] - 1)
    assert abs(figures["error"]) < 0.3


def test_the_real_cells_are_in_the_same_folder(confirmed: tuple[Path, str]) -> None:
    found = summary(confirmed[0])
    assert found["complete"]
    asked = [run["requests"] for run in found["findings"]["confirmed"]]
    assert [cell["completed"] for cell in found["cells"]] == asked
    assert min(asked) >= 198
    assert {cell["policy"] for cell in found["cells"]} == {"continuous"}
    assert {path.name for path in confirmed[0].iterdir()} >= {"report.html", "manifest.json", "worker.msgpack"}


def test_the_answer_comes_first_and_fits_a_terminal(confirmed: tuple[Path, str]) -> None:
    folder, printed = confirmed
    said = headline(read_summary(folder))
    text = " ".join(printed.split())
    assert said.endswith(f"; a real run met them at {summary(folder)['cells'][0]['rate']:g}/s.")
    assert text.index(said) < text.index("The highest rate that meets") < text.index("Recommended: continuous")
    assert "should meet all): met all." in text
    assert "should be too much): missed reply.p95<60ms." in text
    assert f"Results: {folder}" in text or "Results: runs" in text


def test_the_folder_is_a_run_like_any_other(confirmed: tuple[Path, str], tmp_path: Path) -> None:
    folder = confirmed[0]
    before = (folder / "summary.json").read_bytes()
    assert headway("analyse", str(folder), cwd=tmp_path).returncode == 0
    assert (folder / "summary.json").read_bytes() == before
    done = headway("report", str(folder), "--markdown", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "### Headway capacity: Simulated: continuous" in (folder / "summary.md").read_text()
    assert "Real runs beside the same arrivals simulated" in (folder / "report.html").read_text()
    assert "continuous with 4 seats" in " ".join(headway("runs", str(folder.parent), cwd=tmp_path).stdout.split())
    assert headway("compare", str(folder), str(folder), cwd=tmp_path).returncode == 0


def test_without_real_runs_only_the_search_is_kept(confirmed: tuple[Path, str], tmp_path: Path) -> None:
    asked = (*ASKED, "--model", "Qwen3-4B", "--json")
    profile = str(confirmed[0].parents[1] / "fast.json")
    done = headway("capacity", *asked, "--profile", profile, "--out", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = orjson.loads(done.stdout)
    assert (found["complete"], found["cells"], found["findings"]["confirmed"]) == (True, [], [])
    (row,) = found["findings"]["seats"]["rows"]
    assert row["memory_from"] == "configuration"
    assert "Simulated, not measured." in done.stderr
    folder = run_folder(tmp_path / "runs")
    before = (folder / "summary.json").read_bytes()
    assert before == done.stdout.encode()
    assert headway("analyse", str(folder), cwd=tmp_path).returncode == 0
    assert (folder / "summary.json").read_bytes() == before
    assert (folder / "report.html").is_file()
    assert found["findings"]["policies"] == summary(confirmed[0])["findings"]["policies"]  # what is searched repeats


MISTAKES = {
    "no objective": ((), "give at least one --objective"),
    "no such objective": (("--objective", "reply<3s"), "--objective is METRIC.PERCENTILE<LIMIT"),
    "objective twice": (("--objective", "ttft.p95<3s", "--objective", "ttft.p95<2s"), "names a percentile twice"),
    "gaps": (("--objective", "gap.p95<1s"), "keeps no gaps"),
    "one token": (("--objective", "tpot.p50<1s", "--max-tokens", "1", "--policies", "one"), "say nothing of it"),
    "seats": (("--objective", "ttft.p95<1s", "--seats", "0"), "--seats takes"),
    "seats beyond the profile": (("--objective", "ttft.p95<1s", "--seats", "8,65"), "65 seats, more than qwen3"),
    "policy": (("--objective", "ttft.p95<1s", "--policies", "fastest"), "unknown policy 'fastest'"),
    "policy twice": (("--objective", "ttft.p95<1s", "--policies", "one,one"), "twice"),
    "policies both ways": (("--objective", "ttft.p95<1s", "--policies", "one", "--policy", "static"), "one of the two"),
    "rate": (("--objective", "ttft.p95<1s", "--rate", "0"), "--rate"),
    "profile": (("--objective", "ttft.p95<1s", "--profile", "no-such"), "unknown profile"),
    "a profile that costs nothing": (("--objective", "ttft.p95<1s", "--profile", "instant"), "takes no time"),
    "at once": (("--objective", "ttft.p95<1s", "--arrivals", "at-once"), "no rate to search for"),
    "confirm on what": (("--objective", "ttft.p95<1s", "--confirm"), "add --engine mlx"),
    "engine for nothing": (("--objective", "ttft.p95<1s", "--engine", "paced"), "ask for some with --confirm"),
    "model": (("--objective", "ttft.p95<1s", "--model", "no-such-model"), "no model"),
    "workload": (("--objective", "ttft.p95<1s", "--workload", "poems"), "workload"),
    "prompts": (("--objective", "ttft.p95<1s", "--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
    "timeout": (("--objective", "ttft.p95<1s", "--timeout", "-1"), "--timeout takes"),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_starts(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, ["capacity", *arguments, "--out", str(tmp_path / "runs")])
    assert done.exit_code == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    assert len(errors) == 1
    assert said in errors[0]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_the_plan_and_searches_nothing(tmp_path: Path) -> None:
    asked = ["capacity", "--objective", "reply.p95<3s", "--confirm", "--engine", "paced", "--dry-run"]
    done = CliRunner().invoke(main, [*asked, "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0
    text = " ".join(done.output.split())
    assert "continuous with 1, 2, 4, 8, 16, 32, 64 seats" in text
    assert "Then two real runs of the best, 198 requests each or more" in text
    assert not (tmp_path / "runs").exists()
