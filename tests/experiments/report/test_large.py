"""The page of a simulation that kept one record a request: what there is, thinned, and what there is not, in words."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from experiments.report.rows import CUSTOMERS
from experiments.sentences import UNKEPT
from tests.experiments.commands import headway, run_folder

REQUESTS, TOKENS = 4_000, 30
CROWD = ("--rates", "8", "--requests", str(REQUESTS), "--max-tokens", str(TOKENS), "--policies", "static,continuous")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Its folder and what was printed: 120,000 tokens a cell. The report is made when it is asked for."""
    out = tmp_path_factory.mktemp("large")
    done = headway("simulate", *CROWD, "--extrapolate", "--out", "runs", cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_folder(out / "runs")
    assert f"headway report {folder.relative_to(out)}" in " ".join(done.stdout.split())
    assert not (folder / "report.html").exists()
    assert headway("report", str(folder), "--svg", cwd=folder).returncode == 0
    return folder, done.stdout


@pytest.fixture(scope="module")
def data(run: tuple[Path, str]) -> dict[str, Any]:
    """All that the page draws."""
    page = (run[0] / "report.html").read_text()
    found: dict[str, Any] = orjson.loads(page.partition('id="data">')[2].partition("</script>")[0])
    return found


def test_it_says_what_is_not_kept(run: tuple[Path, str]) -> None:
    folder, printed = run
    assert UNKEPT in " ".join(printed.split())
    assert UNKEPT in (folder / "report.html").read_text()
    assert max(len(line) for line in printed.splitlines() if str(run[0].name) not in line) <= 80


def test_neighbours_are_drawn_the_same_under_every_policy(data: dict[str, Any]) -> None:
    """From the middle, and the clock of their picture is theirs."""
    ids = [[customer["id"] for customer in cell["customers"]] for cell in data["cells"]]
    first = (REQUESTS - CUSTOMERS) // 2
    assert ids == [[*range(first, first + CUSTOMERS)]] * 2
    for cell in data["cells"]:
        begin, end = cell["window"]
        assert begin == cell["customers"][0]["stamps"]["intended"]
        assert 0 < begin < end < cell["until"]


def test_the_queue_is_known_and_the_seats_are_not(data: dict[str, Any]) -> None:
    for cell in data["cells"]:
        assert cell["seats"]["t"] == []
        assert len(cell["queue"]["t"]) > 100
        assert max(cell["queue"]["n"]["waiting"]) > 0
        assert cell["ttft"]["spread"]["n"] == REQUESTS
        assert cell["departures"] == []


def test_batches_are_counted_where_they_are_many(run: tuple[Path, str]) -> None:
    folder, printed = run
    static = next(
        cell for cell in orjson.loads((folder / "summary.json").read_bytes())["cells"] if cell["policy"] == "static"
    )
    full = static["departures"].count(8)
    assert f"batches left with 8 ({full:,} of them)" in " ".join(printed.split())


def test_its_picture_names_the_profile_and_the_run(run: tuple[Path, str]) -> None:
    folder, _ = run
    begun = orjson.loads((folder / "manifest.json").read_bytes())["begun"]
    assert f"qwen3-4b-4bit-m4max (paced); simulation of {begun}" in (folder / "customers.svg").read_text()
