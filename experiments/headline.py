"""What a run found, in a sentence computed from its figures: what a person reads first."""

from collections.abc import Sequence

from experiments.analysis import CellSummary
from experiments.comparison import policy_label
from experiments.findings_headlines import HEADLINES, NOTHING
from experiments.run_folder import SIMULATED, Summary
from experiments.seeds import over_seeds, seeds_of
from experiments.statistics import Spread, overlap
from experiments.tables import SERVERS, changed_settings, highest, offered, seconds_text, setting_words
from experiments.verdict import INVALID

NAMES = SERVERS | {"static": "static batches", "continuous": "continuous batching"}
WHAT = {"ttft": "typical first word", "reply": "whole reply"}
CUT, RAISED, ALIKE = "cut", "raised", "alike"
UNSURE = "are too few to be sure of"
FAR_LESS = 2


def headline(summary: Summary) -> str:
    """What the run found, on one line: of a rush the best server against one at a time (without that, against the
    worst) at the highest rate; of others what they are about. An incomplete run says so first."""
    about = HEADLINES.get(summary.experiment)
    told = about(summary.findings) if about is not None and summary.findings is not None else _rush(summary)
    if summary.experiment == SIMULATED:
        told = f"Simulated: {told[:1].lower()}{told[1:]}"
    return told if summary.complete else f"Incomplete: {(summary.reason or 'no reason known').rstrip('.')}. {told}"


def _rush(summary: Summary) -> str:
    rows = highest(over_seeds(summary.cells))
    if not rows:
        return NOTHING
    served = [row for row in rows if row.ttft.p50 is not None and row.reply.p50 is not None]
    if not served:
        return f"Nothing was completed {_at(rows[0])}: {_ends(rows)}."
    told = _alone(summary, served[0]) if len(served) == 1 else _compared(summary, served)
    silent = [name_among(row, rows) for row in rows if row not in served]
    return f"{told}; {' and '.join(silent)} completed nothing." if silent else f"{told}."


def _ends(rows: Sequence[CellSummary]) -> str:
    ends = {end: sum(getattr(row, end) for row in rows) for end in ("rejected", "failed", "cancelled", "unfinished")}
    ends |= {"never sent": sum(row.unsent for row in rows)}
    said = [f"{count} {end}" for end, count in ends.items() if count]
    return f"of {sum(row.requests for row in rows)} requests {', '.join(said) or 'none was sent'}"


def _alone(summary: Summary, row: CellSummary) -> str:
    """One server's figures at its highest rate, and at its lowest beside them."""
    mine = [each for each in over_seeds(summary.cells) if policy_label(each) == policy_label(row)]
    lowest = min(mine, key=lambda each: each.rate or 0.0)
    first, whole = (seconds_text(_typical(row, metric)) for metric in WHAT)
    told = f"{_capital(name_among(row, mine))} {_at(row)}: {WHAT['ttft']} after {first}, {WHAT['reply']} after {whole}"
    if lowest.rate != row.rate:
        first, whole = (seconds_text(getattr(lowest, metric).p50) for metric in WHAT)
        told += f" ({_at(lowest)} {first} and {whole})"
    return _warned(summary, [row], told + _remarks(summary, [row]))


def _compared(summary: Summary, served: Sequence[CellSummary]) -> str:
    base = next((row for row in served if row.policy == "one"), None) or max(served, key=_first_word)
    best = min((row for row in served if row is not base), key=_first_word)
    names = [name_among(row, served) for row in (best, base)]
    ways = [_way(summary, best, base, metric) for metric in WHAT]
    if {*ways} == {ALIKE}:
        which = f"between {names[0]} and {names[1]} could be shown with {best.requests} requests {_at(best)}"
        told = f"no difference {which}: {_both(best, base)}"
    else:
        few = f"{best.requests} requests" if seeds_of(summary.cells) == 1 else None
        first, second = _said_first(names, best, base, ways[0]), _said_second(names[0], best, base, ways, few)
        where = _at(best) + ("" if ways[0] == ALIKE else f", against {names[1]}")
        told = f"{first} {where}; {second}" if second.endswith(UNSURE) else f"{first}; {second} {where}"
    return _warned(summary, [best, base], _capital(told) + _remarks(summary, [best, base]))


def _both(best: CellSummary, base: CellSummary) -> str:
    return ", ".join(f"{what} {_pair(best, base, metric)}" for metric, what in WHAT.items())


def _pair(best: CellSummary, base: CellSummary, metric: str) -> str:
    return " and ".join(seconds_text(_typical(row, metric)) for row in (best, base))


def _first_word(row: CellSummary) -> float:
    return row.ttft.p50 or 0.0


