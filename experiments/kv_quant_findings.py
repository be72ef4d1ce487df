"""What a KV cache of fewer bits found, saved, and cost in reading time."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from clients import needle
from experiments import reference
from experiments.analysis import CellRecords
from experiments.answers import found as named
from experiments.planned import Planned, planned
from experiments.statistics import median
from experiments.tables import MISSING, plain_table, seconds_text
from protocol.clock import seconds
from protocol.records import RequestRecord
from protocol.sizes import binary_text

UNQUANTIZED = 16


def findings(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any]:
    """`rows`, one for each cache and length of the pile; bytes saved are against the cache as the model computes it."""
    rows = [_row(each, manifest["settings"]["seed"]) for each in planned(manifest, cells)]
    whole = {row["context"]: row["kv_bytes"] for row in rows if row["kv_bits"] == UNQUANTIZED}
    for row in rows:
        base = whole.get(row["context"])
        row["saved"] = 1 - row["kv_bytes"] / base if row["kv_bytes"] and base else None
    return {"rows": rows}


def _row(of: Planned, seed: int) -> dict[str, Any]:
    done = of.done
    return {
        "cell": of.name,
        "kv_bits": of.facts["kv_bits"],
        "dtype": of.worker.get("dtype"),
        "context": of.facts["context"],
        "prompt_tokens": median([r.prompt_tokens for r in done if r.prompt_tokens is not None]),
        "asked": of.facts["questions"],
        "found": sum(_found(r.text or "", needle.name(r.id, seed)) for r in done) if done else None,
        "kv_bytes": of.worker.get("kv_bytes"),
        "read_p50_s": median([took for r in done if (took := _reading_s(r)) is not None]),
        "peak_memory_bytes": of.figures.peak_memory_bytes if done else None,
        "lost": of.lost,
    }


def _found(text: str, name: str) -> bool:
    """The right customer is named, and no other before."""
    return named(text, name) and needle.first_named(text) in (name, None)


def _reading_s(request: RequestRecord) -> float | None:
    """From the start in the worker to the first token, by the worker's clock."""
    if request.started is None or request.first_token is None:
        return None
    return seconds(request.first_token - request.started)


def show(console: Console, found: Mapping[str, Any]) -> None:
    """The table, and why it is one at a time."""
    rows = found["rows"]
    table = plain_table("One name in a pile of emails, by bits of the KV cache")
    for name in ("bits", "prompt\ntokens", "found", "KV cache", "saved", "read the\nprompt in", "peak\nmemory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(real_bits(row)),
            MISSING if row["prompt_tokens"] is None else f"{row['prompt_tokens']:,.0f}",
            MISSING if row["found"] is None else f"{row['found']} / {row['asked']}",
            _size(row["kv_bytes"]),
            MISSING if row["saved"] is None else f"{row['saved']:.0%}",
            seconds_text(row["read_p50_s"]),
            _size(row["peak_memory_bytes"]),
        )
    console.print(table)
    for row in rows:
        if row["lost"]:
            console.print(f"{row['kv_bits']} bits, about {row['context']:,} tokens: {row['lost']}", soft_wrap=True)
    for line in _remarks(rows):
        console.print(line, soft_wrap=True)


def real_bits(row: Mapping[str, Any]) -> int:
    """Of a cache that is left as the model computes, what that is."""
    return 32 if row["kv_bits"] == UNQUANTIZED and str(row["dtype"]).startswith("float32") else row["kv_bits"]


def _remarks(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["One at a time, because a quantized cache cannot be batched."]
    wide = {real_bits(row) for row in rows} & {32}
    ratios = {row["kv_bits"]: 1 - row["saved"] for row in rows if row["saved"]}
    if wide:
        against = [f"{bits} bits save {1 - 2 * ratio:.0%}" for bits, ratio in sorted(ratios.items(), reverse=True)]
        lines.append(f"The model computes in float32; against a cache of 16 bits, {' and '.join(against)}.")
    return lines


def show_study(console: Console, found: Mapping[str, Any]) -> None:
    """The study's findings in words."""
    console.print(reference.KV_QUANT, soft_wrap=True)


def _size(count: int | None) -> str:
    return MISSING if count is None else binary_text(count)
