"""Run folders: made once, analysed to the same bytes every time, strict JSON, and clear about what is no run."""

import os
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from experiments import run_folder
from experiments.analysis import by_cell
from experiments.headline import headline
from experiments.markdown import markdown
from experiments.run_folder import (
    CALCULATED,
    FINDINGS,
    MANIFEST,
    SUMMARY,
    RunFolderError,
    analyse,
    build_summary,
    check_parent,
    create,
    read_manifest,
    write_json,
)
from experiments.show import show
from protocol.clock import SECOND
from protocol.records import ClientRecord, RecordWriter, RequestRecord, RouterRecord, StepRecord

FOUND: dict[str, Any] = {"experiment": "rush", "complete": True, "reason": None, "drift": None}


def cell_records(cell: str, done_s: int = 10, requests: int = 1, ended: bool = True) -> list[Any]:
    """A cell with one request: first word after 1 s, done after `done_s`."""
    reply = RequestRecord(
        cell,
        0,
        intended=0,
        sent=0,
        first_received=SECOND,
        last_received=done_s * SECOND,
        messages=((SECOND, 1), (done_s * SECOND, 1)),
        tokens=(1, 2),
        text="1 2",
        end="completed" if ended else None,
    )
    labels = {"label": f"cell {cell}", "requests": requests}
    return [
        ClientRecord(cell, 0, 1, requests, 0, 0, {"rate": 1.0, "seed": 12}, (0,), (0,)),
        reply,
        RouterRecord(cell, "one", {}, 4096, None, 1, "run", labels),
        StepRecord(cell, 0, 1, 1, 0, 0, 1, 1, 3, 0),
    ]


def write_records(path: Path, records: list[Any]) -> None:
    writer = RecordWriter(path)
    for record in records:
        writer.write(record)
    writer.close()


def summarised(manifest: dict[str, Any], *cells: list[Any]) -> run_folder.Summary:
    return build_summary(manifest, by_cell([record for cell in cells for record in cell]))


# --- analysis of a folder ---


def test_analysis_is_the_same_to_the_byte(tmp_path: Path) -> None:
    for cell in ("c02", "c01"):
        write_records(tmp_path / f"{cell}.client-0.msgpack", cell_records(cell))
    write_json(tmp_path / MANIFEST, FOUND)
    first = analyse(tmp_path)
    data = (tmp_path / SUMMARY).read_bytes()
    (tmp_path / SUMMARY).unlink()
    assert analyse(tmp_path) == first
    assert (tmp_path / SUMMARY).read_bytes() == data
    assert [cell.label for cell in first.cells] == ["cell c01", "cell c02"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "c01.client-0.msgpack",
        "c02.client-0.msgpack",
        MANIFEST,
        SUMMARY,
    ]


def test_a_torn_record_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "c01.client-0.msgpack"
    write_records(path, cell_records("c01"))
    whole = analyse(tmp_path)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:25])
    assert analyse(tmp_path) == whole


def test_the_summary_says_null_for_what_is_missing(tmp_path: Path) -> None:
    write_records(tmp_path / "c01.client-0.msgpack", cell_records("c01")[:1])
    analyse(tmp_path)
    cell = orjson.loads((tmp_path / SUMMARY).read_bytes())["cells"][0]
    percentiles = ("p50", "p95", "p99")
    assert cell["ttft"] == {"n": 0, "max": None, "mean": None} | dict.fromkeys(
        [*percentiles, *(f"{name}_interval" for name in percentiles)]
    )
    assert cell["tokens_per_s"] is None
    assert cell["peak_seats"] is None


def test_json_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"nan": float("nan"), "inf": float("-inf"), "one": 1.5})
    assert orjson.loads(path.read_bytes()) == {"nan": None, "inf": None, "one": 1.5}
    assert b"NaN" not in path.read_bytes()
    assert path.read_bytes().endswith(b"}\n")


def test_json_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, [1])
    with pytest.raises(TypeError):
        write_json(path, {"no": object()})
    assert orjson.loads(path.read_bytes()) == [1]


# --- what a summary says ---


def test_without_a_manifest_every_cell_counts_and_must_be_whole() -> None:
    whole = summarised({}, cell_records("a"), cell_records("b"))
    assert (whole.experiment, whole.complete, whole.reason) == ("by-hand", True, None)
    assert (len(whole.cells), whole.calibration, whole.drift) == (2, None, None)
    assert not summarised({}, cell_records("a"), cell_records("b", requests=2)).complete, "one was never sent"
    assert not summarised({}, cell_records("a", ended=False)).complete, "one never ended"


