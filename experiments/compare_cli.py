"""`headway compare`: two runs side by side, and a gate for what may not get worse."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from experiments.compare_runs import BEYOND, FAILED, NOT_KNOWN, WITHIN, Change, Compared, GateOutcome, Matched, compare
from experiments.gates import FORM, GOODPUT, TOKENS, check_gates
from experiments.kept_summary import summary_of
from experiments.run_folder import RunFolderError, Summary, read_manifest
from experiments.sentences import in_one_unit
from experiments.statistics import Interval
from experiments.tables import MISSING, figure, plain_table, seconds_text

RULES = {
    WITHIN: "Within noise: the 95 % interval of the mean difference over seeds holds 0; of a single seed, the 95 % "
    "intervals of the two percentiles overlap.",
    NOT_KNOWN: "Noise not known: fewer than five seeds, or of a single seed too few requests for an interval (p50 "
    "needs 6, p95 72), or a figure that has none.",
}


@click.command(name="compare")
@click.argument("before", metavar="A", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("after", metavar="B", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--fail-if",
    "gates",
    multiple=True,
    metavar="GATE",
    help=f"What must not be, repeatable: {FORM}. With a sign it is the change from A to B, else B's own figure; it "
    "looks at the figures alone, whatever their noise.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def compare_command(before: Path, after: Path, gates: tuple[str, ...], as_json: bool) -> None:
    """Show the cells of the run folders A and B side by side, and how far B is from A.

    Ends with status 1 when a gate fails in any cell, when a run is incomplete or has an INVALID cell, and when B lacks
    a cell of A or a figure that a gate asks for.
    """
    try:
        checked = check_gates(gates)
        found = compare(_read(before), _read(after), checked)
    except (ValueError, RunFolderError) as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2))
    else:
        _show(Console(highlight=False, markup=False, emoji=False), found, before, after)
    sys.exit(0 if found.passed else 1)


def _read(folder: Path) -> tuple[Summary, Mapping[str, Any]]:
    return summary_of(folder), read_manifest(folder)


def _show(console: Console, found: Compared, before: Path, after: Path) -> None:
    console.print(f"A: {before}\nB: {after}", soft_wrap=True)
    for cell in found.cells:
        console.print(cell_table(cell))
    for line in lines(found):
        console.print(line, soft_wrap=True)


def cell_table(cell: Matched) -> Table:
    """One line a figure; fits 80 columns."""
    first, second = cell.rates
    many = max(len(change.seeds) for change in cell.changes)
    other = "" if first == second else f" (A), at {second:g}/s (B): the same load"
    table = plain_table(f"{cell.label}{other}{f', means over {many} seeds' if many > 1 else ''}")
    table.add_column("", no_wrap=True)
    for name in ("A", "B", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for change in cell.changes:
        table.add_row(change.figure, *_ends(change), _relative(change), _sureness(change))
    return table


def _ends(change: Change) -> list[str]:
    return [value_text(change.figure, value) for value in (change.before, change.after)]


def value_text(name: str, value: float | None) -> str:
    """A figure as people read it."""
    if value is None:
        return MISSING
    return {TOKENS: figure(value), GOODPUT: f"{value:.0%}"}.get(name) or seconds_text(value)


def _relative(change: Change) -> str:
    return MISSING if change.relative is None else f"{change.relative:+.1%}"


def _sureness(change: Change) -> str:
    if change.difference is None:
        return ""
    return change.noise if change.interval is None else f"{change.noise}: {_interval(change.figure, change.interval)}"


def _interval(name: str, ends: Interval) -> str:
    if name in (GOODPUT, TOKENS):
        return " to ".join(f"{end:+.0%}" if name == GOODPUT else f"{end:+.3g}" for end in ends)
    said, unit = in_one_unit(ends)
    return f"{' to '.join(said)} {unit}"


def lines(found: Compared) -> Iterator[str]:
    """What must be known beside the tables, the gates, and how it ends."""
    for noise, rule in RULES.items():
        if any(change.noise == noise and change.difference is not None for c in found.cells for change in c.changes):
            yield rule
    for name in found.only_after:
        yield f"Only in B: {name}."
    for difference in found.depends:
        yield f"Differs (A then, B now): {difference}"
    for outcome in found.gates:
        yield _gate(outcome)
    for fault in found.faults:
        yield f"FAILED: {fault}."


def _gate(outcome: GateOutcome) -> str:
    name = outcome.gate.replace(">", "<").partition("<")[0].strip()
    ends = " to ".join(value_text(name, value) for value in (outcome.before, outcome.after))
    noise = f", {outcome.noise}" if outcome.state == FAILED and outcome.noise != BEYOND else ""
    word = {"held": "Held", "failed": "FAILED", "missing": "FAILED, since a figure is missing"}[outcome.state]
    return f"{word}: {outcome.gate} in {outcome.cell} ({ends}{noise})."
