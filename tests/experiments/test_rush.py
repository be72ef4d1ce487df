"""The rush from the command line to the summary, on the paced engine: the study's figures, and what users may ask."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from clients.arrivals import ArrivalPlan, arrival_times
from protocol.records import CellRecord, read
from tests.experiments.commands import headway, requests, run_folder, summary
from worker.profile import ReadCost, as_json, load_profile

pytestmark = pytest.mark.alone

FIELDS = """
label policy params rate load seed requests sent unsent late completed rejected failed cancelled unfinished
ttft writing reply queue_wait tpot gap send_lag done_s tokens tokens_per_s prompt_tokens departures
peak_seats peak_memory_bytes swap_bytes
"""
PACED = ("rush", "--engine", "paced")
BRIEF = (*PACED, "--rates", "20", "--requests", "12", "--max-tokens", "8")


def rushed(tmp_path: Path, *arguments: str, timeout: float = 60) -> tuple[Path, str]:
    """A complete run: its folder and what it printed."""
    done = headway(*arguments, "--out", str(tmp_path / "runs"), cwd=tmp_path, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_folder(tmp_path / "runs"), done.stdout


SPEED = 2


@pytest.mark.timeout(120)
def test_the_study_is_reproduced_at_twice_its_speed(tmp_path: Path) -> None:
    """Its figures at 4/s, by real processes on the profile of its machine, all times halved to spare the suite half a
    minute. --quick only leaves the drift cell out here."""
    profile = load_profile("qwen3-4b-4bit-m4max")
    costs = (profile.read.per_chunk_s, profile.read.per_prompt_s, profile.read.per_token_s)
    read = ReadCost(*(cost / SPEED for cost in costs))
    faster = replace(profile, decode=tuple(replace(p, s=p.s / SPEED) for p in profile.decode), read=read)
    (tmp_path / "faster.json").write_bytes(orjson.dumps(as_json(faster)))
    folder, printed = rushed(
        tmp_path,
        *(*PACED, "--profile", "faster.json", "--quick", "--rates", str(4 * SPEED), "--requests", "40"),
        *("--policy", "one", "--policy", f"static:wait={0.5 / SPEED}", "--policy", "continuous"),
        *("--max-tokens", "128"),
        timeout=110,
    )
    one, static, continuous = sorted(
        summary(folder)["cells"], key=lambda cell: ["one", "static", "continuous"].index(cell["policy"])
    )
    assert one["ttft"]["p50"] * SPEED == pytest.approx(13.82, rel=0.10)
    assert static["ttft"]["p50"] * SPEED == pytest.approx(4.61, rel=0.10)
    assert static["departures"] == [2, 7, 8, 8, 8, 7]
    assert continuous["ttft"]["p50"] * SPEED == pytest.approx(0.46, rel=0.15)
    assert 29 <= continuous["peak_seats"] <= 40
    for cell, done_s in ((one, 37.1), (static, 17.7), (continuous, 13.7)):
        assert cell["done_s"] * SPEED == pytest.approx(done_s, rel=0.10)
        assert cell["completed"] == cell["sent"] == 40
        assert cell["tokens"] == 40 * 128
        assert cell["order_violations"] == 0
    assert "first word" in printed


def test_seats_are_never_exceeded_also_at_the_engine(tmp_path: Path) -> None:
    folder, _ = rushed(
        tmp_path,
        *(*PACED, "--policy", "continuous:seats=8", "--arrivals", "at-once", "--requests", "40", "--max-tokens", "16"),
    )
    (cell,) = summary(folder)["cells"]
    assert cell["peak_seats"] == 8
    assert cell["completed"] == 40
    assert cell["rate"] is None
    passages = requests(folder)
    moments = sorted([(r.admitted, 1) for r in passages] + [(r.ended, -1) for r in passages])
    running = peak = 0
    for _, change in sorted(moments, key=lambda moment: (moment[0], moment[1])):
        running += change
        peak = max(peak, running)
    assert peak == 8


@pytest.mark.parametrize("clients", [1, 2, 8])
def test_intended_times_do_not_depend_on_the_number_of_clients(tmp_path: Path, clients: int) -> None:
    folder, _ = rushed(
        tmp_path,
        *(*PACED, "--profile", "instant", "--policies", "continuous", "--rates", "40", "--requests", "40"),
        *("--max-tokens", "4", "--clients", str(clients)),
    )
    (cell,) = summary(folder)["cells"]
    assert cell["completed"] == 40
    records = requests(folder)
    assert [record.id for record in records] == list(range(40))
    zero = records[0].intended - arrival_times(ArrivalPlan("poisson", 40.0, 12), 1)[0]
    last = (records[39].intended - zero) / 1e9
    assert last == pytest.approx(0.8647, abs=0.00005)  # the study's 8.647 s, at ten times its rate
    assert tuple(r.intended - zero for r in records) == arrival_times(ArrivalPlan("poisson", 40.0, 12), 40)


def test_auto_rates_are_the_studys_loads(tmp_path: Path) -> None:
    folder, printed = rushed(
        tmp_path, *PACED, "--policies", "continuous", "--requests", "6", "--max-tokens", "16", "--quick"
    )
    found = summary(folder)
    assert [cell["load"] for cell in found["cells"]] == [1, 4]
    alone = found["calibration"]
    capacity = alone["completed"] / alone["done_s"]
    for cell in found["cells"]:
        assert cell["rate"] == float(f"{cell['load'] / 1.08 * capacity:.2g}")
    assert "One at a time this machine does" in printed


def test_a_full_queue_rejects_and_the_rest_go_on(tmp_path: Path) -> None:
    folder, printed = rushed(
        tmp_path,
        *(
            *PACED,
            "--policies",
            "one",
            "--arrivals",
            "at-once",
            "--requests",
            "10",
            "--max-tokens",
            "8",
            "--queue",
            "3",
        ),
    )
    (cell,) = summary(folder)["cells"]
    # Of ten at once, one enters, three wait; whoever comes while they do is turned away.
    assert cell["rejected"] >= 5
    assert cell["completed"] == 10 - cell["rejected"]
    assert f"{cell['rejected']} rejected" in printed
    turned_away = [r for r in requests(folder) if r.end == "rejected"]
    assert all("queue is full (3 waiting)" in r.detail for r in turned_away)


def test_the_calibration_is_not_bound_by_the_limits_of_the_run(tmp_path: Path) -> None:
    folder, _ = rushed(
        tmp_path,
        *(*PACED, "--policies", "continuous", "--quick", "--requests", "4", "--max-tokens", "8"),
        *("--queue", "1", "--timeout", "0.3"),
    )
    assert summary(folder)["calibration"]["completed"] == 3


def test_like_sees_that_the_prompts_changed(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}')
    folder, _ = rushed(tmp_path, *BRIEF, "--policies", "continuous", "--prompts", str(prompts))
    prompts.write_text('{"prompt": "two"}')
    again = headway("rush", "--like", str(folder), "--out", str(tmp_path / "again"), cwd=tmp_path)
    assert "inputs prompts:" in again.stdout


def test_a_timeout_cancels_in_the_queue_and_in_the_seat(tmp_path: Path) -> None:
    folder, _ = rushed(
        tmp_path,
        *(
            *PACED,
            "--policies",
            "one",
            "--arrivals",
            "at-once",
            "--requests",
            "4",
            "--max-tokens",
            "64",
            "--timeout",
            "0.7",
        ),
    )
    (cell,) = summary(folder)["cells"]
    assert (cell["completed"], cell["cancelled"]) == (1, 3)
    late = [r for r in requests(folder) if r.end == "cancelled"]
    assert sorted(r.started is not None for r in late) == [False, False, True]
    assert all("timed out after 0.7 s" in r.detail for r in late)


def test_a_prompt_beyond_the_context_fails_by_name_and_number(tmp_path: Path) -> None:
    lines = [{"prompt": "short"}, {"prompt": "word " * 131_072, "user": "ann"}, {"prompt": "short too"}]
    (tmp_path / "prompts.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    folder, _ = rushed(
        tmp_path,
        *(*PACED, "--policies", "continuous", "--rates", "20", "--requests", "3", "--max-tokens", "4"),
        *("--prompts", str(tmp_path / "prompts.jsonl")),
    )
    first, long, last = requests(folder)
    assert (first.end, long.end, last.end) == ("completed", "rejected", "completed")
    assert "request 1 of ann: a prompt of 131072 tokens" in long.detail
    assert "context of 131072" in long.detail


def test_exact_lengths_and_users_come_from_the_prompts_file(tmp_path: Path) -> None:
    lines = [{"prompt": "a b c", "exact_tokens": 3, "user": "ann"}, {"prompt": "d", "max_tokens": 5, "user": "bo"}]
    (tmp_path / "prompts.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    folder, _ = rushed(tmp_path, *BRIEF, "--policies", "static", "--prompts", str(tmp_path / "prompts.jsonl"))
    assert [len(r.tokens) for r in requests(folder)] == [3, 5] * 6
    assert [r.user for r in requests(folder)] == ["ann", "bo"] * 6
    assert requests(folder)[0].text == "1 2 3"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with three policies and the drift cell, on replies of several lengths."""
    return rushed(tmp_path_factory.mktemp("mixed"), *BRIEF, "--workload", "mixed", "--max-tokens", "32")[0]


