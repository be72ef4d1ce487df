"""A study whose worker is killed goes on with the next setting; one that is interrupted keeps what it has measured."""

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import orjson

from protocol.wire import ipc_folder
from tests.experiments.commands import HEADWAY, children, role_of, started, summary, until, until_serving
from tests.experiments.models import model  # noqa: F401 (a fixture)

SWEEP = ("sweep", "--engine", "paced", "--batches", "1,2", "--max-tokens", "300")


def test_a_killed_worker_costs_one_row_and_the_others_go_on(tmp_path: Path) -> None:
    with started(*SWEEP, "--out", str(tmp_path / "runs"), cwd=tmp_path) as sweep:
        folder = until_serving(tmp_path / "runs")
        role_of(sweep.pid, "worker").kill()
        assert sweep.wait(timeout=30) == 1
        assert not children(sweep.pid)
    found = summary(folder)
    assert not found["complete"]
    assert "001-at-once" in found["reason"]
    one, two = found["findings"]["rows"]
    assert one["tokens_per_s"] is None
    assert "worker" in one["lost"]
    assert (two["tokens"], two["lost"]) == (600, None)
    assert two["gain"] is None
    assert (folder / "profile-native.json").is_file()


def test_ctrl_c_keeps_the_rows_that_were_measured(tmp_path: Path) -> None:
    with started(*SWEEP, "--out", str(tmp_path / "runs"), cwd=tmp_path) as sweep:
        folder = until_serving(tmp_path / "runs")
        second = "native-002-at-once.client-0.msgpack"
        until(lambda: (folder / second).exists() and (folder / second).stat().st_size, "second batch")
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(timeout=10) == 130
        assert not children(sweep.pid)
    found = summary(folder)
    assert (found["complete"], found["reason"]) == (False, "interrupted")
    one, two = found["findings"]["rows"]
    assert one["tokens"] == 300
    assert two["tokens_per_s"] is None
    assert two["lost"]


def test_a_worker_asked_to_batch_a_quantized_cache_says_why_not(tmp_path: Path, model: Path) -> None:  # noqa: F811
    sockets = ipc_folder()
    front, back = f"ipc://{sockets}/front", f"ipc://{sockets}/back"
    with ExitStack() as stack:
        said = tmp_path / "router"
        router = stack.enter_context(
            started("router", "--front", front, "--back", back, "--policy", "static:n=4", cwd=tmp_path, out=said)
        )
        stack.enter_context(started("clients", "--router", front, "--arrivals", "at-once", cwd=tmp_path))
        worker = subprocess.run(
            [*HEADWAY, "worker", "--router", back, "--model", str(model), "--kv-bits", "8"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert worker.returncode == 1
        assert worker.stderr.splitlines()[-1].startswith("Error: a quantized KV cache cannot be batched")
        lost = until(
            lambda: [line for line in said.read_bytes().splitlines() if b"worker_lost" in line], "the router's word"
        )
        assert "a quantized KV cache cannot be batched" in orjson.loads(lost[0])["detail"]
        router.terminate()
        router.wait(10)
    for left in sockets.iterdir():
        left.unlink()
    sockets.rmdir()
