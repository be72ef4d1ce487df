"""The self-test: how well this machine keeps time and moves messages, measured with a model that costs nothing."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from experiments.cell import Cell
from experiments.run import Run
from experiments.run_folder import write_json
from worker.options import Server
from worker.profile import CostProfile, DecodePoint, ReadCost, as_json

RATE = 200.0
SERVICE_S, KNOWN_RATE = 0.02, 40.0
STREAMS, STREAM_TOKENS = 32, 8_000
IDLE, BUSY, MOST, RELAY, KNOWN = "1-idle", "2-busy", "3-most", "4-relay", "5-known"

# At the worker's priority, in its session: what a model's arithmetic does to the clients. It ends with its parent,
# also with one that was killed.
BURN = "import os, numpy; os.nice(10); a = numpy.ones((512, 512)); up = os.getppid()\nwhile os.getppid() == up: a @ a"


@dataclass(frozen=True, slots=True)
class SelfTestSettings:
    """Plain values, as they stand in the manifest. `seconds` is how long requests are sent, idle and busy each, with
    arrivals of `seed`; `known` counts the requests of the known answer."""

    server: Server
    seconds: int
    known: int
    seed: int


def cells(settings: SelfTestSettings) -> list[Cell]:
    """Lag idle and busy; most requests and most tokens a second; the queue whose waits are known."""
    sent = Cell(IDLE, "idle", "continuous", round(settings.seconds * RATE), 1, rate=RATE, seed=settings.seed)
    return [
        sent,
        replace(sent, name=BUSY, label="every core busy"),
        Cell(MOST, "as many requests as can be", "continuous", 4_000, 1, queue=4_000),
        Cell(RELAY, f"{STREAMS} streams", f"continuous:seats={STREAMS}", STREAMS, STREAM_TOKENS),
        Cell(KNOWN, "known answer", "one", settings.known, 1, rate=KNOWN_RATE),
    ]


def _shortest_prompt(folder: Path) -> Path:
    """Prompts of one word: what the instrument takes at the least."""
    path = folder / "one-word.jsonl"
    path.write_bytes(orjson.dumps({"prompt": "hello"}) + b"\n")
    return path


def measure(settings: SelfTestSettings, run: Run) -> None:
    """Every cell, on the instant profile but for the last one, whose requests take 20 ms each."""
    prompts = str(_shortest_prompt(run.folder))
    planned = [replace(cell, prompts=prompts) for cell in cells(settings)]
    run.announce(planned)
    run.serve(settings.server)
    for number, cell in enumerate(planned, start=1):
        if cell.name == KNOWN:
            run.serve(replace(settings.server, profile=str(_fixed_service(run.folder))))
        with burning(os.cpu_count() or 1) if cell.name == BUSY else contextlib.nullcontext():
            run.attempt(cell, f"{number}/{len(planned)} {cell.label}")


def _fixed_service(folder: Path) -> Path:
    """A profile whose one decode step is the whole service."""
    path = folder / "fixed-service.json"
    profile = CostProfile("fixed-service", "the self-test", (DecodePoint(1, 0, SERVICE_S),), ReadCost(0.0, 0.0, 0.0))
    write_json(path, as_json(profile))
    return path


@contextlib.contextmanager
def burning(cores: int) -> Iterator[None]:
    """Every core kept busy meanwhile."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    started: Sequence[subprocess.Popen[bytes]] = [
        subprocess.Popen([sys.executable, "-c", BURN], env=environment, process_group=0) for _ in range(cores)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
