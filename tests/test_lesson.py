"""The lesson's commands run as they stand and print what it shows; its Python prints that to the letter."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clients.arrivals import poisson
from experiments.analysis import by_cell
from tests.experiments.commands import headway, run_folder, summary
from tests.virtual import CELL, VirtualRush

pytestmark = pytest.mark.alone

LESSON = (Path(__file__).parents[1] / "docs" / "lesson.md").read_text()
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
FIGURE = re.compile(r"(\d+\.\d+)\s(?:s|ms|MB|GB)\b")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Blocks = list[tuple[str, str]]


def blocks(text: str) -> Blocks:
    """Fenced blocks, as (language, content)."""
    found: Blocks = BLOCK.findall(text)
    return found


def followed(text: str, language: str) -> Blocks:
    """Blocks of a language, each with the block of output after it."""
    return [
        (body, shown) for (kind, body), (after, shown) in pairwise(blocks(text)) if (kind, after) == (language, "text")
    ]


_, *parts = re.split(r"^## (.+)\n", LESSON, flags=re.MULTILINE)
EXERCISES = dict(zip(parts[::2], parts[1::2], strict=True))

exercise = pytest.mark.parametrize("heading", EXERCISES)


def same(shown: str, printed: str) -> bool:
    """Whether two lines have the same words and counts, and measured numbers that a busy machine may have made of one
    another. A line is measured if one of its numbers has decimals."""
    ours, theirs = (NUMBER.findall(line) for line in (shown, printed))
    measured = any("." in number for number in ours)
    return shape(shown) == shape(printed) and (
        values(theirs) == pytest.approx(values(ours), rel=0.35, abs=0.5) if measured else theirs == ours
    )


def values(numbers: Sequence[str]) -> list[float]:
    return [float(number.replace(",", "")) for number in numbers]


def shape(line: str) -> list[str]:
    """Words of a line, whatever its numbers, its spaces and the width of its rules."""
    return NUMBER.sub("#", re.sub("─+", "─", line)).split()


def missing(shown: str, printed: str) -> list[str]:
    """Lines of a shown output that were not printed in this order."""
    rest = iter(printed.splitlines())
    lines = [line for line in shown.splitlines() if line.strip() not in ("", "...")]
    return [line for line in lines if not any(same(line, candidate) for candidate in rest)]


# --- what the text says of a run ---


def the_sweep(found: dict[str, Any]) -> None:
    """The total doubles, and each is written at about a quarter of the speed."""
    one, _, eight = found["findings"]["rows"]
    assert eight["gain"] == pytest.approx(2.1, rel=0.2)
    assert eight["tokens_per_s_per_reply"] / one["tokens_per_s_per_reply"] == pytest.approx(0.26, rel=0.2)
    assert eight["done_s"] < 8 * one["done_s"] / 1.7


def the_queue(found: dict[str, Any]) -> None:
    """At half of the load most find the server free; twice the load is not twice the wait."""
    half, near_one = found["cells"]
    assert half["ttft"]["p50"] < 0.2
    assert near_one["ttft"]["p50"] > 3 * half["ttft"]["p50"]


def the_bus(found: dict[str, Any]) -> None:
    assert [cell["departures"] for cell in found["cells"]] == [[2, 7, 8]]


def continuous(found: dict[str, Any]) -> None:
    """Against one at a time, by hand: 8.16 s, 8.97 s and 22.5 s."""
    (cell,) = found["cells"]
    assert 12 < 8.16 / cell["ttft"]["p50"] < 30
    assert 1.2 < 8.97 / cell["reply"]["p50"] < 2
    assert cell["tpot"]["p50"] > 5 * 0.0063
    assert cell["done_s"] < 22.5 / 2


CLAIMS: dict[str, Callable[[dict[str, Any]], None]] = {
    "1. How many replies at once?": the_sweep,
    "2. One at a time": the_queue,
    "3. When does the bus leave?": the_bus,
    "4. Continuous batching: who pays?": continuous,
}


def test_every_block_belongs_to_an_exercise_and_has_output() -> None:
    assert len(EXERCISES) == 5
    for language in ("sh", "python"):
        assert [len(followed(text, language)) for text in EXERCISES.values()] == [1] * 5
        assert len([kind for kind, _ in blocks(LESSON) if kind == language]) == 5


Outcome = tuple[Path, str]
DELICATE = "3. When does the bus leave?"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Where each exercise's commands ran, and what they printed. At once, since a paced engine sleeps most of its time,
    but for the one that hangs on hundredths of a second."""
    folders = {heading: tmp_path_factory.mktemp("exercise") for heading in EXERCISES}
    together = {heading: folder for heading, folder in folders.items() if heading != DELICATE}
    with ThreadPoolExecutor(len(together)) as pool:
        printed = dict(zip(together, pool.map(printed_by, together, together.values()), strict=True))
    printed[DELICATE] = printed_by(DELICATE, folders[DELICATE])
    return {heading: (folders[heading], printed[heading]) for heading in EXERCISES}


