"""The list of runs: newest first, with the worst verdict and the headline; what is no run has a word."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from experiments.kept_summary import read_summary, summary_of
from experiments.run_folder import MANIFEST, SUMMARY, RunFolderError, Summary, analyse, write_json
from experiments.runs import listed, worst
from experiments.runs_cli import runs, time_text
from tests.experiments.test_headline import CONTINUOUS, ONE, STUDY
from tests.experiments.test_seeds import served_run


def keep(folder: Path, begun: str | None, *cells: Any, **changes: Any) -> Path:
    """A folder with a manifest and a summary."""
    folder.mkdir(parents=True)
    server = {"engine": "mlx", "model": "smollm2-135m"}
    write_json(folder / MANIFEST, {"begun": begun, "experiment": "rush", "settings": {"server": server}})
    made = Summary(1, "rush", True, None, list(cells), None, None, None)
    write_json(folder / SUMMARY, asdict(replace(made, **changes)))
    return folder


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """Two runs, one that never ended, and what else may lie about."""
    valid = [replace(each, verdict="VALID") for each in (ONE, CONTINUOUS)]
    keep(tmp_path / "old", "2026-01-01T10:00:00+00:00", *valid)
    keep(tmp_path / "new", "2026-01-02T10:00:00+00:00", valid[0], replace(CONTINUOUS, verdict="SUSPECT"))
    keep(tmp_path / "dead", "2026-01-01T12:00:00+00:00")
    (tmp_path / "dead" / SUMMARY).unlink()
    for name, manifest in {"torn": b"{", "list": b"[]", "odd": b'{"settings": [1]}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_bytes(manifest)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").write_text("")
    other = keep(tmp_path / "other-version", "2025-01-01T10:00:00+00:00")
    (other / SUMMARY).write_bytes(b'{"schema": 1, "cells": [{"label": "one"}]}')
    return tmp_path


def asked(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(runs, [*arguments], env={"COLUMNS": "80"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def test_newest_first_and_what_is_no_run_last(parent: Path) -> None:
    found = listed(parent)
    assert [each.folder for each in found][:4] == ["new", "dead", "old", "other-version"]
    assert {each.folder for each in found[4:]} == {"empty", "list", "odd", "torn"}
    assert [each.verdict for each in found[:3]] == ["SUSPECT", None, "VALID"]
    assert found[0].headline == STUDY
    assert (found[0].model, found[0].experiment) == ("smollm2-135m", "rush")


def test_what_is_broken_has_a_word(parent: Path) -> None:
    problems = {each.folder: each.problem for each in listed(parent) if each.problem}
    assert problems == {
        "dead": f"no summary.json; make it with: headway analyse {parent / 'dead'}",
        "torn": "manifest.json: not JSON",
        "list": "manifest.json: not a manifest",
        "odd": f"of another version; make it anew with: headway analyse {parent / 'odd'}",
        "empty": "no run folder; it has neither manifest.json nor records",
        "other-version": f"summary.json: of another version; make it with: headway analyse {parent / 'other-version'}",
    }


def test_the_table_fits_eighty_columns(parent: Path) -> None:
    status, text = asked(str(parent))
    assert status == 0
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "from 13.8 s to 0.43 s" in " ".join(text.split())
    assert text.index("new") < text.index("old")


def test_for_scripts(parent: Path) -> None:
    found = orjson.loads(asked(str(parent), "--json")[1])
    assert len(found) == 8
    assert {*found[0]} == {
        "folder", "begun", "experiment", "model", "verdict", "complete", "headline", "problem",
    }  # fmt: skip


def test_no_folder_and_an_empty_one(tmp_path: Path) -> None:
    status, text = asked(str(tmp_path / "nowhere"))
    assert status == 2
    assert "no such folder; name one that holds run folders" in text
    status, text = asked(str(tmp_path))
    assert (status, text.split()[-1]) == (0, "yet.")


def test_the_worst_verdict_counts() -> None:
    cells = [replace(ONE, verdict=verdict) for verdict in ("VALID", "INVALID", "SUSPECT", None)]
    assert (worst(cells), worst(cells[2:]), worst(cells[:1]), worst([])) == ("INVALID", "SUSPECT", "VALID", None)


def test_a_moment_that_cannot_be_read_stays() -> None:
    assert (time_text(None), time_text("soon")) == (None, "soon")
    assert str(time_text("2026-01-02T10:00:00+00:00")).startswith("2026-01-0")


def test_a_summary_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Of several seeds, with objectives: every kind of figure."""
    served_run(tmp_path, ["ttft.p95<1s"])
    made = analyse(tmp_path)
    assert read_summary(tmp_path) == made
    (tmp_path / SUMMARY).unlink()
    assert summary_of(tmp_path) == made
    with pytest.raises(RunFolderError, match="headway analyse"):
        read_summary(tmp_path)
