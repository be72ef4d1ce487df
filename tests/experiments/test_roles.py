"""The roles started by hand, as from three terminals."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import zmq

from protocol.messages import Bye, Hello, Message, Welcome
from protocol.wire import Dealer, PeerSlow, dealer, ipc_folder
from tests.experiments.commands import headway, requests, started, summary, until

pytestmark = pytest.mark.alone

PACED = ("--engine", "paced")


@pytest.fixture
def ends() -> Iterator[tuple[str, str]]:
    folder = ipc_folder()
    yield f"ipc://{folder}/front", f"ipc://{folder}/back"
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()


def said(path: Path, event: str) -> list[dict[str, Any]]:
    """The router's events of this kind, so far."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line for line in map(orjson.loads, lines) if line["event"] == event]


def test_three_terminals_over_ipc_make_a_run(tmp_path: Path, ends: tuple[str, str]) -> None:
    front, back = ends
    with ExitStack() as stack:
        worker = stack.enter_context(started("worker", *PACED, "--router", back, cwd=tmp_path))
        clients = [
            stack.enter_context(
                started(
                    *("clients", "--router", front, "--index", str(i), "--of", "2", "--rate", "20", "--requests", "10"),
                    *("--max-tokens", "8"),
                    cwd=tmp_path,
                )
            )
            for i in range(2)
        ]
        router = headway(
            "router", "--front", front, "--back", back, "--policy", "static:n=5,wait=2", "--clients", "2", cwd=tmp_path
        )
        assert router.returncode == 0, router.stdout + router.stderr
        assert [client.wait(10) for client in clients] == [0, 0]
        worker.terminate()
        assert worker.wait(5) == 0
    assert headway("analyse", "records", cwd=tmp_path).returncode == 0
    found = summary(tmp_path / "records")
    assert found["complete"]
    (cell,) = found["cells"]
    assert cell["completed"] == 10
    assert cell["departures"] == [5, 5]
    assert cell["rate"] == 20
    assert cell["policy"] == "static"


def test_tcp_on_loopback_works_too(tmp_path: Path) -> None:
    front, back = "tcp://127.0.0.1:47411", "tcp://127.0.0.1:47412"
    with (
        started("worker", *PACED, "--profile", "instant", "--router", back, cwd=tmp_path),
        started("clients", "--router", front, "--rate", "50", "--requests", "5", cwd=tmp_path) as client,
    ):
        router = headway("router", "--front", front, "--back", back, cwd=tmp_path)
        assert router.returncode == 0, router.stdout + router.stderr
        assert client.wait(10) == 0


def test_a_second_worker_is_refused_and_a_restarted_one_serves(tmp_path: Path, ends: tuple[str, str]) -> None:
    """A dead worker's requests fail; new ones fail at once until another registers, which then serves."""
    front, back = ends
    crowd = ("clients", "--router", front, "--rate", "4", "--requests", "60", "--max-tokens", "32")
    lines = tmp_path / "router.jsonl"
    with ExitStack() as stack:
        router = stack.enter_context(started("router", "--front", front, "--back", back, cwd=tmp_path, out=lines))
        first = stack.enter_context(started("worker", *PACED, "--router", back, cwd=tmp_path))
        client = stack.enter_context(started(*crowd, cwd=tmp_path))
        until(lambda: any(line["completed"] >= 2 for line in said(lines, "progress")), "two replies")
        first.kill()
        until(lambda: said(lines, "worker_lost"), "word of the lost worker", 5)
        second = stack.enter_context(started("worker", *PACED, "--router", back, cwd=tmp_path))
        assert client.wait(40) == 0
        assert router.wait(5) == 0
        second.terminate()
        assert second.wait(5) == 0
    records = requests(tmp_path / "records")
    ends_in_order = [record.end for record in sorted(records, key=lambda record: record.intended)]
    assert len(records) == 60
    assert set(ends_in_order) == {"completed", "failed"}
    lost = ends_in_order.index("failed")
    assert ends_in_order[-1] == "completed"
    assert "completed" in ends_in_order[:lost]
    details = {record.detail for record in records if record.end == "failed"}
    assert any("worker" in detail for detail in details)


