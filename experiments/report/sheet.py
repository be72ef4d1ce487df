"""What the terminal shows of a run, as the page shows it: the same tables and sentences, from the same functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from experiments.analysis import CellSummary
from experiments.run_folder import Summary
from experiments.show import show
from experiments.tables import GREY, MISSING, verdict_lines


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table; `grey` where too few values say how sure it is, `number` if it is set right."""

    text: str
    grey: bool
    number: bool


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of text: the first field of a row is its head. `note` stands below; `bare` is one without `heads`."""

    caption: str
    heads: list[Field]
    rows: list[list[Field]]
    note: str
    bare: bool = False


class Sheet(Console):
    """A console that keeps what is printed on it instead of drawing it."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.printed: list[Any] = []

    def print(self, *objects: Any, **how: Any) -> None:
        """Keep tables and text as they are."""
        self.printed += objects


def sheet(summary: Summary, settings: Mapping[str, Any], study: bool) -> list[PageTable | list[str]]:
    """Every table of a run and, between them, lists of sentences. The verdicts are left out: the page has its own."""
    console = Sheet()
    show(console, summary, settings, study)
    verdicts = verdict_lines(summary.cells)
    shown = [each for each in console.printed if each not in verdicts]
    parts: list[PageTable | list[str]] = []
    for is_table, group in groupby(shown, lambda each: isinstance(each, Table)):
        several = [*group]
        parts += [page_table(table) for table in several] if is_table else [[str(line) for line in several]]
    return parts


def page_table(table: Table) -> PageTable:
    """One of the terminal's tables as text."""
    columns = [[_field(cell, column) for cell in column.cells] for column in table.columns]
    rows = _filled([[*row] for row in zip(*columns, strict=True)])
    heads = [_field(column.header, column) for column in table.columns]
    return PageTable(_plain(table.title), heads, rows, _plain(table.caption), not table.show_header)


def verdict_table(cells: Sequence[CellSummary]) -> PageTable:
    """Which cells are to be trusted, whether their servers kept up, and why."""
    rows = [
        [
            cell.label,
            cell.verdict or MISSING,
            cell.load_state or MISSING,
            f"{cell.completed} of {cell.requests}",
            "; ".join(cell.reasons) or "none",
        ]
        for cell in cells
    ]
    heads = ["cell", "verdict", "load", "replies", "reasons"]
    return PageTable(
        "Is it measured well, and did the server keep up?",
        [Field(head, False, False) for head in heads],
        [[Field(text, False, False) for text in row] for row in rows],
        "",
    )


def _field(value: Any, column: Column) -> Field:
    return Field(_plain(value), isinstance(value, Text) and value.style == GREY, column.justify == "right")


def _filled(rows: Sequence[list[Field]]) -> list[list[Field]]:
    """Where a terminal leaves the first field out because it is that of the row above, a screen reader must hear it."""
    heads: list[Field] = []
    for row in rows:
        heads.append(row[0] if row[0].text or not heads else heads[-1])
    return [[head, *row[1:]] for head, row in zip(heads, rows, strict=True)]


def _plain(value: Any) -> str:
    text = value.plain if isinstance(value, Text) else str(value or "")
    return " ".join(text.split("\n"))
