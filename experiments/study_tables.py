"""Ours beside the study's: in seconds for its own cost profile, elsewhere in multiples of one reply's time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import reference
from experiments.analysis import CellSummary
from experiments.run_folder import Summary
from experiments.statistics import Spread, median
from experiments.tables import MISSING, figure, place, plain_table, seconds_text, server, shade, too_small


@dataclass(frozen=True, slots=True)
class Units:
    """What seconds are divided by, ours and the study's, so that two machines can be compared. None: not known."""

    ours_s: float | None
    study_s: float

    def beside(self, ours: float | None, theirs: float) -> str:
        mine = MISSING if ours is None or not self.ours_s else figure(ours / self.ours_s)
        return f"{mine} / {figure(theirs / self.study_s)}"

    def rank_beside(self, ours: Spread, name: str, theirs: float) -> Text:
        """A percentile, grey where we have too few values to say how sure it is."""
        return Text(self.beside(getattr(ours, name), theirs), style=shade(ours, name))


SECONDS = Units(1.0, 1.0)


def print_study(console: Console, summary: Summary, settings: Mapping[str, Any]) -> None:
    """Both tables, for the cells that were offered what the study offered; `settings` are the manifest's."""
    serving = settings.get("server", {})
    same_profile = serving.get("engine") == "paced" and serving.get("profile") == reference.PROFILE
    units = SECONDS if same_profile else Units(one_reply_s(summary), reference.ONE_REPLY_S)
    loads = {cell.label: cell.rate if same_profile else cell.load for cell in summary.cells}
    cells = sorted(
        [cell for cell in summary.cells if (loads[cell.label], cell.policy) in reference.LOADS],
        key=lambda cell: (loads[cell.label], place(cell)),
    )
    if not cells:
        console.print("No cell was offered a load of the study's: --rates auto offers them.")
        return
    what = "in seconds" if same_profile else "in multiples of one reply's time"
    console.print(f"Beside the study's figures, {what}: ours / the study's.", style="bold")
    if any(loads[cell.label] == reference.TYPICAL_LOAD for cell in cells):
        console.print(typical_table([cell for cell in cells if loads[cell.label] == reference.TYPICAL_LOAD], units))
    console.print(load_table([(loads[cell.label] or 0.0, cell) for cell in cells], units))
    if not same_profile:
        ours = seconds_text(units.ours_s)
        console.print(f"One reply alone takes {ours} here, {units.study_s:.2f} s in the study.")


def typical_table(cells: list[CellSummary], units: Units) -> Table:
    """Its rerun at load 4: medians, the longest wait, and when all was done."""
    table = plain_table("The typical request (median) at load 4")
    table.add_column("server", overflow="fold")
    for name in ("first word\n(TTFT)", "longest\nwait", "writing", "whole\nreply", "all\ndone"):
        table.add_column(name, justify="right", no_wrap=True)
    table.caption = too_small([spread for cell in cells for spread in (cell.ttft, cell.writing, cell.reply)], ["p50"])
    for cell in cells:
        study = reference.TYPICAL[cell.policy]
        table.add_row(
            server(cell),
            units.rank_beside(cell.ttft, "p50", study.ttft),
            units.beside(cell.ttft.max, study.longest),
            units.rank_beside(cell.writing, "p50", study.writing),
            units.rank_beside(cell.reply, "p50", study.reply),
            units.beside(cell.done_s, study.done),
        )
    return table


def load_table(cells: list[tuple[float, CellSummary]], units: Units) -> Table:
    """Its recorded run, by load."""
    table = plain_table("By load: p50 and p95")
    table.add_column("load", justify="right")
    table.add_column("server", overflow="fold")
    for name in ("first word\n(TTFT) p50", "p95", "whole\nreply p50", "p95"):
        table.add_column(name, justify="right", no_wrap=True)
    table.caption = too_small([spread for _, cell in cells for spread in (cell.ttft, cell.reply)])
    for load, cell in cells:
        study = reference.LOADS[int(load), cell.policy]
        table.add_row(
            f"{load:g}",
            server(cell),
            units.rank_beside(cell.ttft, "p50", study.ttft_p50),
            units.rank_beside(cell.ttft, "p95", study.ttft_p95),
            units.rank_beside(cell.reply, "p50", study.reply_p50),
            units.rank_beside(cell.reply, "p95", study.reply_p95),
        )
    return table


def one_reply_s(summary: Summary) -> float | None:
    """How long one reply alone takes here: the typical service of one at a time, else the calibration's."""
    alone = [cell.service.p50 for cell in summary.cells if cell.policy == "one" and cell.service.p50 is not None]
    if alone:
        return median(alone)
    return summary.calibration.service.p50 if summary.calibration is not None else None
