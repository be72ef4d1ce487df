"""Whatever is killed, stopped or interrupted: the run ends, keeps what was measured, and leaves nothing behind."""

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.experiments.commands import (
    children,
    headway,
    requests,
    role_of,
    run_folder,
    started,
    summary,
    until,
    until_serving,
)

pytestmark = pytest.mark.alone

# One at a time, 4 a second: after a few seconds many wait and one runs, whenever the axe falls.
CROWD = ("rush", "--engine", "paced", "--policies", "one", "--rates", "4", "--requests", "40", "--max-tokens", "64")


def cut_short(cell: dict[str, Any]) -> bool:
    return cell["verdict"] == "INVALID" and cell["reasons"][0].startswith("the run was cut short: ")


def conserved(cell: dict[str, int]) -> bool:
    ends = sum(cell[end] for end in ("completed", "rejected", "failed", "cancelled", "unfinished"))
    return cell["sent"] == ends and cell["requests"] == cell["sent"] + cell["unsent"]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_worker_fails_what_waits_and_runs(tmp_path: Path, sent: signal.Signals) -> None:
    with started(*CROWD, "--out", str(tmp_path / "runs"), cwd=tmp_path) as rush:
        folder = until_serving(tmp_path / "runs")
        role_of(rush.pid, "worker").send_signal(sent)
        struck = time.monotonic_ns()
        assert rush.wait(timeout=10) == 1
        assert not children(rush.pid)
    found = summary(folder)
    assert not found["complete"]
    assert "worker" in found["reason"]
    (cell,) = found["cells"]
    assert cut_short(cell)
    assert cell["failed"] > 0
    assert conserved(cell)
    assert cell["unfinished"] == 0
    assert all("worker" in record.detail for record in requests(folder) if record.end == "failed")
    ends = [record.ended for record in requests(folder) if record.end == "failed" and record.ended is not None]
    assert max(ends) - struck < 5e9


@pytest.mark.parametrize("role", ["router", "clients"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_router_or_client_ends_the_run(tmp_path: Path, role: str, sent: signal.Signals) -> None:
    with started(*CROWD, "--out", str(tmp_path / "runs"), cwd=tmp_path) as rush:
        folder = until_serving(tmp_path / "runs")
        role_of(rush.pid, role).send_signal(sent)
        assert rush.wait(timeout=12) == 1
        assert not children(rush.pid)
    found = summary(folder)
    assert not found["complete"]
    (cell,) = found["cells"]
    assert cut_short(cell)
    assert conserved(cell)
    assert cell["failed"] > 0
    assert (cell["unfinished"], cell["cancelled"]) == (0, 0)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_within_five_seconds_and_can_be_read(tmp_path: Path, sent: signal.Signals) -> None:
    with started(*CROWD, "--out", str(tmp_path / "runs"), cwd=tmp_path) as rush:
        folder = until_serving(tmp_path / "runs")
        family = children(rush.pid)
        rush.send_signal(sent)
        assert rush.wait(timeout=5) == 130
        assert not [member for member in family if member.is_running()]
    (cell,) = summary(folder)["cells"]
    assert cell["verdict"] == "INVALID"
    assert cell["reasons"][0] == "the run was cut short: interrupted"
    assert conserved(cell)
    before = (folder / "summary.json").read_bytes()
    assert headway("analyse", str(folder), cwd=tmp_path).returncode == 0
    assert (folder / "summary.json").read_bytes() == before


def test_roles_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with started(*CROWD, "--out", str(tmp_path / "runs"), cwd=tmp_path) as rush:
        until_serving(tmp_path / "runs")
        family = children(rush.pid)
        assert len(family) == 4
        rush.kill()
        rush.wait()
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive
    assert headway("analyse", str(run_folder(tmp_path / "runs")), cwd=tmp_path).returncode == 0


def test_an_interrupt_before_the_start_leaves_nothing(tmp_path: Path) -> None:
    with started(*CROWD, "--out", str(tmp_path / "runs"), cwd=tmp_path) as rush:
        until(lambda: children(rush.pid), "child process")
        rush.send_signal(signal.SIGINT)
        assert rush.wait(timeout=5) == 130
        assert not children(rush.pid)