def test_a_router_outlives_a_killed_client_and_ends_with_the_others(tmp_path: Path, ends: tuple[str, str]) -> None:
    """Found dead by the router's own beat or by a reply that cannot be sent: the rest of the cell goes on."""
    front, back = ends
    lines = tmp_path / "router.jsonl"
    crowd = ("clients", "--router", front, "--of", "2", "--rate", "4", "--requests", "16", "--max-tokens", "8")
    with (
        started("router", "--front", front, "--back", back, "--clients", "2", cwd=tmp_path, out=lines) as router,
        started("worker", *PACED, "--router", back, cwd=tmp_path),
        started(*crowd, "--index", "0", cwd=tmp_path) as first,
        started(*crowd, "--index", "1", cwd=tmp_path) as second,
    ):
        until(lambda: any(line["completed"] >= 2 for line in said(lines, "progress")), "two replies")
        second.kill()
        assert first.wait(20) == 0
        assert router.wait(10) == 1
    assert said(lines, "ended")[0]["lost_clients"] == 1
    assert sum(record.end == "completed" for record in requests(tmp_path / "records")) >= 8


def test_requests_still_running_when_time_is_up_are_unfinished(tmp_path: Path, ends: tuple[str, str]) -> None:
    """A client that is stopped leaves behind what had no end yet: counted, and infinitely slow to an objective."""
    front, back = ends
    lines = tmp_path / "router.jsonl"
    crowd = ("clients", "--router", front, "--arrivals", "at-once", "--requests", "8", "--max-tokens", "32")
    with (
        started("router", "--front", front, "--back", back, "--policy", "one", cwd=tmp_path, out=lines) as router,
        started("worker", *PACED, "--router", back, cwd=tmp_path),
        started(*crowd, cwd=tmp_path) as client,
    ):
        until(lambda: any(line["completed"] >= 2 for line in said(lines, "progress")), "two replies")
        client.terminate()
        assert client.wait(5) == 1
        assert router.wait(5) == 0  # it said goodbye, so it is not lost, whatever was underway to it
    assert headway("analyse", "records", "--objective", "reply.p50<60s", cwd=tmp_path).returncode == 0
    (cell,) = summary(tmp_path / "records")["cells"]
    assert cell["unfinished"] >= 1
    assert cell["completed"] + cell["unfinished"] == cell["sent"] == 8
    assert (cell["objectives"][0]["misses"], cell["objectives"][0]["n"]) == (cell["unfinished"], 8)
    assert cell["verdict"] == "INVALID"
    assert any(reason.endswith("unfinished when the cell ended") for reason in cell["reasons"])


def test_a_router_that_leaves_does_not_welcome_its_worker_again(tmp_path: Path, ends: tuple[str, str]) -> None:
    """The worker says goodbye and looks for the next router at the same endpoint, all in one breath."""
    front, back = ends
    with started("router", "--front", front, "--back", back, cwd=tmp_path) as router, zmq.Context() as context:
        client, worker = dealer(context, front, "run"), dealer(context, back, "run")
        try:
            said_by_router(worker, Hello("worker", "w"), Welcome)
            said_by_router(client, Hello("client", "c"), Welcome)
            said_by_router(worker, None, Bye, then=lambda: client.send(Bye()))
            worker.send(Bye())
            with suppress(PeerSlow):  # it may be gone already
                worker.send(Hello("worker", "w"))
            assert router.wait(5) == 0
            assert not [message for message in iter(worker.receive, None) if isinstance(message, Welcome)]
        finally:
            client.close()
            worker.close()


