"""The rest of the study as whole commands, real processes on a small real model: tables agree with the records."""

import signal
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from rich.console import Console

from experiments.analysis import by_cell
from experiments.launch import launch
from experiments.sweep import SweepSettings, measure
from protocol.records import read_folder
from tests.experiments.commands import headway, run_folder, summary
from tests.experiments.models import model  # noqa: F401 (a fixture)
from worker.options import Server
from worker.profile import load_profile

pytestmark = pytest.mark.alone


def run(tmp_path: Path, *arguments: str, status: int = 0) -> tuple[Path, dict[str, Any], str]:
    """The folder, the findings and the output of a command."""
    done = headway(*arguments, "--out", "runs", cwd=tmp_path, timeout=100)
    assert done.returncode == status, done.stdout + done.stderr
    folder = run_folder(tmp_path / "runs")
    return folder, summary(folder)["findings"], done.stdout


def rewritten(folder: Path) -> None:
    """`headway analyse` gives the same summary again, byte for byte, and the same table."""
    before = (folder / "summary.json").read_bytes()
    done = headway("analyse", str(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "summary.json").read_bytes() == before


# --- sweep ---------------------------------------------------------------------------------------------------


def test_a_sweep_of_the_study_s_profile_gives_the_study_s_table(tmp_path: Path) -> None:
    folder, found, printed = run(
        tmp_path, "sweep", "--engine", "paced", "--batches", "8,1", "--max-tokens", "32", "--reference"
    )
    truth = load_profile("qwen3-4b-4bit-m4max")
    assert [row["replies"] for row in found["rows"]] == [1, 8]
    for row in found["rows"]:
        rows = row["replies"]
        assert row["tokens"] == 32 * rows
        assert row["done_s"] == pytest.approx(0.12 * rows + 32 * truth.decode_s(rows, 0), rel=0.05)
        assert row["tokens_per_s_per_reply"] == pytest.approx(row["tokens_per_s"] / rows)
    assert "ours / the study's" in printed
    assert found["limits"][0]["limit_tokens_per_s"] is None
    fitted = load_profile(str(folder / "profile-native.json"))
    for point in fitted.decode:  # between 1 and 8 rows there are but a few steps of each
        within = 0.05 if point.rows in (1, 8) else 0.2
        assert point.s == pytest.approx(truth.decode_s(point.rows, 0), rel=within)
    assert fitted.read_s(8, 25) == pytest.approx(0.96, rel=0.05)
    rewritten(folder)


def test_a_sweep_on_a_model_agrees_with_its_records(tmp_path: Path, model: Path) -> None:  # noqa: F811
    folder, found, printed = run(
        tmp_path, "sweep", "--model", str(model), "--weights", "4bit,float32", "--batches", "1,4", "--max-tokens", "12"
    )
    cells = by_cell(read_folder(folder))
    assert [(row["weights"], row["replies"]) for row in found["rows"]] == [
        ("4bit", 1), ("4bit", 4), ("float32", 1), ("float32", 4),
    ]  # fmt: skip
    for row in found["rows"]:
        requests = cells[row["cell"]].requests
        assert row["tokens"] == sum(len(r.tokens or ()) for r in requests) == 12 * row["replies"]
        lasted = max(r.last_received for r in requests) - min(r.intended for r in requests)
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / lasted * 1e9)
        assert {r.departure for r in requests} == {0}
        steps = cells[row["cell"]].steps
        assert sum(step.tokens for step in steps) == row["tokens"]
        assert {step.decoding for step in steps if step.decoding} == {row["replies"]}
    four, full = found["limits"]
    assert four["bytes_per_step"] < full["bytes_per_step"] / 4
    for limit in (four, full):
        assert limit["limit_tokens_per_s"] == pytest.approx(limit["bandwidth_bytes_per_s"] / limit["bytes_per_step"])
    assert four["dtype"] == "float32, 4-bit weights"
    for kind in ("4bit", "float32"):
        assert load_profile(str(folder / f"profile-{kind}.json")).decode[0].s > 0
    assert "Tokens/s in total, by type of weights" in printed
    rewritten(folder)


# --- prefix --------------------------------------------------------------------------------------------------


