"""Planted disturbances: real runs, disturbed in one way, and the verdict names what was done to them."""

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from experiments.analysis import by_cell, summarise
from experiments.run_folder import read_manifest
from experiments.verdict import INVALID, SUSPECT, VALID, Verdict, circumstances, judge
from protocol.clock import MS
from protocol.records import ClockRecord, RequestRecord, StepRecord, read_folder
from tests.experiments.commands import headway, requests, role_of, run_folder, started, summary, until_serving

pytestmark = pytest.mark.alone

# A reply of 16 tokens takes about 35 ms: two thirds of what one at a time can do at 20 a second.
PROFILE = {
    "schema": 1,
    "name": "quick",
    "source": "Made up.",
    "decode": [{"rows": 1, "context": 0, "s": 0.002}, {"rows": 64, "context": 0, "s": 0.002}],
    "read": {"per_chunk_s": 0.001, "per_prompt_s": 0.0, "per_token_s": 0.0},
}
CROWD = ("--policies", "one", "--rates", "20", "--requests", "60", "--max-tokens", "16")
# Constant gaps: each of two clients has something due every 10 ms.
DENSE = (
    *("rush", "--engine", "paced", "--profile", "instant", "--policies", "continuous", "--arrivals", "constant"),
    *("--rates", "200", "--requests", "600", "--max-tokens", "4", "--seed", "12"),
)

