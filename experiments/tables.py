"""The tables a person reads after a rush: what happened at each rate, in the study's shape."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.analysis import CellSummary
from experiments.run_folder import Summary
from router.policies import POLICIES

MISSING = "n/a"
SERVERS = {"one": "one at a time", "static": "static", "continuous": "continuous"}


def seconds_text(value: float | None) -> str:
    return MISSING if value is None else f"{figure(value)} s"


def figure(value: float) -> str:
    """Two or three digits that matter, never more than thousandths: narrow enough for five pairs in 80 columns."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{digits}f}"


def server(cell: CellSummary) -> str:
    """A policy in the study's words, with the settings that are not the default."""
    kind = POLICIES.get(cell.policy)
    default = {} if kind is None else {key: getattr(kind(), key) for key in cell.params}
    changed = [f"{key}={value:g}" for key, value in cell.params.items() if value != default.get(key)]
    return " ".join([SERVERS.get(cell.policy, cell.policy), *changed])


def offered(cell: CellSummary) -> str:
    return "at once" if cell.rate is None else f"{cell.rate:g}/s"


def print_tables(console: Console, summary: Summary) -> None:
    """Both tables, and what else must be said of the run."""
    console.print(typical_table(summary.cells))
    console.print(load_table(summary.cells))
    for line in remarks(summary):
        console.print(line)


def highest(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """The cells at the highest rate, in the study's order of servers."""
    top = max((cell.rate for cell in cells if cell.rate is not None), default=None)
    return sorted([cell for cell in cells if cell.rate == top], key=place)


def typical_table(cells: Sequence[CellSummary]) -> Table:
    """One line a server at the highest rate: medians, the longest wait, and when all was done."""
    at_top = highest(cells)
    load = f", load {at_top[0].load:g}" if at_top[0].load is not None else ""
    table = plain_table(f"{at_top[0].requests} requests, {offered(at_top[0])}{load}: the typical request (median)")
    table.add_column("server", overflow="fold")
    for name in (
        "first word\n(TTFT)",
        "longest\nwait",
        "writing",
        "writing per\ntoken (TPOT)",
        "whole\nreply",
        "all\ndone",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in at_top:
        per_token = MISSING if cell.tpot.p50 is None else f"{cell.tpot.p50 * 1000:.1f} ms"
        table.add_row(
            server(cell),
            seconds_text(cell.ttft.p50),
            seconds_text(cell.ttft.max),
            seconds_text(cell.writing.p50),
            per_token,
            seconds_text(cell.reply.p50),
            seconds_text(cell.done_s),
        )
    return table


def load_table(cells: Sequence[CellSummary]) -> Table:
    """One line a cell, by rate: p50 and p95 of first word and whole reply, and tokens a second."""
    table = plain_table("By offered rate: p50 and p95")
    table.add_column("rate", no_wrap=True)
    table.add_column("server", overflow="fold")
    for name in ("first word\n(TTFT) p50", "p95", "whole\nreply p50", "p95", "tokens\n/s", "done"):
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    for cell in sorted(cells, key=lambda cell: (cell.rate or 0.0, place(cell))):
        if previous is not None and previous != cell.rate:
            table.add_section()
        table.add_row(
            "" if previous == cell.rate and previous is not None else offered(cell),
            server(cell),
            *(seconds_text(v) for v in (cell.ttft.p50, cell.ttft.p95, cell.reply.p50, cell.reply.p95)),
            MISSING if cell.tokens_per_s is None else f"{cell.tokens_per_s:.0f}",
            f"{cell.completed}/{cell.requests}",
        )
        previous = cell.rate
    return table


def remarks(summary: Summary) -> list[str]:
    """What a reader must know beside the figures: when batches left, what was late or lost, how the machine drifted."""
    lines = [
        f"{cell.label}: batches left with {', '.join(map(str, cell.departures))}."
        for cell in summary.cells
        if cell.departures
    ]
    for cell in summary.cells:
        faults = {
            "sent over 1 ms late": cell.late,
            "never sent": cell.unsent,
            "rejected": cell.rejected,
            "failed": cell.failed,
            "cancelled": cell.cancelled,
            "unfinished": cell.unfinished,
            "with stamps out of order": cell.order_violations,
        }
        said = [f"{count} {what}" for what, count in faults.items() if count]
        if said:
            lines.append(f"{cell.label}: of {cell.requests} requests, {', '.join(said)}.")
    if summary.drift is not None:
        what = "The machine drifted" if summary.drift["drifted"] else "No drift"
        lines.append(
            f"{what}: {summary.drift['label']}, repeated at the end, took {summary.drift['change']:+.1%} time."
        )
    return lines


def place(cell: CellSummary) -> int:
    """A server's place in the study's tables; servers it did not have come last."""
    return [*SERVERS, cell.policy].index(cell.policy)


def plain_table(title: str) -> Table:
    """A table in the product's one style. A title may be wider than its table."""
    words = Text(title, style="bold", no_wrap=True, overflow="ignore")
    return Table(title=words, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, collapse_padding=True)
