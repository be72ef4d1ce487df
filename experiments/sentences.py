"""What a run says in sentences, beneath its tables: objectives that were met or missed, and policies compared."""

from collections.abc import Sequence

from experiments.analysis import CellSummary
from experiments.comparison import Comparison
from experiments.objectives import Goodput, Outcome
from experiments.tables import SERVERS, figure

WHAT = {"ttft": "first words", "reply": "whole replies"}
TYPICAL = ("ttft.p50", "reply.p50")
MS_BELOW = 0.1


def objective_lines(cells: Sequence[CellSummary]) -> list[str]:
    """One sentence a cell and objective, and one for its goodput."""
    lines = []
    for cell in cells:
        lines += [f"{cell.label}: {_outcome(each)}." for each in cell.objectives]
        if cell.goodput is not None:
            lines.append(f"{cell.label}: {_goodput(cell.goodput)}.")
    return lines


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
