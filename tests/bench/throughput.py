"""Tokens a second of the whole system, as a fraction of a bare batch-generator loop in one process.

The same prompts, all at once, on the embedded model; the two take turns, so that a drifting machine hits both. With
`--static` they board in one admission, as the bare loop inserts once; without, continuous admits whoever comes first
alone, and how many follow within the same millisecond is part of the figure.

    python -m tests.bench.throughput --rows 32 --tokens 64 --rounds 3
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click

from clients.workloads import emails


def bare(rows: int, tokens: int) -> float:
    """Tokens a second of mlx-lm's generator alone: everything inserted, then stepped to the end."""
    os.nice(10)
    from worker import models

    loaded = models.load()
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator

    prompts = [
        loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.turns[0].content}], add_generation_prompt=True
        )
        for prompt in emails(rows)
    ]
    generator = BatchGenerator(loaded.network, completion_batch_size=rows, prefill_batch_size=8)
    for warm in (8, tokens):
        begin = time.perf_counter()
        generator.insert(prompts, max_tokens=[warm] * rows)
        ended = written = 0
        while ended < rows:
            for response in generator.next()[1]:
                written += 1
                ended += response.finish_reason is not None
        lasted = time.perf_counter() - begin
        mx.synchronize()
    return written / lasted


def whole(rows: int, tokens: int, policy: str) -> float:
    """Tokens a second of worker, router and clients together, from the run's own summary."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            *(sys.executable, "-m", "experiments", "rush", "--policy", policy),
            *("--arrivals", "at-once", "--requests", str(rows), "--max-tokens", str(tokens), "--ignore-eos"),
            *("--out", out),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (summary,) = Path(out).glob("*/summary.json")
        (cell,) = json.loads(summary.read_text())["cells"]
        assert cell["completed"] == rows
        return float(cell["tokens_per_s"])


@click.command()
@click.option("--rows", default=32, show_default=True, help="Requests at once.")
@click.option("--tokens", default=64, show_default=True, help="Tokens of every reply.")
@click.option("--rounds", default=3, show_default=True, help="Times each of the two is measured.")
@click.option("--static", is_flag=True, help="Board in one admission instead of admitting whoever comes first.")
@click.option("--only-bare", is_flag=True, hidden=True)
def main(rows: int, tokens: int, rounds: int, static: bool, only_bare: bool) -> None:
    """Compare the whole system with the loop it is built around."""
    if only_bare:
        click.echo(bare(rows, tokens))
        return
    alone = [
        sys.executable,
        "-m",
        "tests.bench.throughput",
        "--only-bare",
        "--rows",
        str(rows),
        "--tokens",
        str(tokens),
    ]
    ratios = []
    for number in range(1, rounds + 1):
        loop = float(subprocess.run(alone, check=True, capture_output=True, text=True).stdout.split()[-1])
        system = whole(rows, tokens, f"static:n={rows},wait=10" if static else f"continuous:seats={rows}")
        ratios.append(system / loop)
        click.echo(
            f"round {number}: bare loop {loop:.1f} tokens/s, whole system {system:.1f}, {system / loop:.3f} of it"
        )
    click.echo(f"{rows} rows of {tokens} tokens: median {median(ratios):.3f} of the bare loop ({rounds} rounds)")


if __name__ == "__main__":
    main()