def test_the_manifest_has_the_last_word_on_completeness() -> None:
    summary = summarised(FOUND | {"complete": False, "reason": "stopped"}, cell_records("a"))
    assert (summary.complete, summary.reason) == (False, "stopped")


@pytest.mark.parametrize("experiment", sorted({*FINDINGS, "rush"} - {*CALCULATED}))
@pytest.mark.parametrize("manifest", [{}, {"planned": []}], ids=["unannounced", "no-cells"])
def test_what_broke_off_before_its_plan_is_an_incomplete_run(experiment: str, manifest: dict[str, Any]) -> None:
    summary = build_summary({"experiment": experiment, "reason": "interrupted", "settings": {}, **manifest}, {})
    assert (summary.complete, summary.reason, summary.findings) == (False, "interrupted", None)
    screen = StringIO()
    show(Console(file=screen, width=80), summary, {}, study=True)
    assert "No cell was measured." in screen.getvalue()
    assert headline(summary).startswith("Incomplete: interrupted.")
    assert markdown(summary, {"experiment": experiment})


def test_the_calibration_is_no_cell() -> None:
    summary = summarised(FOUND, cell_records("c01"), cell_records("calibration"))
    assert [cell.label for cell in summary.cells] == ["cell c01"]
    assert summary.calibration is not None
    assert summary.calibration.label == "cell calibration"


DRIFT = FOUND | {"drift": {"first": "c01", "repeat": "c02-drift"}}


@pytest.mark.parametrize(
    ("repeat_s", "change", "drifted"), [(100, 0.0, False), (102, 0.02, False), (104, 0.04, True), (96, -0.04, True)]
)
def test_drift_compares_a_cell_with_its_repetition(repeat_s: int, change: float, drifted: bool) -> None:
    summary = summarised(DRIFT, cell_records("c01", 100), cell_records("c02-drift", repeat_s))
    assert summary.drift == {
        "label": "cell c01",
        "first_done_s": 100.0,
        "repeat_done_s": float(repeat_s),
        "change": pytest.approx(change),
        "drifted": drifted,
    }
    assert len(summary.cells) == 1


def test_a_repetition_that_is_missing_says_nothing_of_drift() -> None:
    assert summarised(DRIFT, cell_records("c01")).drift is None
    assert summarised(DRIFT, cell_records("c02-drift")).drift is None
    assert summarised(DRIFT, cell_records("c01"), cell_records("c02-drift")[:1]).drift is None
    cut_short = cell_records("c02-drift", 28, requests=2)
    assert summarised(DRIFT, cell_records("c01", 60), cut_short).drift is None


# --- folders ---


def test_two_runs_in_one_second_have_two_folders(tmp_path: Path) -> None:
    made = [create(tmp_path / "deep" / "runs", "rush") for _ in range(3)]
    assert len(set(made)) == 3
    assert all(folder.is_dir() and folder.name.endswith("-rush") for folder in made)


def unusable(tmp_path: Path) -> list[Path]:
    file = tmp_path / "file"
    file.touch()
    return [file, file / "below", tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "below"]


def test_what_cannot_be_a_parent_is_said_in_one_line(tmp_path: Path) -> None:
    for parent in unusable(tmp_path):
        for attempt in (lambda parent=parent: check_parent(parent), lambda parent=parent: create(parent, "rush")):
            with pytest.raises(RunFolderError) as error:
                attempt()
            assert "--out" in str(error.value)
            assert "\n" not in str(error.value)


def test_a_folder_that_may_not_be_written_is_no_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_parent(tmp_path / "not" / "yet" / "there")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RunFolderError, match="cannot be written"):
        check_parent(tmp_path)


def test_no_manifest_is_fine_where_there_are_records(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        read_manifest(tmp_path)
    with pytest.raises(RunFolderError, match="no run folder"):
        analyse(tmp_path / "nowhere")
    write_records(tmp_path / "a.client-0.msgpack", cell_records("a"))
    assert read_manifest(tmp_path) == {}
    write_json(tmp_path / MANIFEST, FOUND)
    assert read_manifest(tmp_path) == FOUND


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"null"])
def test_a_manifest_that_is_none_is_said_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(RunFolderError, match=r"manifest\.json: not") as error:
        analyse(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / SUMMARY).exists()
