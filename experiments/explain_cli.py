"""`headway explain-verdict`: every check of every cell of a run, with its number, its limit, and what it means."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from experiments.analysis import CellSummary, by_cell, summarise
from experiments.checks import Check, in_unit
from experiments.run_folder import RunFolderError, read_manifest, verdicts_of
from experiments.tables import MISSING, plain_table
from experiments.verdict import Verdict
from protocol.records import read_folder


@click.command(name="explain-verdict")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def explain(run: Path, as_json: bool) -> None:
    """Show every check of every cell of the folder RUN: its number, its limit, and what it means for the verdict.

    A verdict is about the instrument: VALID, SUSPECT or INVALID. Whether the server kept up with the crowd is another
    question: stable, overloaded or not determined.
    """
    try:
        manifest = read_manifest(run)
    except RunFolderError as error:
        raise click.UsageError(str(error)) from None
    cells = by_cell(read_folder(run))
    figures = {name: summarise(name, cells[name]) for name in sorted(cells)}
    found = verdicts_of(manifest, cells, figures)
    if as_json:
        click.echo(orjson.dumps(explained(figures, found), option=orjson.OPT_INDENT_2))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    if not found:
        console.print("No cell was measured.")
    for name, verdict in found.items():
        _show(console, figures[name].label, verdict)


def explained(figures: Mapping[str, CellSummary], found: Mapping[str, Verdict]) -> dict[str, Any]:
    """The cells by name, as JSON holds them."""
    return {name: {"label": figures[name].label, **asdict(verdict)} for name, verdict in found.items()}


def _show(console: Console, label: str, verdict: Verdict) -> None:
    console.print(verdict_table(f"{label}: {verdict.verdict}, load {verdict.load_state}", verdict.checks))
    for reason in verdict.reasons:
        console.print(f"  {reason}")


def verdict_table(title: str, checks: list[Check]) -> Table:
    """One line a check; fits 80 columns."""
    table = plain_table(title)
    table.add_column("check", no_wrap=True)
    for name in ("found", "at most"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("level", no_wrap=True)
    for check in checks:
        numbers = [MISSING if each is None else in_unit(each, check.unit) for each in (check.value, check.limit)]
        table.add_row(check.name, *numbers, check.level)
    return table