def _way(summary: Summary, best: CellSummary, base: CellSummary, metric: str) -> str:
    ours, theirs = _typical(best, metric), _typical(base, metric)
    if difference_shown(summary, best, base, metric) is False or seconds_text(ours) == seconds_text(theirs):
        return ALIKE
    return CUT if ours < theirs else RAISED


def difference_shown(summary: Summary, row: CellSummary, than: CellSummary, metric: str) -> bool | None:
    """Whether the medians of two rows differ beyond chance: by the comparison over seeds if there were several, else
    because their intervals do not overlap; None where neither is known."""
    if seeds_of(summary.cells) > 1:
        pair, asked = {policy_label(row), policy_label(than)}, (row.rate, f"{metric}.p50")
        found = [each for each in summary.comparisons if (each.rate, each.metric) == asked]
        return next((each.shown for each in found if {each.policy, each.than} == pair), None)
    ours, theirs = (getattr(each, metric).p50_interval for each in (row, than))
    common = overlap(ours, theirs)
    return None if common is None else not common


def _said_first(names: Sequence[str], best: CellSummary, base: CellSummary, way: str) -> str:
    before, after = _typical(base, "ttft"), _typical(best, "ttft")
    if way == ALIKE:
        pair = _pair(best, base, "ttft")
        return f"between {names[0]} and {names[1]} no difference in the {WHAT['ttft']} could be shown ({pair})"
    return f"{names[0]} {way} the {WHAT['ttft']} {_from_to(before, after)} ({_times(before, after)})"


def _said_second(name: str, best: CellSummary, base: CellSummary, ways: Sequence[str], few: str | None) -> str:
    """`few` names the requests of a single seed, which show less than the same crowd under two servers may suggest."""
    before, after = _typical(base, "reply"), _typical(best, "reply")
    if ways[1] == ALIKE and few is not None and seconds_text(before) != seconds_text(after):
        return f"the {WHAT['reply']} went {_from_to(before, after)}, which {few} {UNSURE}"
    if ways[1] == ALIKE:
        return f"no difference in the {WHAT['reply']} could be shown ({_pair(best, base, 'reply')})"
    if ways[0] != ways[1]:
        return f"{'it' if ways[0] != ALIKE else name} {ways[1]} the {WHAT['reply']} {_from_to(before, after)}"
    far_less = _ratio(_typical(base, "ttft"), _typical(best, "ttft")) > FAR_LESS * _ratio(before, after)
    return f"the {WHAT['reply']} {'only ' if far_less else ''}{_from_to(before, after)}"


def _remarks(summary: Summary, rows: Sequence[CellSummary]) -> str:
    """What such a sentence must not keep quiet."""
    seeds = seeds_of(summary.cells)
    said = [f"medians over {seeds} seeds"] if seeds > 1 else []
    if len(rows) == 2 and None in [difference_shown(summary, rows[0], rows[1], metric) for metric in WHAT]:
        said.append(f"too few {'seeds' if seeds > 1 else 'requests'} to say how sure that is")
    if any(row.completed < row.requests for row in rows):
        counts = " and ".join(f"{row.completed} of {row.requests}" for row in rows)
        said.append(f"of completed requests only, {counts}")
    return "".join(f"; {each}" for each in said)


def _warned(summary: Summary, rows: Sequence[CellSummary], told: str) -> str:
    """First of all that some of it cannot be relied on, if so."""
    invalid = any(cell.verdict == INVALID for cell in _cells_of(summary, rows))
    return f"From INVALID measurements, not to be relied on: {told}" if invalid else told


def _cells_of(summary: Summary, rows: Sequence[CellSummary]) -> list[CellSummary]:
    """The cells of every seed behind these rows."""
    policies = {policy_label(row) for row in rows}
    return [cell for cell in summary.cells if cell.rate == rows[0].rate and policy_label(cell) in policies]


def name_among(row: CellSummary, rows: Sequence[CellSummary]) -> str:
    """A server in words, with all its settings where another of these rows has the same policy."""
    name = NAMES.get(row.policy, row.policy)
    if sum(each.policy == row.policy and each.rate == row.rate for each in rows) > 1:
        return " ".join([name, *setting_words(row.params)])
    return " ".join([name, *changed_settings(row)])


def _at(row: CellSummary) -> str:
    return "when all come at once" if row.rate is None else f"at {offered(row)}"


def _typical(row: CellSummary, metric: str) -> float:
    spread: Spread = getattr(row, metric)
    return spread.p50 or 0.0


def _from_to(before: float, after: float) -> str:
    return f"from {seconds_text(before)} to {seconds_text(after)}"


def _times(before: float, after: float) -> str:
    ratio = max(_ratio(before, after), _ratio(after, before))
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x"


def _ratio(value: float, base: float) -> float:
    return value / base if base else float("inf")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
