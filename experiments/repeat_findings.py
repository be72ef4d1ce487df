"""Whether the same prompts got the same answers every time, alone and in batches."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from experiments.analysis import CellRecords, CellSummary
from experiments.sameness import Difference, compare, parting
from experiments.tables import MISSING, plain_table


def findings(
    manifest: Mapping[str, Any], cells: Mapping[str, CellRecords], figures: Mapping[str, CellSummary]
) -> dict[str, Any]:
    """`rows`: every cell compared with the first, prompts asked alone for the first time."""
    names = list(figures)
    first = cells[names[0]]
    dtype = first.worker.facts.get("dtype") if first.worker else None
    rows = [
        {"cell": name, "label": figures[name].label, **asdict(compare(first.requests, cells[name].requests, dtype))}
        for name in names[1:]
    ]
    refused = manifest.get("refused") or {}
    return {"rows": rows, "compared_with": figures[names[0]].label, "refused": dict(refused)}


def show(console: Console, found: Mapping[str, Any]) -> None:
    """One line a cell, and one more for every answer that differs."""
    table = plain_table(f"Answers compared with those of: {found['compared_with']}")
    table.add_column("the same prompts")
    for name in ("compared", "identical", "differ", "smallest margin\nwhere they part"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found["rows"]:
        differ = row["differences"]
        margins = [each["margin"] for each in differ if each["margin"] is not None]
        smallest = f"{min(margins):.3g}" if margins else MISSING if differ else ""
        table.add_row(row["label"], str(row["compared"]), str(row["same"]), str(len(differ)), smallest)
    console.print(table)
    for row in found["rows"]:
        for each in row["differences"]:
            console.print(f"{row['label']}: {parting(Difference(**each))}", soft_wrap=True)
    for cell, reason in found["refused"].items():
        console.print(f"{cell}: {reason}", soft_wrap=True)
    if not any(row["differences"] for row in found["rows"]):
        console.print("Every answer was identical every time.")
