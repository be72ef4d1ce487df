"""What prefix caching saved, whether answers stayed the same, and how many were right."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from clients import sorting
from experiments import reference
from experiments.analysis import CellRecords, CellSummary
from experiments.answers import fields_right, right
from experiments.prefix import CACHED, COLD, LABELS
from experiments.sameness import Difference, Sameness, compare, parting
from experiments.statistics import Spread, median, spread
from experiments.tables import MISSING, plain_table, seconds_text
from protocol.clock import seconds
from protocol.records import RequestRecord

MIB = 2**20


def findings(
    manifest: Mapping[str, Any], cells: Mapping[str, CellRecords], figures: Mapping[str, CellSummary]
) -> dict[str, Any]:
    """`rows` for both cells, what the prompts are made of, how much sooner the first word comes, and `sameness`."""
    rate = manifest["settings"]["rate"]
    rows = [_row(name, cells[name], figures[name], rate is not None) for name in LABELS if name in figures]
    refused = manifest.get("refused") or {}
    ttfts = {row["cell"]: row["ttft_p50_s"] for row in rows}
    cold, cached = ttfts.get(COLD), ttfts.get(CACHED)
    return {
        "rows": rows,
        "refused": dict(refused),
        "rate": rate,
        "sooner": cold / cached if cold and cached else None,
        "sameness": asdict(_sameness(cells)) if COLD in cells and CACHED in cells else None,
    }


def _row(name: str, cell: CellRecords, figures: CellSummary, queued: bool) -> dict[str, Any]:
    """The figures of one cell. Emails sorted one at a time all wait from the start, so that time does not count."""
    done = [request for request in cell.requests if request.end == "completed"]
    facts = cell.worker.facts if cell.worker else {}
    first, whole = (
        (figures.ttft, figures.reply) if queued else (_served(done, "first_token"), _served(done, "last_token"))
    )
    return {
        "cell": name,
        "label": LABELS[name],
        "emails": figures.requests,
        "completed": figures.completed,
        "prompt_tokens": _typical([request.prompt_tokens for request in done]),
        "prompt_tokens_read": _typical([_read(request) for request in done]),
        "prompt_tokens_reused": _typical([request.reused for request in done]),
        "ttft_p50_s": first.p50,
        "ttft_p95_s": first.p95,
        "reply_p50_s": whole.p50,
        "reply_p95_s": whole.p95,
        "right": sum(right(request.text or "", sorting.labels(request.id)) for request in done),
        "fields_right": sum(fields_right(request.text or "", sorting.labels(request.id)) for request in done),
        "prefix_hits": facts.get("prefix_hits"),
        "prefix_misses": facts.get("prefix_misses"),
        "prefix_evicted": facts.get("prefix_evicted"),
        "prefix_bytes": facts.get("prefix_bytes"),
        "peak_memory_bytes": figures.peak_memory_bytes,
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


def _sameness(cells: Mapping[str, CellRecords]) -> Sameness:
    worker = cells[COLD].worker
    return compare(cells[COLD].requests, cells[CACHED].requests, worker.facts.get("dtype") if worker else None)


def show(console: Console, found: Mapping[str, Any]) -> None:
    """The study's table of ours, and what it means in sentences."""
    rate = found["rate"]
    table = plain_table(
        f"Emails sorted, {'one at a time' if rate is None else f'{rate:g} a second, continuous'}: medians"
    )
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
            f"{row['right']} / {row['completed']}",
        )
    console.print(table)
    for line in _lines(found):
        console.print(line, soft_wrap=True)


def _lines(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{LABELS.get(cell, cell)}: {reason}" for cell, reason in found["refused"].items()]
    if found["sooner"]:
        lines.append(f"The first word comes {found['sooner']:.1f} times sooner with the prefix cached.")
    for row in found["rows"]:
        of = len(sorting.FIELDS) * row["completed"]
        lines.append(f"{row['label']}: {row['fields_right']} of {of} fields right.")
    for row in found["rows"]:
        if row["prefix_hits"] or row["prefix_misses"]:
            lines.append(
                f"Prefix cache: {row['prefix_hits']} hits, {row['prefix_misses']} misses, {row['prefix_evicted']} "
                f"given up; {row['prefix_bytes'] / MIB:.0f} MiB kept at the end."
            )
            if not row["prefix_hits"]:
                lines.append("No two prompts start alike, so nothing could be reused: what never changes goes first.")
    if found["sameness"] is not None:
        same, compared = found["sameness"]["same"], found["sameness"]["compared"]
        lines.append(f"{same} of {compared} answers are the same with the prefix cached.")
        lines += [parting(Difference(**each)) for each in found["sameness"]["differences"]]
    return lines


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
