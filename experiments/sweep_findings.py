"""What a sweep found: tokens a second by replies at once, the gain over one, and the limit that memory sets."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments import reference
from experiments.analysis import CellRecords
from experiments.planned import Planned, planned
from experiments.tables import MISSING, plain_table, seconds_text


def findings(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any]:
    """`rows`, one for each batch that was planned, and `limits`, one for each type of weights."""
    plan = [each for each in planned(manifest, cells) if "replies" in each.facts]
    rows = [_row(each) for each in plan]
    for row in rows:
        row["gain"] = _ratio(row["tokens_per_s"], _alone(rows, row["weights"]))
    kinds = dict.fromkeys(row["weights"] for row in rows)
    return {"rows": rows, "limits": [_limit(kind, plan, rows) for kind in kinds]}


def _row(of: Planned) -> dict[str, Any]:
    replies, whole = of.facts["replies"], of.lost is None
    speed = of.figures.tokens_per_s if whole else None
    return {
        "cell": of.name,
        "weights": of.facts["weights"],
        "replies": replies,
        "tokens": of.figures.tokens,
        "tokens_per_s": speed,
        "tokens_per_s_per_reply": _ratio(speed, replies),
        "done_s": of.figures.done_s if whole else None,
        "lost": of.lost,
    }


def _alone(rows: list[dict[str, Any]], weights: str) -> float | None:
    return next((row["tokens_per_s"] for row in rows if row["weights"] == weights and row["replies"] == 1), None)


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _limit(weights: str, plan: Sequence[Planned], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rough limit of one reply's tokens a second: every step reads every weight once."""
    known = next((each.worker for each in plan if each.facts["weights"] == weights and each.worker), {})
    bandwidth, size = known.get("bandwidth_bytes_per_s"), known.get("bytes_per_step")
    limit, alone = _ratio(bandwidth, size), _alone(rows, weights)
    return {
        "weights": weights,
        "dtype": known.get("dtype"),
        "bandwidth_bytes_per_s": bandwidth,
        "bytes_per_step": size,
        "limit_tokens_per_s": limit,
        "alone_tokens_per_s": alone,
        "fraction": _ratio(alone, limit),
    }


def show(console: Console, found: Mapping[str, Any]) -> None:
    """One table for each type of weights, and its limit in a sentence."""
    for limit in found["limits"]:
        rows = [row for row in found["rows"] if row["weights"] == limit["weights"]]
        console.print(_table(limit, rows))
        for row in rows:
            if row["lost"]:
                console.print(f"{row['replies']} at once: {row['lost']}", soft_wrap=True)
        if limit["limit_tokens_per_s"]:
            console.print(_limit_text(limit), soft_wrap=True)
    if len(found["limits"]) > 1:
        console.print(_comparison(found["rows"]))


def _table(limit: Mapping[str, Any], rows: list[dict[str, Any]]) -> Table:
    kind = f", {limit['weights']} weights ({limit['dtype']})" if limit["dtype"] else ""
    table = plain_table(f"Replies started together{kind}")
    for name in (
        "replies\nat once",
        "tokens/s\nin total",
        "tokens/s\nper reply",
        "time for\nevery reply",
        "gain over\none",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        gain = MISSING if row["gain"] is None else f"{row['gain']:.1f}x"
        table.add_row(
            str(row["replies"]),
            _speed(row["tokens_per_s"]),
            _speed(row["tokens_per_s_per_reply"]),
            seconds_text(row["done_s"]),
            gain,
        )
    return table


def _limit_text(limit: Mapping[str, Any]) -> str:
    share = "" if limit["fraction"] is None else f"; one reply alone reached {limit['fraction']:.0%} of it"
    return (
        f"Rough limit of one reply: {limit['bandwidth_bytes_per_s'] / 1e9:.3g} GB/s of memory, "
        f"{limit['bytes_per_step'] / 1e9:.3g} GB of weights a step: {limit['limit_tokens_per_s']:.3g} tokens/s{share}."
    )


def _comparison(rows: list[dict[str, Any]]) -> Table:
    kinds = list(dict.fromkeys(row["weights"] for row in rows))
    table = plain_table("Tokens/s in total, by type of weights")
    table.add_column("replies\nat once", justify="right")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for count in sorted({row["replies"] for row in rows}):
        found = {row["weights"]: row["tokens_per_s"] for row in rows if row["replies"] == count}
        table.add_row(str(count), *(_speed(found.get(kind)) for kind in kinds))
    return table


def show_study(console: Console, found: Mapping[str, Any]) -> None:
    """The study's sweep beside ours."""
    table = plain_table("Beside the study's sweep (Qwen3-4B, 4-bit, M4 Max): ours / the study's")
    for name in ("replies\nat once", "tokens/s\nin total", "time for\nevery reply", "gain over\none"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found["rows"]:
        study = reference.SWEEP.get(row["replies"])
        if study is None:
            continue
        gain = MISSING if row["gain"] is None else f"{row['gain']:.1f}"
        table.add_row(
            str(row["replies"]),
            f"{_speed(row['tokens_per_s'])} / {study.tokens_per_s:.0f}",
            f"{seconds_text(row['done_s'])} / {study.done_s:.2f} s",
            f"{gain} / {study.tokens_per_s / reference.SWEEP[1].tokens_per_s:.1f}",
        )
    console.print(table)


def _speed(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}" if value >= 99.5 else f"{value:.1f}"
