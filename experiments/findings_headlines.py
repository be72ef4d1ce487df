"""The headline of every experiment that is not a rush, from its findings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.capacity.words import headline as capacity
from experiments.kv_quant_findings import real_bits
from experiments.statistics import overlap
from experiments.tables import figure, seconds_text
from protocol.sizes import bytes_text

NOTHING = "Nothing was measured."
FEWEST_TO_SHOW = 6  # of questions answered differently: the sign test's p is 2 * 0.5^n at best, below 0.05 from six up


def sweep(found: Mapping[str, Any]) -> str:
    """The batch that writes most, against one reply alone with the same weights."""
    measured = [row for row in found["rows"] if row["tokens_per_s"]]
    if not measured:
        return NOTHING
    best = max(measured, key=lambda row: row["tokens_per_s"])
    kind = f" with {best['weights']} weights" if len(found["limits"]) > 1 else ""
    total, each = figure(best["tokens_per_s"]), figure(best["tokens_per_s_per_reply"])
    told = f"{_replies(best['replies'])}{kind} wrote {total} tokens/s in total"
    alone = next((r for r in measured if r["replies"] == 1 and r["weights"] == best["weights"]), None)
    if alone is None:
        return f"{told}, {each} each."
    if alone is best:
        return f"{told}; more at once wrote no more." if len(measured) > 1 else f"{told}."
    return f"{told}, {best['gain']:.1f} times one alone; each reply {each} instead of {figure(alone['tokens_per_s'])}."


def _replies(count: int) -> str:
    return "One reply alone" if count == 1 else f"{count} replies at once"


def prefix(found: Mapping[str, Any]) -> str:
    """The first word without and with the cache of the shared start, and whether answers stayed the same."""
    cold, cached = found["rows"]
    measured = [row for row in (cold, cached) if row["ttft_p50_s"] is not None]
    if not measured:
        return NOTHING
    if len(measured) == 1:
        return f"Only one of two was measured: {measured[0]['label']}, {_first_word(measured[0])}."
    if not cached["prefix_hits"]:
        return f"Nothing could be reused: {_first_word(cold)} without, {seconds_text(cached['ttft_p50_s'])} with cache."
    return f"{_sooner(cold, cached)}{_same(found['sameness'])}."


def _first_word(row: Mapping[str, Any]) -> str:
    return f"typical first word {seconds_text(row['ttft_p50_s'])}"


def _sooner(cold: Mapping[str, Any], cached: Mapping[str, Any]) -> str:
    before, after = cold["ttft_p50_s"], cached["ttft_p50_s"]
    common = overlap(cold["ttft_p50_interval_s"], cached["ttft_p50_interval_s"])
    if common:
        pair = f"{seconds_text(before)} without and {seconds_text(after)} with it"
        return f"The cached prefix: no difference in the typical first word could be shown ({pair})"
    way, times = ("cut", before / after) if after < before else ("raised", after / before)
    told = f"Caching the {cached['shared_tokens']:,} shared tokens {way} the typical first word from"
    told += f" {seconds_text(before)} to {seconds_text(after)} ({times:.{0 if times >= 9.95 else 1}f}x)"
    few = f"{cached['completed']} emails are too few to say how sure that is"
    return told if common is not None else f"{told}; {few}"


def _same(sameness: Mapping[str, Any]) -> str:
    compared = sameness["compared"]
    return f"; {sameness['same']} of {compared} answers stayed the same" if compared else ""


def kv_quant(found: Mapping[str, Any]) -> str:
    """How much smaller each cache is, and how many names were still found, over all lengths."""
    measured = [row | {"bits": real_bits(row)} for row in found["rows"] if row["found"] is not None]
    totals = {bits: _total(measured, bits) for bits in sorted({row["bits"] for row in measured}, reverse=True)}
    if not totals:
        return NOTHING
    told = [f"{bits} bits{_saved(measured, bits)} found {hit} of {asked}" for bits, (hit, asked) in totals.items()]
    return f"A KV cache of {', of '.join(told)} names{_alike([*totals.values()])}."


def _total(rows: Sequence[Mapping[str, Any]], bits: int) -> tuple[int, int]:
    mine = [row for row in rows if row["bits"] == bits]
    return sum(row["found"] for row in mine), sum(row["asked"] for row in mine)


def _saved(rows: Sequence[Mapping[str, Any]], bits: int) -> str:
    saved = max((row["saved"] for row in rows if row["bits"] == bits and row["saved"]), default=None)
    return "" if saved is None else f" ({saved:.0%} smaller)"


def _alike(totals: Sequence[tuple[int, int]]) -> str:
    """Fewer differing answers than any test needs show no difference."""
    hits = [hit for hit, _ in totals]
    few = len(totals) > 1 and max(hits) - min(hits) < FEWEST_TO_SHOW and len({asked for _, asked in totals}) == 1
    return ": no difference in what is found could be shown" if few else ""


def kv_size(found: Mapping[str, Any]) -> str:
    """What all users' cache takes, against the weights and the memory."""
    told = found["figures"]
    users = "one user" if told["users"] == 1 else f"{told['users']:,} users"
    said = f"{found['model']} keeps {bytes_text(told['all_users_bytes'])} for {users} of {told['context']:,} tokens"
    if told["tokens_to_pass_weights"] is not None:
        said += f"; its cache passes its weights at {told['tokens_to_pass_weights']:,} tokens"
    if told["users_that_fit"] is not None:
        said += f"; {told['users_that_fit']:,} such users fit into {bytes_text(told['memory_bytes'])}"
    return f"{said}."


def repeat(found: Mapping[str, Any]) -> str:
    """How many answers were the same as the first time."""
    compared, same = (sum(row[key] for row in found["rows"]) for key in ("compared", "same"))
    if not compared:
        return NOTHING
    if same == compared:
        return f"All {compared} repeated answers were identical to the first."
    differ = [each for row in found["rows"] for each in row["differences"]]
    ties = sum(bool(each["near_tie"]) for each in differ)
    return f"{len(differ)} of {compared} repeated answers differ from the first, {ties} of them at a near-tie."


def selftest(found: Mapping[str, Any]) -> str:
    """How many goals were reached, and which were not."""
    goals = [each for each in found["properties"] if each["goal"] is not None]
    met = sum(each["passed"] is True for each in goals)
    missed = [f"{each['name']} {each['value']:.3g} {each['unit']}".strip() for each in goals if each["passed"] is False]
    unknown = sum(each["passed"] is None for each in goals)
    said = [f"The instrument met {met} of {len(goals)} goals on this machine"]
    said += [f"missed: {', '.join(missed)}"] if missed else []
    return "; ".join([*said, *([f"{unknown} not measured"] if unknown else [])]) + "."


HEADLINES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "sweep": sweep,
    "prefix": prefix,
    "kv-quant": kv_quant,
    "kv-size": kv_size,
    "capacity": capacity,
    "repeat": repeat,
    "selftest": selftest,
}
