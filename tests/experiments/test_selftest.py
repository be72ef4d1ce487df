"""The self-test measures every property it names, keeps what it found, and later runs cite it."""

import os
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.manifest import last_selftest
from experiments.selftest_findings import Property, findings, lindley
from tests.experiments.commands import HEADWAY, run_folder

PROPERTIES = 15


def test_waits_by_hand() -> None:
    """Served 2 s each: the second comes after 1 s and waits 1 s, the third with it and waits 3, the last not."""
    assert lindley([0, 1, 1, 10], [2, 2, 2, 2]) == [0, 1, 3, 0]


@given(st.lists(st.floats(0, 5), min_size=1, max_size=30), st.floats(0.1, 3))
def test_one_server_is_never_idle_while_somebody_waits(gaps: list[float], service: float) -> None:
    arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    starts = [at + wait for at, wait in zip(arrivals, lindley(arrivals, [service] * len(arrivals)), strict=True)]
    for i in range(1, len(starts)):
        assert starts[i] == pytest.approx(max(arrivals[i], starts[i - 1] + service))


@pytest.mark.parametrize(
    ("found", "passed"),
    [
        (Property("a", 0.1, "ms", 0.1), True),
        (Property("a", 0.2, "ms", 0.1), False),
        (Property("a", 2.0, "/s", 1.0, at_least=True), True),
        (Property("a", 0.5, "/s", 1.0, at_least=True), False),
        (Property("a", None, "ms", 0.1), None),
        (Property("a", 3.0, "/s"), None),
    ],
)
def test_a_property_passes_on_its_own_side_of_the_goal(found: Property, passed: bool | None) -> None:
    assert found.passed is passed


def test_what_was_not_measured_passes_nothing() -> None:
    planned = [{"cell": name, "label": name} for name in ("1-idle", "2-busy", "3-most", "4-relay", "5-known")]
    found = findings({"planned": planned, "reason": "interrupted"}, {})
    assert found["passed"] is None
    assert len(found["properties"]) == PROPERTIES
    fit = [each for each in found["properties"] if each["value"] is not None]
    assert [each["passed"] for each in fit] == [True, True]  # the arrivals need no run
    assert set(found["lost"].values()) == {"interrupted"}


def test_every_property_is_measured_on_real_processes_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the goals are met is this machine's affair; a busy one misses some."""
    import subprocess

    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    assert last_selftest() is None
    done = subprocess.run(
        [*HEADWAY, "selftest", "--quick", "--json", "--out", "runs"],
        cwd=tmp_path, capture_output=True, text=True, timeout=90, env=os.environ, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = orjson.loads(done.stdout)
    assert len(found["properties"]) == PROPERTIES
    assert all(each["value"] is not None for each in found["properties"])
    by_name = {each["name"]: each for each in found["properties"]}
    assert by_name["mean wait, away from Lindley's"]["passed"]
    assert by_name["index of dispersion, away from 1"]["passed"]
    assert not found["lost"]
    assert orjson.loads((run_folder(tmp_path / "runs") / "summary.json").read_bytes())["findings"] == found
