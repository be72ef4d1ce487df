"""The instrument against known answers, with real processes: what was asked for is sent, and a stall is seen."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clients.arrivals import ArrivalPlan, arrival_times
from tests.experiments.commands import headway, requests, role_of, run_folder, started, summary, until_serving

pytestmark = pytest.mark.alone

INSTANT = (
    "rush",
    "--engine",
    "paced",
    "--profile",
    "instant",
    "--policies",
    "continuous",
    "--max-tokens",
    "1",
    "--quick",
)


# Imported by every Python process that finds it: a second after its start the time of day is an hour ago.
STEPS_BACK = """
import time
real, first = time.time, time.time()
time.time = lambda: real() - 3600 * (real() - first > 1)
"""


def test_two_hundred_a_second_are_delivered_by_the_absolute_schedule(tmp_path: Path) -> None:
    """Ten seconds."""
    done = headway(
        *INSTANT, "--rates", "200", "--requests", "2000", "--arrivals", "constant", "--out", "runs", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sent = [record.sent for record in requests(run_folder(tmp_path / "runs"))]
    assert None not in sent
    took = (max(sent) - min(sent)) / 1e9
    assert abs(took / (1999 / 200) - 1) < 0.01


def test_a_stall_of_a_second_is_seen_from_the_intended_times(tmp_path: Path) -> None:
    """Of 500 requests in 5 s, 100 are due while nothing moves: one in a hundred waits 0.95 s."""
    with started(
        *INSTANT, "--rates", "100", "--requests", "500", "--out", str(tmp_path / "runs"), cwd=tmp_path
    ) as rush:
        folder = until_serving(tmp_path / "runs")
        worker = role_of(rush.pid, "worker")
        worker.send_signal(signal.SIGSTOP)
        timer = threading.Timer(1.0, worker.send_signal, [signal.SIGCONT])
        timer.start()
        timer.join()
        assert rush.wait(timeout=30) == 0
    (cell,) = summary(folder)["cells"]
    assert cell["completed"] == 500
    assert cell["ttft"]["p99"] >= 0.85
    assert cell["send_lag"]["p50"] < 0.01


def test_the_wall_clock_stepping_back_an_hour_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every process of the run, while it serves."""
    (tmp_path / "sitecustomize.py").write_text(STEPS_BACK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    imported = [sys.executable, "-c", "import sitecustomize; print(sitecustomize.real)"]
    assert subprocess.run(imported, capture_output=True, text=True).returncode == 0
    done = headway(*INSTANT, "--rates", "40", "--requests", "60", "--out", str(tmp_path / "runs"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = summary(run_folder(tmp_path / "runs"))
    (cell,) = found["cells"]
    assert (cell["completed"], cell["order_violations"]) == (60, 0)
    assert cell["verdict"] != "INVALID", cell["reasons"]
    assert 0 <= cell["send_lag"]["p50"] <= cell["ttft"]["p50"] <= cell["reply"]["max"] < 1
    last = arrival_times(ArrivalPlan("poisson", 40.0, 12), 60)[-1] / 1e9
    assert cell["done_s"] == pytest.approx(last, abs=0.5)


def test_the_wall_clock_has_no_part_in_a_duration() -> None:
    """Every stamp and every deadline is of the monotonic clock; the date stands in manifests and folder names alone."""
    root = Path(__file__).parents[2]
    used = {
        f"{file.parent.name}/{file.name}"
        for folder in ("protocol", "router", "worker", "clients", "experiments")
        for file in (root / folder).glob("*.py")
        if any(word in file.read_text() for word in ("time.time", "datetime.now", "perf_counter"))
    }
    assert used == {"experiments/manifest.py", "experiments/run_folder.py", "worker/bandwidth.py"}
    assert time.get_clock_info("monotonic").monotonic
