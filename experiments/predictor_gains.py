"""What it gains to know beforehand how long replies will be: shortest first by each predictor, against a policy with
the same seats that reorders nothing, on the same arrivals."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from experiments.analysis import CellSummary
from experiments.comparison import Comparison, policy_label
from experiments.run_folder import Summary
from experiments.seeds import over_seeds
from experiments.statistics import Interval
from experiments.tables import (
    GREY,
    MISSING,
    SERVERS,
    changed_settings,
    figure,
    offered,
    place,
    plain_table,
    seconds_text,
)
from router.policies import Shortest

METRICS = {"ttft": "First word", "reply": "Whole reply"}
FIGURES = ("mean", "p95")
NONE_SHOWN = "none shown"
EXPLAINED = """Wrong order: of two replies of unlike length, how often the longer one was
guessed to be shorter; 50 % is a coin toss. Below 0: later. None shown: no
difference could be shown, since the interval (from five seeds up) holds 0."""


@dataclass(frozen=True, slots=True)
class Gain:
    """By how many seconds a figure is sooner than the other policy's, the mean over seeds; below 0 it is later.
    `interval` and `shown` as in `experiments.comparison`."""

    sooner: float | None
    interval: Interval | None
    shown: bool | None


@dataclass(frozen=True, slots=True)
class Predictor:
    """One predictor: how often it puts two replies in the wrong order, and its gains by figure."""

    name: str
    wrong_order: float | None
    gains: dict[str, Gain]


@dataclass(frozen=True, slots=True)
class PredictorGains:
    """Every predictor at one rate, against `than`."""

    than: CellSummary
    seeds: int
    predictors: list[Predictor]

    @property
    def where(self) -> str:
        return f"{offered(self.than)}, {self.than.params['seats']} seats"


def predictor_gains(summary: Summary) -> list[PredictorGains]:
    """One for each rate and number of seats at which two predictors or more, and another policy, served several
    seeds."""
    rows = [row for row in over_seeds(summary.cells) if "seats" in row.params]
    where = sorted({(row.rate or 0.0, row.params["seats"]) for row in rows})
    found = [_gains(summary, [r for r in rows if ((r.rate or 0.0), r.params["seats"]) == each]) for each in where]
    return [each for each in found if each is not None]


def _gains(summary: Summary, rows: Sequence[CellSummary]) -> PredictorGains | None:
    guessing = [row for row in rows if row.policy == Shortest.name]
    others = sorted([row for row in rows if row.policy != Shortest.name], key=place)
    if not summary.comparisons or not others or len({row.params["predictor"] for row in guessing}) < 2:
        return None
    than = others[0]
    at = [each for each in summary.comparisons if each.rate == than.rate]
    made = [Predictor(_name(row), row.wrong_order, _gained(at, row, than)) for row in guessing]
    made.sort(key=lambda each: (1.0 if each.wrong_order is None else each.wrong_order, each.name))
    return PredictorGains(than, max(len(each.seeds) for each in at), made)


def _name(row: CellSummary) -> str:
    """The predictor, and what else distinguishes the policy."""
    others = [word for word in changed_settings(row) if not word.startswith(("predictor=", "seats="))]
    return " ".join([str(row.params["predictor"]), *others])


def _gained(found: Sequence[Comparison], row: CellSummary, than: CellSummary) -> dict[str, Gain]:
    names = [f"{metric}.{name}" for metric in METRICS for name in FIGURES]
    return {name: _gain(found, name, policy_label(row), policy_label(than)) for name in names}


def _gain(found: Sequence[Comparison], metric: str, policy: str, than: str) -> Gain:
    for each in found:
        if each.metric == metric and {each.policy, each.than} == {policy, than} and each.mean is not None:
            sign = -1 if each.policy == policy else 1
            low, high = sorted(sign * end for end in each.interval or (0.0, 0.0))
            return Gain(sign * each.mean, (low, high) if each.interval else None, each.shown)
    return Gain(None, None, None)


def untold(found: Sequence[Comparison], told: Sequence[PredictorGains]) -> list[Comparison]:
    """The comparisons that these tables do not show, and not those of one predictor with another either."""
    bases = {(each.than.rate, policy_label(each.than)) for each in told}
    rates = {rate for rate, _ in bases}

    def covered(each: Comparison) -> bool:
        guessing = [name for name in (each.policy, each.than) if name.partition(":")[0] == Shortest.name]
        other = each.than if each.policy in guessing else each.policy
        return each.rate in rates and (len(guessing) == 2 or (len(guessing) == 1 and (each.rate, other) in bases))

    return [each for each in found if not covered(each)]


# --- as people read it ---


def gains_tables(told: Sequence[PredictorGains]) -> list[Table]:
    """Two for each rate and number of seats where something can be said: of the first word, and of the whole reply."""
    tables = [_table(each, metric) for each in told if not _nothing_shown(each) for metric in METRICS]
    if tables:
        tables[-1].caption = Text(EXPLAINED)
    return tables


def gains_lines(told: Sequence[PredictorGains]) -> list[str]:
    """Where no predictor has a difference that could be shown, that there is none."""
    return [
        f"Shortest first at {each.where}, {each.seeds} seeds: no difference from {server_name(each.than)} could be "
        f"shown, whatever the predictor (the wait for a seat there, p95: {seconds_text(each.than.queue_wait.p95)})."
        for each in told
        if _nothing_shown(each)
    ]


def _nothing_shown(of: PredictorGains) -> bool:
    return all(gain.shown is False for each in of.predictors for gain in each.gains.values())


def _table(of: PredictorGains, metric: str) -> Table:
    what = METRICS[metric]
    table = plain_table(f"{what}, by predictor: sooner than {server_name(of.than)}, {of.where}, {of.seeds} seeds")
    table.add_column("predictor", overflow="fold")
    for head in ("wrong\norder", *[words for name in FIGURES for words in (f"{name}\nsooner by", "95 %\ninterval")]):
        table.add_column(head, justify="right", no_wrap=True)
    for each in of.predictors:
        wrong = MISSING if each.wrong_order is None else f"{each.wrong_order:.0%}"
        gains = [each.gains[f"{metric}.{name}"] for name in FIGURES]
        table.add_row(each.name, wrong, *[words for gain in gains for words in _words(gain)])
    return table


def _words(gain: Gain) -> tuple[Text, str]:
    """A gain and its interval."""
    said = Text(MISSING if gain.sooner is None else f"{signed(gain.sooner)} s")
    if gain.interval is None:
        return Text(said.plain, style=GREY), MISSING
    return said if gain.shown else Text(NONE_SHOWN), " to ".join(map(signed, gain.interval))


def signed(seconds: float) -> str:
    """A difference, as few digits as a figure has."""
    return ("-" if seconds < 0 else "") + figure(abs(seconds))


def server_name(row: CellSummary) -> str:
    return SERVERS.get(row.policy, row.policy)
