"""Requests as CSV: every stamp and what follows from it, and text that a spreadsheet does not run."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.arrivals import poisson
from experiments.analysis import CellRecords, by_cell
from experiments.csv_export import columns, harmless, write_csv
from experiments.exports import write_requests
from protocol.records import RequestRecord
from tests.virtual import CELL, VirtualRush


@pytest.fixture(scope="module")
def cells() -> dict[str, CellRecords]:
    served = VirtualRush("continuous", poisson(6, 4.0, 12), max_tokens=8)
    served.run()
    return by_cell(served.records)


def rows(cells: dict[str, CellRecords], text: bool = True) -> list[dict[str, str]]:
    file = io.StringIO(newline="")
    write_csv(file, cells, text)
    return list(csv.DictReader(io.StringIO(file.getvalue(), newline=""), strict=True))


def test_a_row_is_a_request(cells: dict[str, CellRecords]) -> None:
    found = rows(cells)
    assert len(found) == 6
    for row, request in zip(found, cells[CELL].requests, strict=True):
        assert (row["cell"], row["label"], row["policy"], row["end"]) == (CELL, "continuous", "continuous", "completed")
        assert int(row["id"]) == request.id
        assert int(row["intended_ns"]) == request.intended
        assert int(row["tokens"]) == 8
        assert float(row["ttft_s"]) == pytest.approx((request.first_received - request.intended) / 1e9)
        assert float(row["reply_s"]) == pytest.approx(float(row["ttft_s"]) + float(row["writing_s"]))
        assert float(row["tpot_s"]) == pytest.approx(float(row["writing_s"]) / 7)
        assert float(row["queue_wait_s"]) == pytest.approx((request.admitted - request.received) / 1e9)


def test_units_are_in_the_names() -> None:
    names = columns(text=True)
    assert len({*names}) == len(names)
    for stamp in ("intended", "sent", "received", "admitted", "started", "first_token", "last_token", "ended"):
        assert f"{stamp}_ns" in names
    assert {"ttft_s", "writing_s", "reply_s", "queue_wait_s", "tpot_s", "longest_gap_s", "send_lag_s"} <= {*names}


def test_what_was_not_measured_is_empty() -> None:
    lone = CellRecords(requests=[RequestRecord("c", 0, intended=5, end="failed")])
    (row,) = rows({"c": lone})
    assert (row["intended_ns"], row["sent_ns"], row["ttft_s"], row["tpot_s"], row["rate"]) == ("5", "", "", "", "")
    assert rows({}) == []


def test_text_is_left_out_on_request(cells: dict[str, CellRecords], tmp_path: Path) -> None:
    said = replace(cells[CELL], requests=[replace(each, text="secret") for each in cells[CELL].requests])
    assert "secret" in write_requests(tmp_path, {CELL: said}).read_text()
    assert "secret" not in write_requests(tmp_path, {CELL: said}, texts=False).read_text()
    assert "text" not in rows({CELL: said}, text=False)[0]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_spreadsheet_runs_no_reply(text: str) -> None:
    (row,) = rows({"c": CellRecords(requests=[RequestRecord("c", 0, user=text, text=text)])})
    assert (row["text"], row["user"]) == (f"'{text}", f"'{text}")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_text_comes_back(text: str) -> None:
    """Quotes, commas and line breaks included."""
    (row,) = rows({"c": CellRecords(requests=[RequestRecord("c", 0, text=text)])})
    assert row["text"] in (text, f"'{text}")
    assert not row["text"].startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize("value", [None, 3, -3, 0.5, -0.5, "plain", "a=b"])
def test_what_is_no_formula_stays(value: Any) -> None:
    assert harmless(value) == value
