"""`headway kv-size`: what a model's KV cache takes, told before any weights are loaded."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from experiments.launch import keep_calculation, run_options
from experiments.model_config import load_config
from experiments.show import show
from protocol.options import as_bytes
from worker import models

MOST_TOKENS, MOST_USERS = 10**7, 10**6  # products stay whole numbers that JSON readers can hold


@click.command(name="kv-size")
@click.argument("model", default=models.EMBEDDED)
@click.option(
    "--context", type=click.IntRange(1, MOST_TOKENS), default=32_768, show_default=True, help="Tokens of a user."
)
@click.option("--users", type=click.IntRange(1, MOST_USERS), default=32, show_default=True, help="Users at once.")
@click.option(
    "--bits",
    type=click.Choice(["16", "8", "4"]),
    default="16",
    show_default=True,
    help="Bits of a cached number; at 8 and 4, every 64 of them have a scale and a bias besides.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=as_bytes,
    help="Tell how many users fit into 48GB (10^9 bytes each) or 48GiB (2^30).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and keep nothing.")
@run_options
def kv_size(
    model: str, context: int, users: int, bits: str, memory: int | None, as_json: bool, out: Path, dry_run: bool
) -> None:
    """What the KV cache of MODEL takes, from its configuration alone; no weights are read.

    MODEL is the embedded model, Qwen3-0.6B, Qwen3-4B or Qwen3-8B (known without a download), a folder with a
    config.json, or a hub id, of which config.json alone is downloaded.

    On a CPU Headway computes in float32: there the 16-bit cache takes twice as much.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    try:
        named = load_config(model)
        settings = {"model": asdict(named), "context": context, "users": users, "bits": int(bits), "memory": memory}
        found = found_from(settings)
    except (ValueError, RuntimeError) as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    console.print(f"Plan: the KV cache of {named.name} by its configuration ({named.source}); nothing is measured.")
    if dry_run:
        return
    folder, summary = keep_calculation("kv-size", settings, out)
    show(console, summary, settings)
    console.print(f"Results: {folder} (report.html, summary.json, manifest.json)", soft_wrap=True)


def found_from(settings: dict[str, Any]) -> dict[str, Any]:
    """The findings that such settings lead to. Raises ValueError where they cannot be computed."""
    from experiments.kv_size_findings import findings

    return findings({"settings": settings}, {})
