"""What a search for the capacity found, from the manifest and, where real runs confirmed it, from their records."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.analysis import CellRecords, summarise
from experiments.capacity.search import FOUND, NONE
from experiments.capacity.words import (
    Found,
    best_of,
    capital,
    comparison_lines,
    confirmation_lines,
    memory_line,
    rate_text,
    recommendation_lines,
    remark_lines,
)
from experiments.objectives import Objective
from experiments.run_folder import objectives_of, verdicts_of
from experiments.tables import GREY, MISSING, plain_table, seconds_text
from protocol.sizes import bytes_text

OVERLOADED = "overloaded"


def findings(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any] | None:
    """The search as the manifest holds it, and each real run beside the twin; None of a run that broke off earlier."""
    if "searched" not in manifest:
        return None
    promised = objectives_of(manifest)
    figures = {name: summarise(name, cell, promised) for name, cell in cells.items()}
    verdicts = verdicts_of(manifest, cells, figures)
    runs = [_run(each, figures, verdicts, promised) for each in manifest.get("confirming") or ()]
    return {**manifest["searched"], "confirmed": runs, "seats": seats_measured(manifest["searched"], runs)}


def _run(
    plan: Found, figures: Mapping[str, Any], verdicts: Mapping[str, Any], promised: Sequence[Objective]
) -> dict[str, Any]:
    """A real run beside its simulation; nothing is known of one that was lost."""
    cell, verdict = figures.get(plan["cell"]), verdicts.get(plan["cell"])
    rows = [_objective(each, i, plan, cell) for i, each in enumerate(promised)]
    return {
        **{name: plan[name] for name in ("cell", "rate", "expected", "requests")},
        "verdict": verdict.verdict if verdict else None,
        "load_state": verdict.load_state if verdict else None,
        "peak_memory_bytes": cell.peak_memory_bytes if cell else None,
        "objectives": rows,
    }


def _objective(promised: Objective, place: int, plan: Found, cell: Any) -> dict[str, Any]:
    simulated = plan["simulated_s"][place]
    measured = getattr(getattr(cell, promised.metric), promised.percentile) if cell else None
    known = simulated and measured is not None
    return {
        "objective": promised.text,
        "simulated_s": simulated,
        "measured_s": measured,
        "error": simulated / measured - 1 if known and measured else None,
        "state": cell.objectives[place].state if cell else None,
    }


def seats_measured(searched: Found, runs: Sequence[Found]) -> dict[str, Any] | None:
    """The table by seats; where memory was measured it holds nothing that was computed."""
    best, table = best_of(searched), searched["seats"]
    peak = max([run["peak_memory_bytes"] for run in runs if run["peak_memory_bytes"]], default=None)
    if best is None or peak is None:
        return table  # type: ignore[no-any-return]
    measured, unknown = ({"peak_memory_bytes": size, "memory_from": size and "measured"} for size in (peak, None))
    rows = [row | (measured if row["seats"] == best["seats"] else unknown) for row in table["rows"]]
    return {**table, "rows": rows}


# --- shown ---


def show(console: Console, found: Found) -> None:
    """The policies, the best one by its seats, real runs if there were any, and what is recommended."""
    console.print(policies_table(found))
    for line in [*comparison_lines(found), *remark_lines(found)]:
        console.print(line)
    if found["seats"] is not None:
        console.print(seats_table(found["seats"]))
        console.print(memory_line(found["seats"]))
    if found["confirmed"]:
        console.print(confirmed_table(found["confirmed"]))
        for line in confirmation_lines(found["confirmed"]):
            console.print(line)
    for line in recommendation_lines(found):
        console.print(line)


def show_study(console: Console, found: Found) -> None:
    """The study searched for nothing of the kind."""
    console.print("The study has no such figures.")


def policies_table(found: Found) -> Table:
    """One line a policy: the highest rate, and how sure that is."""
    table = plain_table(f"The highest rate that meets {' and '.join(found['objectives'])}, simulated")
    table.add_column("server", overflow="fold")
    for name in ("seats", "requests\n/s", "95 %\ninterval", "requests\na seed"):
        table.add_column(name, justify="right", no_wrap=True)
    if found["target"] is not None:
        table.add_column(f"enough for\n{found['target']:g}/s", justify="right", no_wrap=True)
    for row in found["policies"]:
        target = [TARGETS[row["target"]]] if found["target"] is not None else []
        table.add_row(row["kind"], str(row["seats"]), *_rate(row), *target)
    return table


TARGETS = {"met": "yes", "missed": "no", "not determined": "not determined"}


def _rate(row: Found) -> tuple[str, str, str]:
    if row["rate"] is None or row["interval"] is None:
        return ("none" if row["state"] == NONE else MISSING), "", ""
    rate = rate_text(row["rate"]) if row["state"] == FOUND else f"({rate_text(row['rate'])})"
    return rate, " to ".join(map(rate_text, row["interval"])), f"{row['requests']:,}"


def seats_table(seats: Found) -> Table:
    """One line for each number of seats: what it serves at most, and how the same crowd fares with it."""
    table = plain_table(f"{capital(seats['kind'])} by seats, all at {seats['offered']:g} requests/s, simulated")
    percentiles, rows = seats["percentiles"], seats["rows"]
    waits = f"first word\n(TTFT) {percentiles['ttft']}", f"whole\nreply {percentiles['reply']}"
    memory = [_size(row) for row in rows] if any(row["peak_memory_bytes"] for row in rows) else []
    for name in ("seats", "serves\nup to", *waits, "tokens\n/s", "longest\ngap", *(["peak\nmemory"] if memory else [])):
        table.add_column(name, justify="right", no_wrap=True)
    if not all(row["sure"] for row in rows):
        table.caption = Text("(~ roughly, by the crowds of a few seeds)", style=GREY)
    for place, row in enumerate(rows):
        most = "none" if row["rate"] is None else f"{'' if row['sure'] else '~'}{rate_text(row['rate'])}/s"
        speed = MISSING if row["tokens_per_s"] is None else f"{row['tokens_per_s']:.0f}"
        figures = most, *_waits(row), speed, seconds_text(row["longest_gap_s"])
        table.add_row(str(row["seats"]), *figures, *memory[place : place + 1])
    return table


def _size(row: Found) -> str:
    return MISSING if row["peak_memory_bytes"] is None else bytes_text(row["peak_memory_bytes"])


def _waits(row: Found) -> tuple[str, str]:
    return (OVERLOADED, "") if row["overloaded"] else (seconds_text(row["ttft_s"]), seconds_text(row["reply_s"]))


def confirmed_table(runs: Sequence[Found]) -> Table:
    """One line for each real run and objective."""
    table = plain_table("Real runs beside the same arrivals simulated")
    table.add_column("rate", no_wrap=True)
    table.add_column("objective", overflow="fold")
    for name in ("simulated", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for run in runs:
        for place, row in enumerate(run["objectives"]):
            head, verdict = ("", "") if place else (f"{run['rate']:g}/s", run["verdict"] or MISSING)
            error = MISSING if row["error"] is None else f"{row['error']:+.1%}"
            times = (seconds_text(row["simulated_s"]), seconds_text(row["measured_s"]))
            table.add_row(head, row["objective"], *times, error, row["state"] or MISSING, verdict)
    return table