def test_prefix_reads_the_start_once_and_answers_the_same(tmp_path: Path, model: Path) -> None:  # noqa: F811
    folder, found, printed = run(tmp_path, "prefix", "--model", str(model), "--emails", "5", "--reference")
    cold, cached = found["rows"]
    assert cold["prompt_tokens"] == cold["prompt_tokens_read"] == cached["prompt_tokens"]
    assert cold["shared_tokens"] == 0
    assert cached["prompt_tokens_read"] + cached["shared_tokens"] == pytest.approx(cached["prompt_tokens"], abs=20)
    assert (cold["prefix_hits"], cold["prefix_misses"], cold["prefix_bytes"]) == (0, 0, 0)
    assert (cached["prefix_hits"], cached["prefix_misses"]) == (4, 1)
    requests = by_cell(read_folder(folder))["2-cached"].requests
    (shared,) = {r.reused for r in requests if r.reused}
    assert shared == cached["shared_tokens"] > 6_000
    assert cached["prefix_bytes"] == shared * 2 * 64 * 4
    assert found["sameness"]["compared"] == 5
    assert all(each["near_tie"] for each in found["sameness"]["differences"])
    assert "4 hits, 1 misses" in printed
    assert "1,864" in printed
    rewritten(folder)


def test_with_a_timestamp_first_nothing_can_be_reused(tmp_path: Path, model: Path) -> None:  # noqa: F811
    _, found, printed = run(tmp_path, "prefix", "--model", str(model), "--emails", "3", "--timestamp-first")
    _, cached = found["rows"]
    assert (cached["prefix_hits"], cached["prefix_misses"]) == (0, 3)
    assert cached["prompt_tokens_read"] == cached["prompt_tokens"]
    assert "what never changes goes first" in printed


def test_prefix_as_a_rush(tmp_path: Path, model: Path) -> None:  # noqa: F811
    folder, found, printed = run(tmp_path, "prefix", "--model", str(model), "--emails", "6", "--rate", "20")
    assert [row["completed"] for row in found["rows"]] == [6, 6]
    assert found["rows"][1]["prefix_hits"] == 5
    assert "20 a second, continuous" in printed
    assert [cell["policy"] for cell in summary(folder)["cells"]] == ["continuous", "continuous"]


