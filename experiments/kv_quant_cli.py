"""`headway kv-quant`: checks what was asked before anything starts, runs it, and shows the table."""

from pathlib import Path

import click

from clients.cli import load_prompts
from experiments import kv_quant as plan
from experiments.cell import SEED
from experiments.kv_quant import KVQuantSettings
from experiments.launch import carry_out, console_for, json_option, reference_option, run_options
from experiments.lists import whole_numbers, words
from worker.options import Server, server_options

MOST_TOKENS = 1_000_000


@click.command(name="kv-quant")
@server_options("engine", "profile", "prefill_batch", "prefill_step", "prefix_cache", "kv_bits")
@click.option("--bits", default="16,8,4", show_default=True, help="Bits of the KV cache; 16: as the model computes.")
@click.option(
    "--contexts",
    help=f"Tokens of a prompt, roughly. [default: {','.join(map(str, plan.CONTEXTS))}; with --quick "
    f"{','.join(map(str, plan.QUICK_CONTEXTS))}]",
)
@click.option(
    "--questions",
    type=click.IntRange(1, 700),
    help=f"Piles of each length. [default: {plan.QUESTIONS}; with --quick {plan.QUICK_QUESTIONS}]",
)
@click.option("--quick", is_flag=True, help="Shorter piles, fewer questions.")
@click.option(
    "--study-sizes",
    is_flag=True,
    help=f"{plan.STUDY_QUESTIONS} questions in piles of {' and '.join(f'{n:,}' for n in plan.STUDY_CONTEXTS)} tokens.",
)
@reference_option
@json_option
@run_options
def kv_quant(
    server: Server, bits: str, contexts: str | None, questions: int | None, quick: bool, study_sizes: bool, study: bool,
    out: Path, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Find a name in a long pile of emails, with a KV cache of fewer bits.

    Shows what was found, how much smaller the cache is, and how long reading took. It runs one at a time, because a
    quantized cache cannot be batched.
    """
    console = console_for(as_json)
    sizes, count = plan.CONTEXTS, plan.QUESTIONS
    if study_sizes:
        sizes, count = plan.STUDY_CONTEXTS, plan.STUDY_QUESTIONS
    elif quick:
        sizes, count = plan.QUICK_CONTEXTS, plan.QUICK_QUESTIONS
    try:
        settings = KVQuantSettings(
            server=server,
            bits=tuple(int(word) for word in words("--bits", bits, [str(known) for known in plan.BITS])),
            contexts=whole_numbers("--contexts", contexts, 1, MOST_TOKENS) if contexts else sizes,
            questions=questions or count,
        )
        for cell in plan.cells(settings, 16):
            load_prompts(cell.workload, None, cell.requests, cell.max_tokens, SEED)
        server.check()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    console.print(
        f"Plan: {server.name}, {settings.questions} questions in piles of about "
        f"{' and '.join(f'{n:,}' for n in settings.contexts)} tokens, KV cache at "
        f"{', '.join(map(str, sorted(settings.bits, reverse=True)))} bits, one at a time.",
        soft_wrap=True,
    )
    if not dry_run:
        carry_out("kv-quant", settings, out, console, plan.measure, study)