def printed_by(heading: str, folder: Path) -> str:
    ((commands, _),) = followed(EXERCISES[heading], "sh")
    printed = ""
    for command in commands.splitlines():
        name, *arguments = shlex.split(command)
        assert name == "headway"
        done = headway(*arguments, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    return printed


@exercise
def test_the_commands(heading: str, outcomes: dict[str, Outcome]) -> None:
    ((_, shown),) = followed(EXERCISES[heading], "sh")
    folder, printed = outcomes[heading]
    assert missing(shown, printed) == []
    if claims := CLAIMS.get(heading):
        claims(summary(run_folder(folder / "runs")))
    else:
        assert lines(shown) - {"..."} <= lines(printed)


def lines(text: str) -> set[str]:
    """Lines, whatever their spaces."""
    return {" ".join(line.split()) for line in text.splitlines()}


@exercise
def test_the_text_claims_no_figure_that_is_not_shown(heading: str) -> None:
    text = EXERCISES[heading].partition("**Full size**")[0]
    shown = "".join(body for _, body in blocks(text))
    figures = FIGURE.findall(BLOCK.sub("", text))
    assert figures
    assert [figure for figure in figures if figure not in NUMBER.findall(shown)] == []


@exercise
def test_the_python(heading: str, tmp_path: Path) -> None:
    ((program, printed),) = followed(EXERCISES[heading], "python")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (printed, "")


@exercise
def test_the_full_size_can_be_run(heading: str, tmp_path: Path) -> None:
    """It has what the exercise has, and takes too long here: only its plan is made."""
    for command in re.findall(r"`headway (.+?)`", EXERCISES[heading].partition("**Full size**")[2]):
        done = headway(*shlex.split(command), "--dry-run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_what_the_full_size_is_said_to_print() -> None:
    """The first word 30 times sooner, the whole reply 2.2 times, in virtual time."""
    one, many = (VirtualRush(server, poisson(40, 4.0, 12)).run() for server in ("one", "continuous"))
    assert one.ttft.p50 and one.reply.p50 and many.ttft.p50 and many.reply.p50
    for figure, said in ((one.ttft.p50, 14.1), (many.ttft.p50, 0.48), (one.reply.p50, 14.9), (many.reply.p50, 6.80)):
        assert figure == pytest.approx(said, rel=0.03)
    assert one.ttft.p50 / many.ttft.p50 == pytest.approx(30, abs=0.5)
    assert one.reply.p50 / many.reply.p50 == pytest.approx(2.2, abs=0.05)


def test_who_came_first_pays() -> None:
    """The first of 24 customers had the whole reply after 0.93 s one at a time, and has to wait for the others now."""
    wholes = []
    for server in ("one", "continuous"):
        rush = VirtualRush(server, poisson(24, 4.0, 12))
        rush.run()
        first = by_cell(rush.records)[CELL].requests[0]
        assert first.last_received is not None
        assert first.intended is not None
        wholes.append((first.last_received - first.intended) / 1e9)
    assert wholes[0] == pytest.approx(0.93)
    assert wholes[1] > 2 * wholes[0]
