"""`headway simulate` from the command line to its run folder: marked, repeatable, without a model's libraries."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from experiments.analysis import CellSummary, by_cell, summarise
from experiments.cell import Cell
from experiments.load_state import load_state
from experiments.objectives import parse_objective
from experiments.reference import LOADS, TYPICAL
from experiments.twin import cells, keeping
from experiments.twin.cells import OutsideProfile, SimulatedServer, Simulation
from experiments.twin.simulate import crowd_of, simulate_cell
from protocol.records import QueueRecord, RecordWriter, RequestRecord, StepRecord, read_folder
from tests.experiments.commands import headway, run_folder, summary
from worker.profile import CostProfile, DecodePoint, ReadCost, load_profile

STUDY = SimulatedServer(load_profile("qwen3-4b-4bit-m4max"))
OBJECTIVES = ("ttft.p95<1s", "reply.p50<3s", "tpot.p50<50ms", "queue_wait.p95<100ms")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The study's rush at 4/s, simulated: its folder and what was printed."""
    out = tmp_path_factory.mktemp("simulated")
    done = headway("simulate", "--rates", "4", "--reference", "--out", str(out), cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_folder(out), done.stdout


def test_the_studys_rush_is_reproduced(study: tuple[Path, str]) -> None:
    """Every figure within 15 % of the study's recorded run or its rerun, whichever is nearer."""
    for cell in summary(study[0])["cells"]:
        rerun, recorded = TYPICAL[cell["policy"]], LOADS[4, cell["policy"]]
        near = {
            cell["ttft"]["p50"]: (rerun.ttft, recorded.ttft_p50),
            cell["ttft"]["p95"]: (recorded.ttft_p95,),
            cell["reply"]["p50"]: (rerun.reply, recorded.reply_p50),
            cell["reply"]["p95"]: (recorded.reply_p95,),
            cell["tokens_per_s"]: (recorded.tokens_per_s,),
            cell["done_s"]: (rerun.done,),
        }
        for ours, theirs in near.items():
            assert min(abs(ours / figure - 1) for figure in theirs) < 0.15
        assert cell["departures"] == ([2, 7, 8, 8, 8, 7] if cell["policy"] == "static" else None)


def test_what_is_simulated_says_so(study: tuple[Path, str]) -> None:
    folder, printed = study
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    assert (manifest["experiment"], manifest["complete"]) == ("simulate", True)
    assert manifest["simulated"]["profile"]["name"] == "qwen3-4b-4bit-m4max"
    found = summary(folder)
    assert found["experiment"] == "simulate"
    assert {cell["verdict"] for cell in found["cells"]} == {None}
    assert printed.count("Simulated: ") == 2
    assert "Simulated, not measured." in printed
    assert "VALID" not in printed
    assert "Simulated: " in (folder / "report.html").read_text()


def test_a_small_simulation_keeps_what_a_real_run_keeps_and_can_be_analysed_again(study: tuple[Path, str]) -> None:
    folder, _ = study
    before = (folder / "summary.json").read_bytes()
    assert headway("analyse", str(folder), cwd=folder).returncode == 0
    assert (folder / "summary.json").read_bytes() == before
    (first, *_) = sorted(by_cell(read_folder(folder)).items())
    assert len(first[1].steps) == 40 * (128 + 2)
    assert {len(r.messages or ()) for r in first[1].requests} == {128}
    assert {(r.text or "").split()[-1] for r in first[1].requests} == {"128"}


def test_no_model_is_loaded() -> None:
    code = (
        "import sys; from experiments.cli import main\n"
        "try: main(['simulate', '--rates', '4', '--requests', '5', '--policies', 'one', '--out', sys.argv[1]])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('mlx', 'mlx_lm', 'transformers')]"
    )
    done = subprocess.run([sys.executable, "-c", code, "/tmp"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def three_ways(
    cell: Cell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[CellSummary, CellSummary, CellSummary]:
    """A cell's figures in detail, by columns, and by the records of the requests alone."""
    promised = [parse_objective(text) for text in OBJECTIVES]
    detailed = Simulation(cell, crowd_of(cell), STUDY, promised).run()
    monkeypatch.setattr(cells, "DETAILED_TOKENS", 0)
    monkeypatch.setattr(keeping, "TOGETHER", 16)
    writer = RecordWriter(folder / "a.msgpack")
    quick = Simulation(
        cell, crowd_of(cell), STUDY, promised, lambda role, record: writer.write(record), writer.write_packed
    ).run()
    writer.close()
    kept = by_cell(read_folder(folder))[cell.name]
    assert not kept.steps
    return detailed, quick, replace(summarise(cell.name, kept, promised), load_state=load_state(kept))


@pytest.mark.parametrize(
    ("policy", "timeout", "queue"), [("continuous", None, 4096), ("static", 1.0, 4096), ("one", 1.2, 6)]
)
def test_a_large_simulation_has_the_same_figures(
    policy: str, timeout: float | None, queue: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("c", "c", policy, 60, 50, rate=4.0, workload="mixed", queue=queue, timeout=timeout)
    detailed, quick, recorded = (asdict(each) for each in three_ways(cell, tmp_path, monkeypatch))
    assert quick == recorded
    unlike = {name for name in detailed if detailed[name] != quick[name]}
    assert unlike <= {"gap", "prompt_tokens"}
    assert quick["gap"]["p50"] is None
    if timeout is None:
        assert quick["gap"]["max"] == detailed["gap"]["max"]
    assert (quick["cancelled"] > 0) == (timeout is not None)
    assert (quick["rejected"] > 0) == (queue < 10)


def test_a_queue_may_be_longer_than_64_bits(tmp_path: Path) -> None:
    """One at a time, 50 million seconds each: whoever comes as number k waits k times as long."""
    slow = SimulatedServer(CostProfile("slow", "", (DecodePoint(1, 0, 1e6),), ReadCost(0.0, 0.0, 0.0)))
    cell, writer = Cell("c", "c", "one", 60, 50, rate=4.0), RecordWriter(tmp_path / "a.msgpack")
    Simulation(cell, crowd_of(cell), slow, write=lambda role, record: writer.write(record)).run()
    writer.close()
    (queue,) = [record for record in read_folder(tmp_path) if isinstance(record, QueueRecord)]
    assert queue.area_ns == pytest.approx(60 * 59 / 2 * 50e6 * 1e9, rel=1e-6)


def test_beyond_what_was_measured_it_refuses_or_says_so(tmp_path: Path) -> None:
    profile = {
        "schema": 1, "name": "small", "source": "",
        "decode": [{"rows": 1, "context": 0, "s": 0.01}, {"rows": 4, "context": 0, "s": 0.02}],
        "read": {"per_chunk_s": 0.0, "per_prompt_s": 0.05, "per_token_s": 0.0},
    }  # fmt: skip
    (tmp_path / "small.json").write_bytes(orjson.dumps(profile))
    asked = ("simulate", "--profile", "small.json", "--rates", "8", "--policies", "continuous", "--requests", "30")
    refused = headway(*asked, "--out", "runs", cwd=tmp_path)
    assert refused.returncode == 2
    assert "outside what small was measured at (1 to 4 rows)" in refused.stderr
    assert not [*(tmp_path / "runs").glob("*")]
    done = headway(*asked, "--extrapolate", "--out", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "steps lie outside what was measured" in done.stdout


def test_reading_more_than_was_measured_counts_too() -> None:
    read = ReadCost(0.0, 0.05, 0.0, most_prompts=8, most_tokens=2)
    profile = CostProfile("small", "", (DecodePoint(1, 0, 0.01),), read)
    cell = Cell("c", "c", "one", 3, 4)
    with pytest.raises(OutsideProfile, match="chunks of up to 2 tokens"):
        simulate_cell(cell, SimulatedServer(profile))
    assert simulate_cell(cell, SimulatedServer(profile, extrapolate=True)).completed == 3


def test_the_rates_follow_from_a_simulated_calibration(tmp_path: Path) -> None:
    done = headway("simulate", "--quick", "--policies", "one", "--out", "runs", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = orjson.loads(done.stdout)
    alone_s = 0.12 + 48 * 0.81 / 128
    assert [cell["rate"] for cell in found["cells"]] == [float(f"{load / 1.08 / alone_s:.2g}") for load in (1, 4)]


def test_records_stay_readable(study: tuple[Path, str]) -> None:
    kinds = {type(record) for record in read_folder(study[0])}
    assert {RequestRecord, StepRecord} <= kinds
