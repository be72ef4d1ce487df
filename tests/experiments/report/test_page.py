"""The page as a file: nothing to load, strict JSON, text that stays text, and a word for everything that is missing."""

import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from experiments.cli import main
from experiments.launch import keep_report
from experiments.report.write import read_run, write_report
from protocol.records import ClientRecord, RequestRecord, RouterRecord
from tests.experiments.commands import headway, run_folder
from tests.experiments.report.folders import HOSTILE, write_manifest, write_records, write_rush

MB = 1_000_000
CELLS = {
    "c1": ("one", 4.0),
    "c2": ("static", 4.0),
    "c3": ("continuous", 4.0),
    "c4": ("one", 1.0),
    "c5": ("static", 1.0),
    "c6": ("continuous", 1.0),
}


class Elements(HTMLParser):
    """Every element of a page with its attributes, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def made(folder: Path, **how: Any) -> str:
    return write_report(folder, read_run(folder), **how).read_text()


def kept(html: str) -> Any:
    """The page's data."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return orjson.loads(found[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rush(tmp_path_factory.mktemp("page") / "run", CELLS, 40)


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return made(folder)


def test_nothing_is_loaded_from_any_address(html: str) -> None:
    assert set(re.findall(r"https?://[^/\s\"'`)]+", html)) == {"http://www.w3.org"}
    for tag, attributes in Elements(html).found:
        assert not {"src", "href", "action", "data", "poster", "srcset"} & attributes.keys(), tag
    assert "@import" not in html
    (styles,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert "url(" not in styles
    policy = next(a["content"] for t, a in Elements(html).found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_text_of_replies_is_data(html: str) -> None:
    assert HOSTILE not in html
    assert [tag for tag, _ in Elements(html).found].count("img") == 0
    assert [tag for tag, _ in Elements(html).found].count("script") == 3
    assert HOSTILE in kept(html)["texts"]["all"]


def test_without_text_neither_prompts_nor_replies_are_there(folder: Path, html: str) -> None:
    without = made(folder, texts=False)
    assert "down jacket" in html
    assert "down jacket" not in without
    assert "owned" not in without
    assert kept(without)["texts"] == {"all": [], "longest": 0, "cells": {}}
    assert "left out of this report" in without


def test_the_tables_say_what_the_terminal_says(html: str) -> None:
    captions = re.findall(r"<caption>(.*?)</caption>", html)
    assert "40 requests, 4/s, load 4: the typical request (median)" in captions
    assert "By offered rate: p50 and p95" in captions
    assert "static at 4/s: batches left with 2, 7, 8, 8, 8, 7." in html
    scopes = {a.get("scope") for tag, a in Elements(html).found if tag == "th"}
    assert scopes == {"col", "row"}
    rates = re.findall(r'<th scope="row">(\d)/s</th>', html)
    assert rates == ["1"] * 3 + ["4"] * 3


def test_the_study_stands_beside_ours_on_request(folder: Path, html: str) -> None:
    assert "Beside the study" not in html
    assert "Beside the study&#39;s figures" in made(folder, study=True)


def test_the_parts_of_every_drawn_customer_add_up(folder: Path, html: str) -> None:
    cells = {cell["name"]: cell["customers"] for cell in kept(html)["cells"]}
    assert [len(cells[name]) for name in CELLS] == [40] * 6
    for customer in (each for several in cells.values() for each in several):
        parts = sum(customer[part][1] - customer[part][0] for part in ("waiting", "reading", "writing"))
        stamps = customer["stamps"]
        assert parts == pytest.approx(stamps["last_token"] - stamps["intended"], abs=1e-4)


def test_a_long_run_is_thinned_and_small(tmp_path: Path) -> None:
    folder = write_rush(tmp_path / "run", {"c1": ("continuous", 40.0)}, 1_000, tokens=8)
    html = made(folder)
    (cell,) = kept(html)["cells"]
    assert len(html.encode()) < 4 * MB
    assert (len(cell["customers"]), cell["requests"]) == (150, 1_000)
    assert cell["ttft"]["spread"]["n"] == 1_000
    assert [cell["customers"][place]["id"] for place in (0, -1)] == [0, 999]


# --- what is missing ---


def test_a_run_of_nothing_says_so(tmp_path: Path) -> None:
    tmp_path.joinpath("run").mkdir()
    html = made(write_manifest(tmp_path / "run", complete=False, reason="the worker <died>"))
    assert "This run is incomplete: the worker &lt;died&gt;" in html
    assert "No cell was measured." in html
    assert "undefined" not in html.partition("<script>")[0]


def test_a_run_without_a_completed_request_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    records = [
        RouterRecord("c", "one", {}, 4096, None, 1, "run", {"label": "one at 1/s", "rate": 1.0}),
        ClientRecord("c", 0, 1, 1, 0, 0, {"rate": 1.0, "seed": 12}, (0,), (0,)),
        RequestRecord("c", 0, intended=0, sent=1, received=2, ended=9, end="failed", detail="the worker is gone"),
    ]
    write_records(folder, records)
    html = made(write_manifest(folder))
    assert "This run is incomplete: 1 requests failed" in html
    assert "n/a" in html
    (cell,) = kept(html)["cells"]
    assert cell["customers"][0]["end"] == "failed"
    assert cell["customers"][0]["reading"] is None


def test_the_floor_is_cited_or_not_available(folder: Path, html: str, tmp_path: Path) -> None:
    assert "<dt>Floor of the instrument</dt><dd>n/a</dd>" in html
    tmp_path.joinpath("run").mkdir()
    properties = {"round trip p50, 200/s": 0.31, "round trip p99, 200/s": None}
    cited = made(write_manifest(tmp_path / "run", selftest={"begun": "2026-01-02", "properties": properties}))
    assert "round trip p50, 200/s: 0.31 ms, round trip p99, 200/s: n/a (self-test of 2026-01-02)" in cited


# --- commands ---


def test_the_command_writes_what_is_asked_for(folder: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(folder), "--png", "--svg", "--rate", "1"])
    assert done.exit_code == 0, done.output
    names = ["report.html", "customers.png", "customers.svg"]
    assert done.output.splitlines() == [f"Written: {folder / name}" for name in names]
    assert (folder / "customers.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    svg = (folder / "customers.svg").read_text()
    assert [title in svg for title in ("one at 1/s", "static at 1/s", "continuous at 1/s")] == [True] * 3
    assert "at 4/s" not in svg


def test_a_rate_that_was_not_offered_is_refused_before_anything_is_written(folder: Path) -> None:
    before = (folder / "report.html").stat().st_mtime_ns
    done = CliRunner().invoke(main, ["report", str(folder), "--png", "--rate", "3"])
    assert done.exit_code == 2
    assert "--rate 3 was not offered in this run; offered: 1, 4" in done.output
    assert (folder / "report.html").stat().st_mtime_ns == before


def test_no_run_is_no_report(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert "no run folder" in done.output


def test_what_goes_wrong_with_a_report_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    keep_report(tmp_path, Console(highlight=False, markup=False, width=60))
    said = capsys.readouterr().out
    assert said.startswith("No report was written (RunFolderError: ")
    assert said.endswith(f"To try again: headway report {tmp_path}\n")
    assert said.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_every_run_writes_its_report(tmp_path: Path) -> None:
    brief = ("--rates", "50", "--requests", "8", "--max-tokens", "4", "--policies", "one", "--quick")
    done = headway("rush", "--engine", "paced", "--profile", "instant", *brief, "--out", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(report.html, summary.json, manifest.json, records)" in done.stdout
    (cell,) = kept((run_folder(tmp_path / "runs") / "report.html").read_text())["cells"]
    assert [customer["end"] for customer in cell["customers"]] == ["completed"] * 8


def test_a_calculation_has_one_too(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["kv-size", "Qwen3-8B", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (html,) = tmp_path.glob("*/report.html")
    assert [*kept(html.read_text())["specs"]] == ["kv-size"]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_ten_thousand_requests_take_seconds_and_little_memory(tmp_path: Path) -> None:
    folder = write_rush(tmp_path / "run", {"c1": ("continuous", 40.0)}, 10_000, tokens=16)
    code = f"""
from experiments.cli import main
main(["analyse", {str(folder)!r}], standalone_mode=False)
main(["report", {str(folder)!r}], standalone_mode=False)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.monotonic() - began < 10
    assert int(done.stdout.split()[-2]) < 300_000


def test_roles_never_pay_for_charts() -> None:
    ours = "router.cli, clients.cli, worker.cli, experiments.cli, experiments.launch, experiments.report_cli"
    code = f"import sys, {ours}; print({{'altair', 'vl_convert', 'jinja2', 'narwhals'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
