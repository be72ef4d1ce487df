"""What a person sees while a cell runs, and what a script gets: on a terminal, without one, and as JSON."""

import io
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.cell import Cell
from experiments.progress import CellProgress, counts, work_done
from tests.experiments.commands import HEADWAY, headway, run_folder

PACED = ("rush", "--engine", "paced", "--policies", "continuous")
QUICK = (*PACED, "--rates", "8", "--requests", "8", "--max-tokens", "16")
CELL = Cell("c01", "one at 4/s", "one", requests=16, max_tokens=8)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COUNTS = st.integers(0, 10_000)


def progress(waiting: int = 0, running: int = 0, ended: int = 0, tokens: int = 0) -> dict[str, Any]:
    known = {"waiting": waiting, "running": running, "ended": ended, "completed": ended, "tokens": tokens}
    return {"event": "progress", **known}


def test_counts_in_words() -> None:
    assert counts(progress(3, 8, 1, 94), 16, 2.0) == "12 sent, 3 waiting, 8 running, 1 of 16 done, 47 tokens/s"
    assert counts(progress(), 16, 0.0).endswith("0 of 16 done, 0 tokens/s")


@given(COUNTS, COUNTS, COUNTS, st.integers(0, 10**7))
def test_counts_fit_eighty_columns(waiting: int, running: int, ended: int, tokens: int) -> None:
    assert len(counts(progress(waiting, running, ended, tokens), 10_000, 60.0)) <= 78


def test_tokens_tell_of_work_before_any_reply_ends() -> None:
    """Sixteen requests of eight tokens; four tokens of each are half of it."""
    assert work_done(progress(running=16, tokens=64), CELL) == 8
    assert work_done(progress(ended=16, tokens=20), CELL) == 16, "replies that end early are done all the same"
    assert work_done(progress(tokens=10_000), CELL) == 16


def shown(console: Console, *events: dict[str, Any]) -> str:
    with CellProgress(console, "1/6 one at 4/s", CELL) as seen:
        for event in events:
            seen.follow(event)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def plain_console(**changes: Any) -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False, markup=False, emoji=False, **changes)


def test_without_a_terminal_a_cell_is_one_plain_line() -> None:
    text = shown(plain_console(), {"event": "started"}, progress(0, 4, 12, 96), progress(0, 0, 16, 128))
    assert text.startswith("1/6 one at 4/s: 16 of 16 replies in 0.")
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_a_quiet_command_draws_nothing() -> None:
    assert shown(plain_console(force_terminal=True, quiet=True), {"event": "started"}, progress(0, 4, 12, 96)) == ""


def test_on_a_terminal_two_lines() -> None:
    drawn = ESCAPE.sub("", shown(plain_console(force_terminal=True), {"event": "started"}, progress(2, 4, 6, 96)))
    assert "12 sent, 2 waiting, 4 running, 6 of 16 done" in drawn
    assert " left" in drawn


# --- whole commands ---


def on_a_terminal(*arguments: str, cwd: Path) -> str:
    """What a person with a terminal of 80 columns sees, escapes left out."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    with subprocess.Popen([*HEADWAY, *arguments], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        said = b"".join(_until_closed(ours))
    os.close(ours)
    return ESCAPE.sub("", said.decode(errors="replace"))


def _until_closed(file: int) -> Iterator[bytes]:
    try:
        while data := os.read(file, 65_536):
            yield data
    except OSError:  # how Linux says that nobody holds the other end
        return


@pytest.mark.timeout(60)
def test_a_terminal_sees_a_run_go_on(tmp_path: Path) -> None:
    seen = on_a_terminal(*QUICK, "--out", "runs", cwd=tmp_path)
    assert "1/1 continuous at 8/s ━" in seen
    assert " sent, 0 waiting, " in seen
    assert "1/1 continuous at 8/s: 8 of 8 replies in " in seen


def test_a_script_gets_the_summary_and_nothing_else(tmp_path: Path) -> None:
    done = headway(*QUICK, "--json", "--out", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = run_folder(tmp_path / "runs")
    assert done.stdout.encode() == (folder / "summary.json").read_bytes()
    assert orjson.loads(done.stdout)["cells"][0]["completed"] == 8
    assert "8 of 8 replies in" in done.stderr
    assert "Results: runs/" in done.stderr
    assert "\x1b" not in done.stderr
    planned = headway(*QUICK, "--json", "--dry-run", "--out", "plans", cwd=tmp_path)
    assert (planned.returncode, planned.stdout) == (0, "")