Records = list[Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    home = tmp_path_factory.mktemp("calm")
    (home / "quick.json").write_bytes(orjson.dumps(PROFILE))
    done = headway("rush", "--engine", "paced", "--profile", "quick.json", "--quick", *CROWD, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "VALID" in done.stdout or "SUSPECT" in done.stdout
    return run_folder(home / "runs")


@pytest.fixture(scope="module")
def records(folder: Path) -> Records:
    return list(read_folder(folder))


def verdict_of(records: Records, folder: Path) -> Verdict:
    ((name, cell),) = by_cell(records).items()
    return judge(cell, summarise(name, cell), circumstances(read_manifest(folder), name, None))


def only_late(reasons: list[str]) -> list[str]:
    """Reasons that a busy machine does not explain."""
    return [reason for reason in reasons if not reason.startswith(("clients sent", "the paced engine's steps"))]


def edited(records: Records, kind: type, change: Callable[[Any], Any]) -> Records:
    changed = [change(record) if isinstance(record, kind) else record for record in records]
    return [record for record in changed if record is not None]


def test_a_run_that_nothing_disturbed_is_valid(folder: Path, records: Records) -> None:
    """But for what a busy machine made late."""
    found = verdict_of(records, folder)
    assert only_late(found.reasons) == []
    assert found.verdict == VALID or found.reasons
    unknown = {check.name for check in found.checks if check.level == "not measured"}
    assert unknown <= {"drift", "on battery"}
    (cell,) = summary(folder)["cells"]
    assert (cell["verdict"], cell["reasons"]) == (found.verdict, found.reasons)
    assert cell["load_state"] in ("stable", "not determined")


def test_every_check_is_explained(folder: Path) -> None:
    plain = headway("explain-verdict", str(folder), cwd=folder)
    assert plain.returncode == 0
    assert max(map(len, plain.stdout.splitlines())) <= 80
    told = orjson.loads(headway("explain-verdict", str(folder), "--json", cwd=folder).stdout)
    ((_, cell),) = told.items()
    assert {"verdict", "reasons", "load_state", "checks", "label"} == set(cell)
    assert all(f"  {check['name']} " in plain.stdout for check in cell["checks"])
    assert headway("explain-verdict", str(folder.parent), cwd=folder).returncode == 2


def test_analysis_comes_to_the_same_verdict(folder: Path) -> None:
    before = (folder / "summary.json").read_bytes()
    assert headway("analyse", str(folder), cwd=folder).returncode == 0
    assert (folder / "summary.json").read_bytes() == before


def test_a_client_that_was_held_is_named(tmp_path: Path) -> None:
    with started(*DENSE, "--out", str(tmp_path / "runs"), cwd=tmp_path) as rush:
        folder = until_serving(tmp_path / "runs")
        client = role_of(rush.pid, "clients")
        client.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        client.send_signal(signal.SIGCONT)
        assert rush.wait(timeout=30) == 0
    (cell,) = summary(folder)["cells"]
    assert cell["verdict"] in (SUSPECT, INVALID)
    assert any(reason.startswith("clients sent") and "late" in reason for reason in cell["reasons"])
    assert max(r.sent - r.intended for r in requests(folder)) > 35 * MS
    assert only_late(cell["reasons"]) == []


def test_a_request_removed_on_the_way_is_named(folder: Path, records: Records) -> None:
    """As the client tells of one that the router never got: nothing but its own stamps, and no reply."""

    def removed(record: RequestRecord) -> RequestRecord | None:
        if record.id != 7:
            return record
        kept = {"cell": record.cell, "id": 7, "intended": record.intended, "sent": record.sent}
        return None if record.sent is None else RequestRecord(**kept, end="unfinished", detail="lost on the way")

    found = verdict_of(edited(records, RequestRecord, removed), folder)
    assert found.verdict == INVALID
    assert "1 request was lost on the way" in found.reasons


@pytest.mark.parametrize("shift", [3 * MS, -3 * MS])
def test_a_clock_that_is_off_is_named(folder: Path, records: Records, shift: int) -> None:
    """Client 0's clock, and with it all that it stamped: the router's minus its own changes the other way."""
    cell = next(iter(by_cell(records).values()))
    own = {id for client in cell.clients if client.index == 0 for id in client.ids}
    stamps = ("intended", "sent", "first_received", "last_received")

    def moved(record: RequestRecord) -> RequestRecord:
        known = {name: time + shift for name in stamps if (time := getattr(record, name)) is not None}
        return replace(record, **known) if record.id in own else record

    def measured(record: ClockRecord) -> ClockRecord:
        return replace(record, offset=record.offset - shift) if record.role == "client-0" else record

    found = verdict_of(edited(edited(records, RequestRecord, moved), ClockRecord, measured), folder)
    assert found.verdict == INVALID
    (offset,) = [reason for reason in found.reasons if "share a host" in reason]
    assert offset.startswith("client-0's clock is ")
    assert 2.5 < float(offset.split(" is ")[1].split(" ms")[0]) < 3.5
    assert any("out of order" in reason for reason in found.reasons)


def test_a_worker_that_slows_down_is_named(folder: Path, records: Records) -> None:
    """Every step of the second half takes a tenth more, and comes as much later."""
    steps = [record for record in records if isinstance(record, StepRecord)]
    half, delay, slowed = steps[len(steps) // 2].begin, 0, {}
    for step in steps:
        before = delay
        delay += (step.end - step.begin) // 10 if step.begin >= half else 0
        slowed[step.begin] = replace(step, begin=step.begin + before, end=step.end + delay)
    found = verdict_of(edited(records, StepRecord, lambda step: slowed[step.begin]), folder)
    (reason,) = only_late(found.reasons)
    assert found.verdict == SUSPECT
    share = float(reason.split("took ")[1].split(" %")[0])
    assert 8 <= share <= 12
    assert reason.endswith("longer than those of the first")


def test_a_paced_engine_that_could_not_keep_its_times_is_named(tmp_path: Path, folder: Path) -> None:
    """Sixty replies one after another take 2.1 s by the profile; the worker is held for 0.3 s of it."""
    crowd = ("--policies", "one", "--arrivals", "at-once", "--requests", "60", "--max-tokens", "16", "--quick")
    profile = folder.parents[1] / "quick.json"
    with started(
        *("rush", "--engine", "paced", "--profile", str(profile), *crowd, "--out", str(tmp_path / "runs")), cwd=tmp_path
    ) as rush:
        held = until_serving(tmp_path / "runs")
        worker = role_of(rush.pid, "worker")
        worker.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        worker.send_signal(signal.SIGCONT)
        assert rush.wait(timeout=30) == 0
    (cell,) = summary(held)["cells"]
    (reason,) = [each for each in cell["reasons"] if each.startswith("the paced engine's steps took")]
    assert cell["verdict"] == SUSPECT
    assert 10 <= float(reason.split("took ")[1].split(" %")[0]) <= 40
