"""Objectives in sentences where they are few, in tables of 80 columns where they are many."""

from dataclasses import replace
from io import StringIO

from rich.console import Console
from rich.table import Table

from experiments.analysis import CellSummary
from experiments.objectives import Goodput, decided, parse_objective
from experiments.sentences import SENTENCES, objective_lines, objective_parts
from experiments.tables import batches, done
from tests.experiments.test_seeds import TEMPLATE

TEXTS = ("ttft.p50<300ms", "ttft.p95<1s", "reply.p95<5s", "queue_wait.p95<100ms", "tpot.p50<40ms")


def promised(cell: CellSummary, *misses: int, n: int = 200) -> CellSummary:
    """A cell of which so many requests missed each objective."""
    outcomes = [decided(parse_objective(text), missed, n) for text, missed in zip(TEXTS, misses, strict=False)]
    return replace(cell, objectives=outcomes, goodput=Goodput(150, n, 150 / n, 1.0))


def rows(table: Table) -> list[list[str]]:
    return [list(map(str, cells)) for cells in zip(*(column.cells for column in table.columns), strict=True)]


def test_few_stay_sentences() -> None:
    cells = [promised(TEMPLATE, 3), promised(TEMPLATE, 100)]
    assert objective_parts(cells) == objective_lines(cells)
    assert len(objective_lines(cells)) == SENTENCES
    assert objective_parts([TEMPLATE]) == []


def test_many_are_a_table_of_cells_and_objectives() -> None:
    """By rate and server, whatever the order of the run."""
    fast = promised(replace(TEMPLATE, label="static at 4/s", policy="static"), 3, 0, 60, 10, 100)
    slow = promised(replace(TEMPLATE, label="one at 2/s", policy="one", rate=2.0), 105, 0, 0, 0, 0)
    first, second = objective_parts([fast, slow])
    assert isinstance(first, Table)
    assert isinstance(second, Table)
    assert [str(column.header).replace("\n", "") for column in first.columns] == ["cell", *TEXTS[:3]]
    assert rows(first) == [
        ["one at 2/s", "not determined\n105 of 200", "met\n0 of 200", "met\n0 of 200"],
        ["static at 4/s", "met\n3 of 200", "met\n0 of 200", "missed\n60 of 200"],
    ]
    assert [row[-1] for row in rows(second)] == ["75%", "75%"]


def test_eighty_columns_are_enough() -> None:
    cells = [
        promised(replace(TEMPLATE, label=f"shortest:seats=8,predictor=noisy:{n} at 2/s"), *[99] * 5) for n in "123"
    ]
    console = Console(width=80, file=StringIO(), record=True)
    for part in objective_parts(cells):
        console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count("not determined") == 2 * len(cells), "99 of 200 may well be half of all, not a twentieth"


def test_very_many_requests_are_a_share_and_very_many_batches_are_counted() -> None:
    assert done(replace(TEMPLATE, completed=19, requests=20)) == "19/20"
    assert done(replace(TEMPLATE, completed=66_770, requests=100_000)) == "66.8%"
    assert batches([2, 7, 8]) == "2, 7, 8"
    assert batches([2, *[8] * 1_200, 7]) == "8 (1,200 of them), 7 (1 of them), 2 (1 of them)"