def said_by_router(line: Dealer, word: Message | None, kind: type, then: Callable[[], None] = lambda: None) -> None:
    """Say `word` once the line is up, do `then`, and wait for an answer of this kind."""
    until(lambda: line.connected, "a router")
    if word is not None:
        line.send(word)
    then()
    until(lambda: isinstance(line.receive(), kind), f"a {kind.__name__}")


def test_a_second_run_into_the_same_records_is_refused(tmp_path: Path, ends: tuple[str, str]) -> None:
    """Two runs in one file would be taken for one."""
    front, back = ends
    alone = ("router", "--front", front, "--back", back, "--start-timeout", "0.5")
    assert headway(*alone, cwd=tmp_path).returncode == 1
    again = headway(*alone, cwd=tmp_path)
    assert again.returncode == 2
    assert "is there already; choose another --out or --cell" in again.stderr


def test_a_router_without_a_worker_says_so_and_ends(tmp_path: Path, ends: tuple[str, str]) -> None:
    front, back = ends
    done = headway("router", "--front", front, "--back", back, "--start-timeout", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "no worker came within 1 s" in done.stderr


def test_a_client_without_a_router_says_so_and_ends(tmp_path: Path, ends: tuple[str, str]) -> None:
    done = headway("clients", "--router", ends[0], "--start-timeout", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "no router answered" in done.stderr


def test_a_second_router_on_the_same_path_is_refused(tmp_path: Path, ends: tuple[str, str]) -> None:
    front, back = ends
    arguments = ("router", "--front", front, "--back", back)
    lines = tmp_path / "router.jsonl"
    with started(*arguments, cwd=tmp_path, out=lines):
        until(lambda: said(lines, "bound"), "a bound router")
        second = headway(*arguments, cwd=tmp_path)
        assert second.returncode == 2
        assert "another router is running there" in second.stderr


def test_idle_processes_use_no_cpu(tmp_path: Path, ends: tuple[str, str]) -> None:
    """They wake up some ten times a second, waiting for a client that does not come, and sleep again at once: at 0.2 ms
    each that is well under 1 % of a core, but a machine that is slow to wake up may take 2 ms."""
    front, back = ends
    lines = tmp_path / "router.jsonl"
    with (
        started("router", "--front", front, "--back", back, "--clients", "2", cwd=tmp_path, out=lines) as r,
        started("worker", *PACED, "--router", back, cwd=tmp_path) as w,
        started("clients", "--router", front, "--of", "2", cwd=tmp_path) as c,
    ):
        until(lambda: said(lines, "worker_joined"), "a worker")
        until(lambda: list(tmp_path.glob("records/*client*")), "a client")
        until(lambda: min(spent(p) for p in (r, w, c)) > 0, "processes")
        assert until(lambda: is_idle([r, w, c]), "two idle seconds", 20)


def spent(process: "subprocess.Popen[bytes]") -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def is_idle(processes: list["subprocess.Popen[bytes]"]) -> bool:
    """Whether each woke up less than 20 times a second, and used less than 5 % of a core, over two seconds."""
    before = [(spent(process), wake_ups(process)) for process in processes]
    psutil.cpu_percent(interval=2)
    after = [(spent(process), wake_ups(process)) for process in processes]
    return all(t - s < 2 * 0.05 and n - w < 2 * 20 for (s, w), (t, n) in zip(before, after, strict=True))


def wake_ups(process: "subprocess.Popen[bytes]") -> int:
    return int(psutil.Process(process.pid).num_ctx_switches().voluntary)


def test_neither_router_nor_clients_load_a_model_library(tmp_path: Path) -> None:
    """MLX costs a second and a half; the worker alone pays it."""
    code = (
        "import sys, router.loop, router.cli, clients.sender, clients.cli, experiments.rush_cli, experiments.rush;"
        "import experiments.tables, worker.cli, worker.loop, worker.paced;"
        "sys.exit(any(name.split('.')[0] in ('mlx', 'mlx_lm', 'transformers') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=30).returncode == 0
