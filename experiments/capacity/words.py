"""What a search for the capacity found, in sentences: the headline, the policies compared, and what is recommended."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.capacity.search import FOUND, NONE, NOT_DETERMINED
from experiments.verdict import INVALID

Found = Mapping[str, Any]
MINUTE = 60


def headline(found: Found) -> str:
    """The answer, on one line."""
    return f"Simulated: {_answer(found)}{_others(found)}{_confirmed(found)}."


def _answer(found: Found) -> str:
    best, kept, target = best_of(found), " and ".join(found["objectives"]), found["target"]
    if best is None:
        return _without(found, kept)
    most = f"{named(best)} serves up to {rate_text(best['rate'])} requests a second ({interval_text(best)})"
    if target is None:
        return f"{most} with {kept}{_bounded(best)}"
    if best["target"] == "met":
        return f"{named(best)} is enough for {target:g}/s with {kept}: it serves up to {_rate(best)}"
    if best["target"] == NOT_DETERMINED:
        return f"whether {target:g}/s can be served with {kept} is not determined: {most}"
    return f"nothing that was tried serves {target:g}/s with {kept}: {most}"


def _without(found: Found, kept: str) -> str:
    """Of a search without a rate."""
    rows = found["policies"]
    if all(row["state"] == NONE for row in rows):
        return f"no policy meets {kept} at any rate: {rows[0]['reason']} ({rows[0]['kind']})"
    row = next(row for row in rows if row["state"] == NOT_DETERMINED)
    return f"the highest rate with {kept} is not determined: {named(row)}, {row['reason']}"


def _others(found: Found) -> str:
    best = best_of(found)
    if best is None or found["target"] is not None:
        return ""
    said = [_briefly(found, row) for row in found["policies"] if row is not best]
    return f"; {', '.join(said)}" if said else ""


def _briefly(found: Found, row: Found) -> str:
    ratio = against_best(found, row)
    if row["state"] != FOUND or ratio is None:
        return f"{row['kind']} {'serves none' if row['state'] == NONE else 'is not determined'}"
    return f"{row['kind']} {_share(ratio['ratio']) if ratio['shown'] else 'as many'}"


def _bounded(row: Found) -> str:
    return ", which is all that it gets done" if row["bounded"] else ""


def _confirmed(found: Found) -> str:
    """What real runs said of it, if there were any."""
    runs = found.get("confirmed") or []
    if not runs:
        return ""
    if INVALID in [each["verdict"] for each in runs]:
        return "; its real runs are INVALID, not to be relied on"
    missed = [f"{each['rate']:g}/s" for each in runs if each["expected"] == "met" and "missed" in states(each)]
    if missed:
        return f"; a real run at {missed[0]} did not meet them"
    if all(set(states(each)) == {"met"} for each in runs if each["expected"] == "met"):
        return "; a real run met them at " + next(f"{each['rate']:g}/s" for each in runs if each["expected"] == "met")
    return "; real runs could not tell"


def states(run: Found) -> list[str | None]:
    """What became of every objective in a real run."""
    return [each["state"] for each in run["objectives"]]


# --- beneath the tables ---


def comparison_lines(found: Found) -> Iterator[str]:
    """Every other policy beside the best, on the same arrivals."""
    best = best_of(found)
    for row in found["policies"]:
        if best is None or row is best:
            continue
        versus = against_best(found, row)
        if versus is not None:
            yield f"{capital(row['kind'])} {_versus(versus, best['kind'])}."


def _versus(versus: Found, other: str) -> str:
    if versus["interval"] is None:
        return f"serves {versus['ratio']:.2f} times as many as {other} (too few seeds to say how sure that is)"
    low, high = versus["interval"]
    if low == high == 1:
        return f"serves exactly as many as {other}, seed by seed"
    if versus["shown"]:
        ends = sorted(abs(end - 1) for end in (low, high))
        return f"serves {_share(versus['ratio'])} than {other} (95 % interval {ends[0]:.1%} to {ends[1]:.1%})"
    apart = f"{versus['ratio'] - 1:+.1%}, 95 % interval {low - 1:+.1%} to {high - 1:+.1%}"
    return f"serves as many as {other}, as far as can be told ({apart})"


def recommendation_lines(found: Found) -> Iterator[str]:
    """What to do with it, and how that is said to another server."""
    best = best_of(found)
    if best is None:
        yield "Nothing can be recommended."
        return
    target, rate = found["target"], found["target"] or found["seats"]["offered"]
    several = len(found["seats"]["rows"]) > 1
    fewest = "" if not several else ", the fewest seats that are enough" if best["target"] == "met" else FEWEST
    yield f"Recommended: {named(best)}{fewest}."
    if target is None or best["target"] == "met":
        slack = "" if target is None else f", with {best['rate'] / target - 1:.0%} to spare"
        yield f"{rate:g}/s is {int(rate * MINUTE):,} users who each ask once a minute{slack}."
    yield f"Nearest flags, not tested there: mlx_lm.server {' '.join(found['flags'])}"
    if best["policy"].partition(":")[0] != "continuous":
        yield "(That server admits in order of arrival, as continuous does.)"


FEWEST = ", the fewest seats that serve as many as any that were tried"


def remark_lines(found: Found) -> Iterator[str]:
    """What a reader must know beside the figures."""
    for row in found["policies"]:
        if row["state"] != FOUND:
            yield f"{capital(row['kind'])}: {row['state']}; {row['reason']}."
        if row["beyond"] is not None:
            yield row["beyond"]
        if row["bounded"]:
            yield f"{capital(row['kind'])}: that is all it gets done; the objectives hold even there."
    if found["same_lengths"] and any(row["policy"].startswith("shortest") for row in found["policies"]):
        yield "All these replies are equally long, so shortest first has nothing to go by; see --workload mixed."


def memory_line(seats: Found) -> str:
    """Where the memory in the table is from."""
    sources = {row["memory_from"] for row in seats["rows"]} - {None}
    if not sources:
        return "Peak memory: not measured (name the --model that the profile is of, or --confirm on one)."
    if "measured" in sources:
        return "Peak memory: measured by the real runs of the recommended seats."
    return "Peak memory: by the model's configuration, weights and a KV cache of 16 bits on every seat."


def confirmation_lines(runs: Sequence[Found]) -> Iterator[str]:
    """What each real run says of the search."""
    for run in runs:
        yield f"{_placed(run)}: {_came_to(run)}."


def _placed(run: Found) -> str:
    expected = "should meet all" if run["expected"] == "met" else "should be too much"
    return f"Real, {run['requests']:,} requests at {run['rate']:g}/s ({expected})"


def _came_to(run: Found) -> str:
    known = {each["objective"]: each["state"] for each in run["objectives"]}
    missed = [text for text, state in known.items() if state == "missed"]
    if missed:
        return f"missed {' and '.join(missed)}"
    if set(known.values()) == {"met"}:
        return "met all"
    if set(known.values()) == {None}:
        return "not measured"
    return "not determined; what was measured is too near the limit for so few requests"


def best_of(found: Found) -> Found | None:
    rows: Sequence[Found] = found["policies"]
    return None if found["best"] is None else rows[found["best"]]


def against_best(found: Found, row: Found) -> dict[str, Any] | None:
    """This policy's highest rate over the best one's."""
    best = best_of(found)
    for each in found["comparisons"]:
        if best is not None and {each["policy"], each["than"]} == {row["label"], best["label"]}:
            return dict(each) if each["policy"] == row["label"] else _turned(each)
    return None


def _turned(versus: Found) -> dict[str, Any]:
    interval = versus["interval"] and (1 / versus["interval"][1], 1 / versus["interval"][0])
    return {**versus, "ratio": 1 / versus["ratio"], "interval": interval}


def _share(ratio: float) -> str:
    return f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'fewer'}"


def named(row: Found) -> str:
    """A server with its seats, where it has several."""
    return row["kind"] if row["seats"] == 1 else f"{row['kind']} with {row['seats']} seats"


def _rate(row: Found) -> str:
    return f"{rate_text(row['rate'])}/s ({interval_text(row)})"


def rate_text(rate: float) -> str:
    """Three digits, those after the last that is not 0 among them."""
    return f"{rate:#.3g}".removesuffix(".") if rate < 1_000 else f"{rate:,.0f}"


def interval_text(row: Found) -> str:
    low, high = row["interval"]
    return f"95 % interval {rate_text(low)} to {rate_text(high)}"


def capital(words: str) -> str:
    return words[:1].upper() + words[1:]
