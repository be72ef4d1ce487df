"""`headway runs`: which runs there are, newest first."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table

from experiments.runs import Listed, listed
from experiments.tables import MISSING, plain_table


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def runs(folder: Path, as_json: bool) -> None:
    """List the run folders below DIR (runs, if you name none), newest first.

    Of each its time, experiment, model, the worst verdict of its cells, and what it found in one sentence.
    """
    if not folder.is_dir():
        raise click.UsageError(f"{folder}: no such folder; name one that holds run folders")
    found = listed(folder)
    if as_json:
        click.echo(orjson.dumps([asdict(each) for each in found], option=orjson.OPT_INDENT_2))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(runs_table(folder, found) if found else f"No run below {folder} yet.")


def runs_table(folder: Path, found: list[Listed]) -> Table:
    """Three lines a run at least; fits 80 columns."""
    table = plain_table(f"Runs in {folder}")
    table.add_column("run", overflow="fold", max_width=30)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what it found", overflow="fold")
    for run in found:
        table.add_row(_identity(run), run.verdict or MISSING, run.headline or run.problem, end_section=True)
    return table


def _identity(run: Listed) -> str:
    facts = [" ".join(filter(None, [time_text(run.begun), run.experiment])), run.model]
    return "\n".join([run.folder, *filter(None, facts)])


def time_text(begun: str | None) -> str | None:
    """A moment in this machine's time; what cannot be read as one stays as it is."""
    try:
        return None if begun is None else f"{datetime.fromisoformat(begun).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return begun
