"""Runs `headway` as a user does, in processes of its own, and waits for what it does with deadlines."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil

from experiments.analysis import by_cell
from protocol.records import StepRecord, read, read_folder

HEADWAY = [sys.executable, "-m", "experiments"]
ROLES = ("router", "worker", "clients")


def headway(*arguments: str, cwd: Path, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """A whole command, to its end."""
    return subprocess.run(
        [*HEADWAY, *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )


@contextmanager
def started(*arguments: str, cwd: Path, out: Path | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that goes on, its standard output in the file `out`; it and all its children are gone afterwards."""
    with (out or Path(os.devnull)).open("wb") as stdout:
        process = subprocess.Popen([*HEADWAY, *arguments], cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout)
    family = [psutil.Process(process.pid)]
    try:
        yield process
    finally:
        family += children(process.pid)
        for member in family:
            if member.is_running():
                member.kill()
        process.wait()


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def role_of(pid: int, role: str) -> psutil.Process:
    """A child of `pid` that plays `role`, once it is there."""

    def found() -> psutil.Process | None:
        for child in children(pid):
            line = child.cmdline()
            if len(line) > 3 and line[3] == role:
                return child
        return None

    return until(found, f"a {role}")


def until(look: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """What `look` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {seconds} s")


def until_serving(out: Path) -> Path:
    """The run folder below `out`, once its worker has decoded for somebody."""

    def folder() -> Path | None:
        for file in out.glob("*/worker.msgpack"):
            if sum(isinstance(record, StepRecord) for record in read(file)) > 20:
                return file.parent
        return None

    return until(folder, "step of the engine")


def run_folder(out: Path) -> Path:
    """The one run folder below `out`."""
    (folder,) = out.iterdir()
    return folder


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((folder / "summary.json").read_bytes())
    return found


def requests(folder: Path, cell: int = 0) -> list[Any]:
    """The merged request records of a run's cell, by id."""
    cells = by_cell(read_folder(folder))
    return cells[sorted(cells)[cell]].requests
