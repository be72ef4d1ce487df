"""What prefix caching saved, whether answers stayed the same, and how many were right."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from clients import sorting
from experiments import reference
from experiments.analysis import CellRecords
from experiments.answers import fields_right, right
from experiments.planned import Planned, planned
from experiments.prefix import CACHED, COLD
from experiments.sameness import Difference, Sameness, compare, parting
from experiments.statistics import Spread, median, spread
from experiments.tables import MISSING, plain_table, seconds_text
from protocol.clock import seconds
from protocol.records import RequestRecord
from protocol.sizes import binary_text


def findings(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any]:
    """`rows` for both cells, how much sooner the first word comes, and whether answers stay the same."""
    settings = manifest["settings"]
    plan = planned(manifest, cells)
    rows = [_row(each, settings["rate"] is not None) for each in plan]
    ttfts = {row["cell"]: row["ttft_p50_s"] for row in rows}
    cold, cached = ttfts.get(COLD), ttfts.get(CACHED)
    return {
        "rows": rows,
        "rate": settings["rate"],
        "timestamp_first": settings["timestamp_first"],
        "sooner": cold / cached if cold and cached else None,
        "sameness": asdict(_sameness(plan)),
    }


def _row(of: Planned, queued: bool) -> dict[str, Any]:
    """The figures of one cell. Emails sorted one at a time all wait from the start, so that time does not count."""
    done, worker = of.done, of.worker
    first, whole = (
        (of.figures.ttft, of.figures.reply) if queued else (_served(done, "first_token"), _served(done, "last_token"))
    )
    return {
        "cell": of.name,
        "label": of.label,
        "emails": of.facts["emails"],
        "completed": len(done),
        "lost": of.lost,
        "prompt_tokens": _typical([request.prompt_tokens for request in done]),
        "prompt_tokens_read": _typical([_read(request) for request in done]),
        "shared_tokens": max([request.reused or 0 for request in done], default=None),
        "ttft_p50_s": first.p50,
        "ttft_p50_interval_s": first.p50_interval,
        "ttft_p95_s": first.p95,
        "reply_p50_s": whole.p50,
        "reply_p95_s": whole.p95,
        "right": sum(right(request.text or "", sorting.labels(request.id)) for request in done),
        "fields_right": sum(fields_right(request.text or "", sorting.labels(request.id)) for request in done),
        "prefix_hits": worker.get("prefix_hits"),
        "prefix_misses": worker.get("prefix_misses"),
        "prefix_evicted": worker.get("prefix_evicted"),
        "prefix_bytes": worker.get("prefix_bytes"),
        "peak_memory_bytes": of.figures.peak_memory_bytes,
    }


def _served(done: Sequence[RequestRecord], end: str) -> Spread:
    """Seconds from the start in the worker to `end`, by the worker's clock."""
    pairs = [(request.started, getattr(request, end)) for request in done]
    return spread([seconds(at - started) for started, at in pairs if started is not None and at is not None])


def _read(request: RequestRecord) -> int | None:
    return None if request.prompt_tokens is None else request.prompt_tokens - (request.reused or 0)


def _typical(counts: Sequence[int | None]) -> int | None:
    typical = median([count for count in counts if count is not None])
    return None if typical is None else round(typical)


def _sameness(plan: Sequence[Planned]) -> Sameness:
    cold, cached = plan
    return compare(cold.cell.requests, cached.cell.requests, cold.worker.get("dtype"))


def show(console: Console, found: Mapping[str, Any]) -> None:
    """The study's table of ours, and what it means in sentences."""
    rate = found["rate"]
    how = "one at a time" if rate is None else f"{rate:g} a second, continuous"
    table = plain_table(f"Emails sorted, {how}: medians")
    table.add_column("")
    for name in ("prompt\ntokens", "of them\nread", "first word\n(TTFT)", "whole\nanswer", "all 4 fields\nright"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found["rows"]:
        table.add_row(
            row["label"],
            _count(row["prompt_tokens"]),
            _count(row["prompt_tokens_read"]),
            seconds_text(row["ttft_p50_s"]),
            seconds_text(row["reply_p50_s"]),
            f"{row['right']} / {row['emails']}",
        )
    console.print(table)
    for line in _lines(found):
        console.print(line, soft_wrap=True)


def _lines(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{row['label']}: {row['lost']}" for row in found["rows"] if row["lost"]]
    if found["sooner"]:
        lines.append(f"The first word comes {found['sooner']:.1f} times sooner with the prefix cached.")
    for row in found["rows"]:
        if row["completed"]:
            of = len(sorting.FIELDS) * row["completed"]
            lines.append(f"{row['label']}: {row['fields_right']} of {of} fields right.")
    lines += [
        line for row in found["rows"] if row["cell"] == CACHED and row["completed"] for line in _cache_lines(row, found)
    ]
    same = found["sameness"]
    if same["compared"]:
        lines.append(f"{same['same']} of {same['compared']} answers are the same with the prefix cached.")
        lines += [parting(Difference(**each)) for each in same["differences"]]
    return lines


def _cache_lines(row: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What the cache of shared starts did, and where it did nothing, why."""
    if row["prefix_hits"]:
        return [
            f"Shared start: {row['shared_tokens']:,} tokens, {binary_text(row['prefix_bytes'])} of cache; "
            f"{row['prefix_hits']} hits, {row['prefix_misses']} misses, {row['prefix_evicted']} given up."
        ]
    if found["timestamp_first"]:
        return ["No two prompts start alike, so nothing could be reused: what never changes goes first."]
    if not row["prefix_bytes"]:
        return ["Nothing was kept: the shared start's cache is larger than --prefix-cache."]
    return ["Nothing could be reused: there was no second email."]


def show_study(console: Console, found: Mapping[str, Any]) -> None:
    """The study's table."""
    table = plain_table("The study's (Qwen3-8B, 8-bit): 252 MiB of cache, 19 of 20 answers the same")
    table.add_column("")
    for name in ("prompt tokens\nread", "first word\n(TTFT)", "whole\nanswer", "all 4 fields\nright"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in reference.PREFIX.items():
        table.add_row(label, f"{row.read:,}", f"{row.ttft:.2f} s", f"{row.reply:.2f} s", f"{row.right} / 20")
    console.print(table)


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"
