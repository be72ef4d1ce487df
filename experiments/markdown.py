"""A run in Markdown, fit for a pull request: headline, verdicts, tables, what was promised, and on what it ran."""

import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.analysis import CellSummary
from experiments.headline import headline
from experiments.predictor_gains import gains_lines, gains_tables, predictor_gains, untold
from experiments.run_folder import Summary, findings_module
from experiments.seeds import over_seeds, seeds_of
from experiments.sentences import comparison_lines, objective_parts
from experiments.settings_words import ran_on, settings_words
from experiments.tables import GREY, MISSING, load_lines, load_table, remarks, typical_table

SPECIAL = re.compile(r"([\\`*_\[\]<>|&#~])")
PRINTED_WIDTH = 100


def markdown(summary: Summary, manifest: Mapping[str, Any]) -> str:
    """The whole text, ending with a line break. What comes from a run's files is data: it is escaped."""
    return "\n\n".join(part for part in _parts(summary, manifest) if part) + "\n"


def _parts(summary: Summary, manifest: Mapping[str, Any]) -> Iterator[str]:
    yield f"### Headway {escaped(f'{summary.experiment}: {headline(summary)}')}"
    if summary.cells:
        yield _verdicts(summary.cells)
    yield from _findings(summary) if summary.findings is not None else _tables(summary)
    yield escaped(f"{settings_words(manifest)} {ran_on(manifest)}".strip())


def _tables(summary: Summary) -> Iterator[str]:
    """What the terminal shows after a rush."""
    if not summary.cells:
        return
    rows, seeds = over_seeds(summary.cells), seeds_of(summary.cells)
    yield table_text(typical_table(rows, seeds))
    yield table_text(load_table(rows, seeds))
    gains = predictor_gains(summary)
    yield from map(table_text, gains_tables(gains))
    promised = objective_parts(rows)
    yield from [table_text(part) for part in promised if isinstance(part, Table)]
    said = [*gains_lines(gains), *[part for part in promised if isinstance(part, str)]]
    yield _list(
        [*said, *comparison_lines(untold(summary.comparisons, gains)), *remarks(summary), *load_lines(summary.cells)]
    )


def _findings(summary: Summary) -> Iterator[str]:
    """An experiment's own tables as the terminal shows them, since each has its own."""
    console = Console(file=StringIO(), width=PRINTED_WIDTH, highlight=False, markup=False, emoji=False, record=True)
    findings_module(summary.experiment).show(console, summary.findings)
    yield fenced("\n".join(line.rstrip() for line in console.export_text().strip("\n").splitlines()))
    promised = objective_parts(summary.cells)
    yield from [table_text(part) for part in promised if isinstance(part, Table)]
    yield _list([part for part in promised if isinstance(part, str)])


def _verdicts(cells: Sequence[CellSummary]) -> str:
    heads, sides = ["cell", "verdict", "load", "done", "why"], ["---", "---", "---", "---:", "---"]
    return _rows(heads, sides, [[escaped(each) for each in _verdict(cell)] for cell in cells])


def _verdict(cell: CellSummary) -> list[str]:
    done = f"{cell.completed}/{cell.requests}"
    return [cell.label, cell.verdict or MISSING, cell.load_state or MISSING, done, "; ".join(cell.reasons)]


def table_text(table: Table) -> str:
    """One of the terminal's tables. What it prints in grey is in italics here."""
    heads = [_plain(column.header).replace("\n", " ") for column in table.columns]
    sides = ["---:" if column.justify == "right" else "---" for column in table.columns]
    cells = [[_cell(each) for each in column.cells] for column in table.columns]
    lines = [f"**{escaped(_plain(table.title))}**", _rows(heads, sides, list(zip(*cells, strict=True)))]
    if table.caption is not None:
        lines.append(escaped(_plain(table.caption).replace("grey", "in italics")))
    return "\n\n".join(lines)


def _cell(value: Any) -> str:
    text = escaped(_plain(value))
    return f"*{text}*" if isinstance(value, Text) and value.style == GREY and text else text


def _plain(value: Any) -> str:
    return value.plain if isinstance(value, Text) else str(value or "")


def _rows(heads: Sequence[str], sides: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, sides, *rows])


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line: no mark-up, no HTML, no end of a table's cell."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def fenced(text: str) -> str:
    """Text shown as it is, whatever it holds: the fence is longer than any run of backticks in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
