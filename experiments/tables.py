"""The tables a person reads after a rush: what happened at each rate, in the study's shape."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.analysis import CellSummary
from experiments.load_state import NOT_DETERMINED, OVERLOADED, STABLE
from experiments.run_folder import SIMULATED, Summary
from experiments.seeds import alike, load_states, over_seeds, seeds_of
from experiments.statistics import PERCENTILES, Spread, smallest_for_interval
from experiments.verdict import VALID
from router.policies import POLICIES, Setting

MISSING, GREY = "n/a", "dim"
MANY, FEW_BATCHES = 10_000, 40
SIMULATED_MARK = "Simulated: "
LOADS = {
    OVERLOADED: "is overloaded: its queue grew throughout, so its percentiles depend on how long the run lasted.",
    STABLE: "is stable: its queue did not grow.",
    NOT_DETERMINED: "may be stable or overloaded: the run was too short to tell.",
}
SERVERS = {
    "one": "one at a time",
    "static": "static",
    "continuous": "continuous",
    "shortest": "shortest first",
    "priority": "by class",
    "deadline": "by deadline",
    "fair": "fair shares",
    "budget": "reading budget",
}


def seconds_text(value: float | None) -> str:
    return MISSING if value is None else f"{figure(value)} s"


def figure(value: float) -> str:
    """Two or three digits that matter, never more than thousandths: narrow enough for five pairs in 80 columns."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{digits}f}"


def rank_text(spread: Spread, name: str) -> Text:
    """A percentile, grey where there are too few values to say how sure it is."""
    return Text(seconds_text(getattr(spread, name)), style=shade(spread, name))


def too_small(spreads: Sequence[Spread], names: Sequence[str] = ("p50", "p95")) -> Text | None:
    """The remark below a table in which one of these percentiles is grey."""
    grey = [name for name in names if any(shade(spread, name) for spread in spreads)]
    needs = ", ".join(f"{name} needs {smallest_for_interval(PERCENTILES[name])}" for name in grey)
    return Text(f"(grey: n too small for an interval, {needs})", style=GREY) if grey else None


def shade(spread: Spread, name: str) -> str:
    return GREY if 0 < spread.n < smallest_for_interval(PERCENTILES[name]) else ""


def server(cell: CellSummary) -> str:
    """A policy in the study's words, with the settings that are not the default."""
    return " ".join([SERVERS.get(cell.policy, cell.policy), *changed_settings(cell)])


def changed_settings(cell: CellSummary) -> list[str]:
    """The settings of a cell's policy that are not the default; of a user's own all, since only its file knows."""
    kind = POLICIES.get(cell.policy)
    default = {} if kind is None else {key: getattr(kind(), key) for key in cell.params}
    return setting_words({key: value for key, value in cell.params.items() if value != default.get(key)})


def setting_words(settings: Mapping[str, Setting]) -> list[str]:
    """As people write them: `seats=4`."""
    return [f"{key}={value if isinstance(value, str) else format(value, 'g')}" for key, value in settings.items()]


def offered(cell: CellSummary) -> str:
    return "at once" if cell.rate is None else f"{cell.rate:g}/s"


def print_tables(console: Console, summary: Summary) -> None:
    """Both tables, of the medians over seeds where there are several, and what else must be said of the run."""
    rows, seeds = over_seeds(summary.cells), seeds_of(summary.cells)
    for table in (typical_table(rows, seeds), load_table(rows, seeds)):
        if summary.experiment == SIMULATED and isinstance(table.title, Text):
            table.title = Text.assemble(SIMULATED_MARK, table.title)
        console.print(table)
    for line in [*remarks(summary), *load_lines(summary.cells)]:
        console.print(line)


def highest(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """The cells at the highest rate, in the study's order of servers."""
    top = max((cell.rate for cell in cells if cell.rate is not None), default=None)
    return sorted([cell for cell in cells if cell.rate == top], key=place)


def typical_table(cells: Sequence[CellSummary], seeds: int = 1) -> Table:
    """One line a server at the highest rate: medians, the longest wait, and when all was done."""
    at_top = highest(cells)
    load = f", load {at_top[0].load:g}" if at_top[0].load is not None else ""
    over = f", over {seeds} seeds" if seeds > 1 else ""
    table = plain_table(
        f"{at_top[0].requests:,} requests, {offered(at_top[0])}{load}: the typical request (median{over})"
    )
    table.caption = too_small([spread for cell in at_top for spread in (cell.ttft, cell.writing, cell.reply)], ["p50"])
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
            rank_text(cell.ttft, "p50"),
            seconds_text(cell.ttft.max),
            rank_text(cell.writing, "p50"),
            Text(per_token, style=shade(cell.tpot, "p50")),
            rank_text(cell.reply, "p50"),
            seconds_text(cell.done_s),
        )
    return table


