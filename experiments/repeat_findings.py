"""Whether the same prompts got the same answers every time, alone and in batches."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from experiments.analysis import CellRecords
from experiments.planned import planned
from experiments.sameness import Difference, compare, parting
from experiments.tables import MISSING, plain_table


def findings(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any]:
    """`rows`: every cell compared with the first, the prompts asked alone for the first time."""
    first, *others = planned(manifest, cells)
    dtype = first.worker.get("dtype")
    rows = [
        {
            "cell": each.name,
            "label": each.label,
            "lost": each.lost,
            **asdict(compare(first.cell.requests, each.cell.requests, dtype)),
        }
        for each in others
    ]
    return {"compared_with": first.label, "lost": first.lost, "asked": first.facts["prompts"], "rows": rows}


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
    for line in _lines(found):
        console.print(line, soft_wrap=True)


def _lines(found: Mapping[str, Any]) -> list[str]:
    rows = found["rows"]
    lost = [(found["compared_with"], found["lost"]), *((row["label"], row["lost"]) for row in rows)]
    lines = [f"{label}: {reason}" for label, reason in lost if reason]
    lines += [f"{row['label']}: {parting(Difference(**each))}" for row in rows for each in row["differences"]]
    if rows and all(row["same"] == found["asked"] for row in rows):
        lines.append("Every answer was identical every time.")
    return lines


def show_study(console: Console, found: Mapping[str, Any]) -> None:
    """What the study says of it."""
    console.print("The study: repeating plain decoding gave identical answers every time.")
