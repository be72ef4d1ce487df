"""What a run says in sentences, beneath its tables: objectives that were met or missed, and policies compared."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from experiments.analysis import CellSummary
from experiments.comparison import Comparison
from experiments.objectives import Goodput, Outcome
from experiments.tables import MISSING, SERVERS, figure, place, plain_table

WHAT = {"ttft": "first words", "reply": "whole replies"}
TYPICAL = ("ttft.p50", "reply.p50")
MS_BELOW = 0.1
SENTENCES, ABREAST = 4, 3
EXPLAINED = "Not determined: it takes more requests to tell. Goodput: requests that met every objective."
UNKEPT = (
    "Of a simulated cell of more than 100,000 tokens one record a request is kept. There are no steps, so nothing is "
    "known of the seats over time and of the prompt tokens read; no messages, so of the gaps between words the longest "
    "alone is known; and no words of the replies."
)


def objective_parts(cells: Sequence[CellSummary]) -> list[Table | str]:
    """What became of the objectives: a few sentences, or where they would be many, tables."""
    lines = objective_lines(cells)
    return [*(lines if len(lines) <= SENTENCES else objective_tables(cells))]


def objective_lines(cells: Sequence[CellSummary]) -> list[str]:
    """One sentence a cell and objective, and one for its goodput."""
    lines = []
    for cell in cells:
        lines += [f"{cell.label}: {_outcome(each)}." for each in cell.objectives]
        if cell.goodput is not None:
            lines.append(f"{cell.label}: {_goodput(cell.goodput)}.")
    return lines


def objective_tables(cells: Sequence[CellSummary]) -> list[Table]:
    """A line for each cell, and a column for each objective, as many as 80 columns hold; goodput in the last table."""
    judged = sorted([cell for cell in cells if cell.objectives], key=lambda cell: (cell.rate or 0.0, place(cell)))
    names = list(dict.fromkeys(each.objective for cell in judged for each in cell.objectives))
    parts = [names[first : first + ABREAST] for first in range(0, len(names), ABREAST)]
    tables = [_objective_table(judged, part, last=part is parts[-1]) for part in parts]
    if tables:
        tables[-1].caption = Text(EXPLAINED)
    return tables


def _objective_table(cells: Sequence[CellSummary], names: Sequence[str], last: bool) -> Table:
    table = plain_table("Objectives: met or missed, and how many requests missed it")
    table.add_column("cell", overflow="fold")
    for head in [*[name.replace("<", "\n<") for name in names], *(["goodput"] if last else [])]:
        table.add_column(head, justify="right", no_wrap=True)
    for cell in cells:
        known = {each.objective: each for each in cell.objectives}
        share = MISSING if cell.goodput is None else f"{cell.goodput.share:.0%}"
        table.add_row(cell.label, *[_state(known.get(name)) for name in names], *([share] if last else []))
    return table


def _state(outcome: Outcome | None) -> str:
    if outcome is None or not outcome.n:
        return MISSING
    return f"{outcome.state}\n{outcome.misses:,} of {outcome.n:,}"


def comparison_lines(found: Sequence[Comparison]) -> list[str]:
    """One sentence for each pair of policies, rate and typical figure; all others are in summary.json."""
    return [f"{_place(each)}: {_comparison(each)}." for each in found if each.metric in TYPICAL]


def _outcome(outcome: Outcome) -> str:
    if not outcome.n:
        return f"{outcome.objective} not determined (no data)"
    said = f"{outcome.objective} {outcome.state} ({outcome.misses} of {outcome.n} missed it"
    if outcome.state != "not determined":
        return f"{said})"
    return f"{said}; with that many misses it takes {outcome.needed:,} requests to call it met)"


def _goodput(goodput: Goodput) -> str:
    per_s = "" if goodput.per_s is None else f", {figure(goodput.per_s)} a second"
    return f"goodput {goodput.share:.0%} ({goodput.requests} of {goodput.offered} met every objective{per_s})"


def _place(comparison: Comparison) -> str:
    return "All at once" if comparison.rate is None else f"At {comparison.rate:g}/s"


def _comparison(of: Comparison) -> str:
    metric, _, percentile = of.metric.partition(".")
    subject, other = f"{_server(of.policy)} {WHAT[metric]} ({percentile})", _server(of.than)
    if of.mean is None:
        return f"{subject} cannot be compared with {other}'s: no seed has both"
    sign, word = (-1, "sooner") if of.mean < 0 else (1, "later")
    if of.interval is None:
        few = "below five seeds the differences alone"
        if min(of.differences) < 0 < max(of.differences):
            amounts, unit = in_one_unit(of.differences)
            mixed = f"are sooner than {other}'s at some seeds and later at others"
            return f"{subject} {mixed}: {', '.join(amounts)} {unit} ({few}{_beside(of)})"
        amounts, unit = in_one_unit([sign * value for value in of.differences])
        return f"{subject} are {', '.join(amounts)} {unit} {word} than {other}'s ({few}{_beside(of)})"
    ends = sorted(sign * end for end in of.interval)
    (mean, low, high), unit = in_one_unit([abs(of.mean), *ends])
    sure = f"95 % interval {low} to {high}, {len(of.seeds)} seeds{_beside(of)}"
    if of.shown:
        return f"{subject} are {mean} {unit} {word} than {other}'s ({sure})"
    return f"{subject}: no difference from {other}'s could be shown (mean {mean} {unit} {word}, {sure})"


def _beside(of: Comparison) -> str:
    """What such a comparison must not keep quiet."""
    without = f"; {of.uncompleted} requests without a reply left out" if of.uncompleted else ""
    invalid = ", ".join(map(str, of.invalid))
    return without + (f"; INVALID measurements among them, at seed {invalid}" if invalid else "")


def in_one_unit(seconds: Sequence[float]) -> tuple[list[str], str]:
    """Durations in one unit: milliseconds where all are short."""
    short = max(map(abs, seconds)) < MS_BELOW
    factor = 1000 if short else 1
    return [("-" if value < 0 else "") + figure(abs(value) * factor) for value in seconds], "ms" if short else "s"


def _server(policy: str) -> str:
    """A policy in the words of the tables."""
    name, _, settings = policy.partition(":")
    return " ".join([SERVERS.get(name, name), *filter(None, settings.split(","))])