def load_table(cells: Sequence[CellSummary], seeds: int = 1) -> Table:
    """One line a cell, by rate: p50 and p95 of first word and whole reply, and tokens a second."""
    over = f", each the median over {seeds} seeds" if seeds > 1 else ""
    table = plain_table(f"By offered rate: p50 and p95{over}")
    table.caption = too_small([spread for cell in cells for spread in (cell.ttft, cell.reply)])
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
            *(rank_text(spread, name) for spread in (cell.ttft, cell.reply) for name in ("p50", "p95")),
            MISSING if cell.tokens_per_s is None else f"{cell.tokens_per_s:.0f}",
            done(cell),
        )
        previous = cell.rate
    return table


def done(cell: CellSummary) -> str:
    """How many of its requests completed; of very many the share, which is narrow enough for 80 columns."""
    if cell.requests < MANY:
        return f"{cell.completed}/{cell.requests}"
    return f"{cell.completed / cell.requests:.1%}"


def batches(sizes: Sequence[int]) -> str:
    """With how many requests batches left, one by one or, of very many, by size."""
    if len(sizes) <= FEW_BATCHES:
        return ", ".join(map(str, sizes))
    counts = sorted(Counter(sizes).items(), reverse=True)
    return ", ".join(f"{size} ({count:,} of them)" for size, count in counts)


def remarks(summary: Summary) -> list[str]:
    """What a reader must know beside the figures: when batches left, what was late or had no reply, how the machine
    drifted."""
    lines = [
        f"{cell.label}: batches left with {batches(cell.departures)}."
        for cell in summary.cells
        if cell.departures and seeds_of(summary.cells) == 1
    ]
    for cell in summary.cells:
        faults = {
            "sent over 1 ms late": cell.late,
            "rejected": cell.rejected,
            "failed": cell.failed,
            "cancelled": cell.cancelled,
        }
        said = [f"{count:,} {what}" for what, count in faults.items() if count]
        if said:
            lines.append(f"{cell.label}: of {cell.requests:,} requests, {', '.join(said)}.")
    if summary.drift is not None:
        what = "The machine drifted" if summary.drift["drifted"] else "No drift"
        change = summary.drift["change"]
        took = f"{abs(change):.1%} {'more' if change > 0 else 'less'} time"
        lines.append(f"{what}: {summary.drift['label']}, repeated at the end, took {took}.")
    return lines


def load_lines(cells: Sequence[CellSummary]) -> list[str]:
    """Whether the servers kept up at the highest rate; where seeds differ, at how many of them."""
    groups = [group for group in alike(highest(cells)) if group[0].rate is not None and load_states(group)]
    return [f"{server(group[0])} at {offered(group[0])} {_load(load_states(group))}" for group in groups]


def _load(states: Mapping[str, int]) -> str:
    if len(states) == 1:
        return LOADS[next(iter(states))]
    counts = ", ".join(f"{state} at {count}" for state, count in states.items())
    return f"depends on the arrivals: of {sum(states.values())} seeds, {counts}."


def verdict_lines(cells: Sequence[CellSummary]) -> list[str]:
    """Which cells are to be trusted: one line for all that have the same verdict for the same reasons."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for cell in cells:
        if cell.verdict is not None:
            alike.setdefault((cell.verdict, tuple(cell.reasons)), []).append(cell.label)
    if len(alike) == 1:
        labels = next(iter(alike.values()))
        who = f"All {len(labels)} cells" if len(labels) > 1 else f"The cell {labels[0]} is"
        return [f"{who} {verdict}{_because(reasons)}." for verdict, reasons in alike]
    return [
        f"{', '.join(labels)}: {verdict}{_because(reasons)}."
        for (verdict, reasons), labels in alike.items()
        if verdict != VALID
    ]


def _because(reasons: Sequence[str]) -> str:
    return f": {'; '.join(reasons)}" if reasons else ""


def place(cell: CellSummary) -> int:
    """A server's place in the study's tables; servers it did not have come last."""
    return [*SERVERS, cell.policy].index(cell.policy)


def plain_table(title: str) -> Table:
    """A table in the product's one style. A title may be wider than its table."""
    words = Text(title, style="bold", no_wrap=True, overflow="ignore")
    return Table(
        title=words,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