def test_mixed_replies_are_as_long_under_every_policy(mixed: Path) -> None:
    lengths = [[len(r.tokens) for r in requests(mixed, cell)] for cell in range(3)]
    assert lengths[0] == lengths[1] == lengths[2]
    assert len(set(lengths[0])) > 2


def test_the_worker_accounts_for_every_cell_once(mixed: Path) -> None:
    """A second account, of a worker that met the leaving router again, would say nothing was in memory."""
    accounts = [record.cell for record in read(mixed / "worker.msgpack") if isinstance(record, CellRecord)]
    planned = orjson.loads((mixed / "manifest.json").read_bytes())["planned"]
    assert sorted(accounts) == sorted(cell["cell"] for cell in planned)


def test_like_repeats_a_run_and_analyse_rebuilds_it(tmp_path: Path) -> None:
    folder, _ = rushed(tmp_path, *BRIEF, "--policy", "static:n=4,wait=1")
    before = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    assert headway("analyse", str(folder), cwd=tmp_path).returncode == 0
    assert (folder / "summary.json").read_bytes() == before

    again = headway("rush", "--like", str(folder), "--out", str(tmp_path / "again"), cwd=tmp_path)
    assert again.returncode == 0
    assert "Nothing that a measurement depends on differs." in again.stdout
    repeated = summary(run_folder(tmp_path / "again"))["cells"]
    assert [c["label"] for c in repeated] == [c["label"] for c in orjson.loads(before)["cells"]]
    assert repeated[0]["departures"] == [4, 4, 4]

    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    manifest["versions"]["mlx"] = "0.1"
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
    other = headway("rush", "--like", str(folder), "--out", str(tmp_path / "other"), cwd=tmp_path)
    assert "versions mlx: '0.1' then" in other.stdout


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    done = headway(*PACED, "--rates", "1,2", "--dry-run", "--out", str(tmp_path / "runs"), cwd=tmp_path)
    assert done.returncode == 0
    assert "7 cells of 40 requests (280 in all)" in done.stdout
    assert "minutes" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_the_summary_has_every_field_and_no_invented_figure(tmp_path: Path) -> None:
    folder, _ = rushed(tmp_path, *BRIEF, "--policies", "one", "--max-tokens", "1")
    found = summary(folder)
    assert found["schema"] == 1
    assert found["experiment"] == "rush"
    (cell,) = found["cells"]
    assert set(FIELDS.split()) <= set(cell)
    assert cell["ttft"]["n"] == 12
    # One token a reply: it has a first word, but no time per token and no gap.
    assert cell["tpot"].pop("n") == 0
    assert set(cell["tpot"].values()) == {None}
    assert cell["gap"]["n"] == 0
    assert cell["departures"] is None
    assert cell["peak_memory_bytes"] is None
    assert cell["load"] is None
