"""`headway repeat`: checks what was asked before anything starts, runs it, and shows the table."""

from pathlib import Path

import click

from clients.cli import load_prompts
from clients.workloads import WORKLOADS
from experiments import repeat as plan
from experiments.cell import SEED
from experiments.launch import carry_out, console_for, json_option, run_options
from experiments.lists import whole_numbers
from experiments.repeat import RepeatSettings
from worker.options import Server, server_options


@click.command()
@server_options("engine", "profile", "prefix_cache", "kv_bits")
@click.option("--requests", type=click.IntRange(1, 10_000), help=f"Different prompts. [default: {plan.PROMPTS}]")
@click.option("--times", type=click.IntRange(1, 1_000), help=f"How often each is asked alone. [default: {plan.TIMES}]")
@click.option("--batches", help=f"Sizes of batches. [default: {','.join(map(str, plan.BATCHES))}]")
@click.option("--max-tokens", type=click.IntRange(1), help=f"Longest answer. [default: {plan.TOKENS}]")
@click.option("--workload", default="emails", show_default=True, help=f"What is asked: {', '.join(WORKLOADS)}.")
@click.option("--prompts", type=click.Path(path_type=Path), help="JSON Lines file of prompts, instead of a workload.")
@click.option("--quick", is_flag=True, help="Fewer and shorter.")
@json_option
@run_options
def repeat(
    server: Server, requests: int | None, times: int | None, batches: str | None, max_tokens: int | None, workload: str,
    prompts: Path | None, quick: bool, out: Path, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Ask the same prompts again, alone and in batches: are the answers the same?

    Plain decoding always takes the likeliest token. Where answers differ all the same, shows at which token first, and
    how close the two best candidates were there.
    """
    console = console_for(as_json)
    default = plan.QUICK_BATCHES if quick else plan.BATCHES
    try:
        settings = RepeatSettings(
            server=server,
            requests=requests or (plan.QUICK_PROMPTS if quick else plan.PROMPTS),
            times=times or (plan.QUICK_TIMES if quick else plan.TIMES),
            batches=whole_numbers("--batches", batches, 1, 4_096) if batches else default,
            max_tokens=max_tokens or (plan.QUICK_TOKENS if quick else plan.TOKENS),
            workload=workload,
            prompts=None if prompts is None else str(prompts),
        )
        if max(settings.batches) > settings.requests:
            raise ValueError(f"a batch of {max(settings.batches)} cannot be had of {settings.requests} prompts")
        load_prompts(workload, prompts, settings.requests, settings.max_tokens, SEED)
        server.check()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    console.print(
        f"Plan: {server.name}, {settings.requests} prompts {settings.times} times alone and in batches of "
        f"{', '.join(map(str, settings.batches))}, up to {settings.max_tokens} tokens each.",
        soft_wrap=True,
    )
    if not dry_run:
        carry_out("repeat", settings, out, console, plan.measure)