def test_a_rush_shares_what_its_prompts_file_says_and_survives_cancelled_hits(
    tmp_path: Path,
    model: Path,  # noqa: F811
) -> None:
    """With a timeout that some requests do not live to see, among them such as found a start to reuse."""
    lines = [
        {"messages": [{"role": "system", "content": "Be kind. " * 60}, {"role": "user", "content": f"Say {n}."}],
         "shared_turns": 1}
        for n in range(40)
    ]  # fmt: skip
    (tmp_path / "prompts.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    done = headway(
        *("rush", "--model", str(model), "--policies", "one,continuous", "--rates", "100", "--requests", "40"),
        *("--max-tokens", "200", "--ignore-eos", "--prompts", "prompts.jsonl", "--share-prefix", "--timeout", "0.4"),
        *("--out", "runs", "--quick"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_folder(tmp_path / "runs")
    for cell, figures in zip(sorted(by_cell(read_folder(folder))), summary(folder)["cells"], strict=True):
        requests = by_cell(read_folder(folder))[cell].requests
        assert figures["cancelled"] > 0
        assert figures["cancelled"] + figures["completed"] == 40
        assert {request.reused for request in requests} <= {None, 0, max(r.reused or 0 for r in requests)}
        assert max(r.reused or 0 for r in requests) > 500


# --- repeat, kv-quant ----------------------------------------------------------------------------------------


def test_repeat_compares_alone_and_batches(tmp_path: Path, model: Path) -> None:  # noqa: F811
    folder, found, printed = run(
        tmp_path, "repeat", "--model", str(model), "--requests", "4", "--times", "2", "--batches", "4",
        "--max-tokens", "12",
    )  # fmt: skip
    assert [row["label"] for row in found["rows"]] == ["alone, time 2", "in batches of 4"]
    assert [row["compared"] for row in found["rows"]] == [4, 4]
    assert found["rows"][0]["same"] == 4
    assert all(each["near_tie"] for row in found["rows"] for each in row["differences"])
    assert "alone, time 1" in printed
    rewritten(folder)


def test_kv_quant_names_what_does_not_fit_and_goes_on(tmp_path: Path, model: Path) -> None:  # noqa: F811
    """A token is a byte here, so 300 tokens are about 1,000 and 5,000 are beyond the context."""
    folder, found, printed = run(
        tmp_path, "kv-quant", "--model", str(model), "--contexts", "300,5000", "--questions", "2", "--bits", "16,4"
    )  # fmt: skip
    rows = {(row["kv_bits"], row["context"]): row for row in found["rows"]}
    whole, quantized = rows[16, 300], rows[4, 300]
    assert (whole["lost"], quantized["lost"]) == (None, None)
    assert quantized["kv_bytes"] / whole["kv_bytes"] == pytest.approx(5 / 32)
    assert quantized["saved"] == pytest.approx(27 / 32)
    assert whole["read_p50_s"] > 0
    for bits in (16, 4):
        assert rows[bits, 5000]["found"] is None
        assert "exceed the model's context of 16000" in rows[bits, 5000]["lost"]
    assert printed.count("exceed the model's context") == 2
    assert "cannot be batched" in printed
    rewritten(folder)


# --- what cannot be --------------------------------------------------------------------------------------------


def mistake(tmp_path: Path, arguments: Sequence[str]) -> str:
    done = headway(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("repeat", "--batches", "16"), "a batch of 16 cannot be had of 8 prompts"),
        (("rush", "--share-prefix", "--engine", "paced"), "--share-prefix needs a model that serves many"),
        (("sweep", "--engine", "paced", "--weights", "4bit"), "--weights are a model's"),
        (("rush", "--engine", "paced", "--policies", "one", "--kv-bits", "8"), "--kv-bits are a model's"),
        (("sweep", "--batches", "0,4"), "--batches takes different whole numbers from 1"),
        (("sweep", "--batches", "4,4"), "--batches takes different whole numbers"),
        (("sweep", "--weights", "3bit"), "--weights takes some of native, 4bit, 8bit, bf16, float32"),
        (("sweep", "--engine", "paced", "--profile", "nobody"), "unknown profile 'nobody'"),
        (("prefix", "--rate", "-1"), "a rate is a number of requests per second above 0"),
        (("prefix", "--model", "nowhere"), "there is no model 'nowhere'"),
        (("prefix", "--prefix-cache", "much"), "an amount of memory is such as 48GB"),
        (("repeat", "--batches", "many"), "--batches takes different whole numbers"),
        (("repeat", "--workload", "mails"), "no workload called 'mails'"),
        (("kv-quant", "--bits", "7"), "--bits takes some of 16, 8, 4"),
        (("kv-quant", "--contexts", "100"), "a pile has 200 to"),
        (("rush", "--kv-bits", "4", "--policies", "one,static"), "a quantized KV cache cannot be batched"),
    ],
)
def test_a_mistake_is_found_before_anything_starts(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in mistake(tmp_path, arguments)


def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    for command in ("sweep", "prefix", "repeat", "kv-quant", "kv-size"):
        done = headway(command, "--dry-run", *(["Qwen3-8B"] if command == "kv-size" else []), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Plan: ")
    assert not (tmp_path / "runs").exists()


def test_a_setting_that_memory_does_not_hold_says_so_and_the_others_go_on(
    tmp_path: Path,
    model: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In 800 kB, beside 560 kB of weights, the cache of one reply has room, and that of 16 has not."""
    machine = psutil.virtual_memory()._replace(total=800_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    settings = SweepSettings(Server(model=str(model)), ("float32",), (1, 16), 8)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run, made = launch(
            "sweep",
            asdict(settings),
            settings.server,
            tmp_path,
            Console(quiet=True),
            lambda run: partial(measure, settings, run),
        )
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert made.complete
    assert made.findings is not None
    one, many = made.findings["rows"]
    assert one["tokens"] == 8
    assert many["lost"].startswith("not enough memory: 16 requests of up to")
    assert many["tokens_per_s"] is None
    rewritten(run.folder)
