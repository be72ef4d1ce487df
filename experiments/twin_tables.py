"""What a person reads of a run and its simulation: one line a cell, with the error of every figure."""

from rich.console import Console
from rich.table import Table

from experiments.tables import MISSING, plain_table, seconds_text
from experiments.twin.comparison import FIGURES, Twin, TwinFigure

HEADS = ("first word\n(TTFT) p50", "p95", "whole\nreply p50", "p95", "tokens\n/s")


def show_twin(console: Console, twin: Twin) -> None:
    """The table, and in sentences how far off it is and where its costs are from."""
    console.print(twin_table(twin))
    for line in twin_lines(twin):
        console.print(line, soft_wrap=True)


def twin_table(twin: Twin) -> Table:
    """Simulated figures; below each how far it is from the measured one."""
    table = plain_table("The twin: simulated, and the error against what was measured")
    table.add_column("cell", overflow="fold")
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for cell in twin.cells:
        known = {each.figure: each for each in cell.figures}
        table.add_row(cell.label, *(_text(known.get(name)) for name in FIGURES))
    return table


def _text(figure: TwinFigure | None) -> str:
    if figure is None:
        return MISSING
    speed = figure.figure == "tokens_per_s"
    return f"{f'{figure.simulated:.0f}' if speed else seconds_text(figure.simulated)}\n{figure.error:+.1%}"


def twin_lines(twin: Twin) -> list[str]:
    """Where the costs are from, and how far off the figures are."""
    lines = [
        f"The twin's costs are from {twin.profile}{'' if twin.unseen else ', so its error says little of others'}."
    ]
    if twin.median is not None and twin.worst is not None:
        lines.append(f"Error of its figures: {twin.median:.1%} (median), at most {twin.worst:.1%}.")
    beyond = [f"{cell.label} {cell.outside:.1%}" for cell in twin.cells if cell.outside]
    if beyond:
        lines.append(f"Steps that the profile was not measured at, with its slopes carried on: {', '.join(beyond)}.")
    return lines
