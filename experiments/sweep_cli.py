"""`headway sweep`: checks what was asked before anything starts, runs it, and shows the table."""

from pathlib import Path

import click

from experiments import sweep as plan
from experiments.launch import carry_out, console_for, json_option, objective_option, reference_option, run_options
from experiments.lists import whole_numbers, words
from experiments.objectives import check_objectives
from experiments.plan import START_UP_S, minutes
from experiments.sweep import SweepSettings
from worker import models
from worker.options import Server, server_options
from worker.profile import load_profile

MOST_AT_ONCE = 4_096


@click.command()
@server_options("weights", "prefill_batch", "prefix_cache", "kv_bits")
@click.option(
    "--weights",
    "kinds",
    help=f"Types of weights to sweep, such as 4bit,bf16: {', '.join(models.WEIGHTS)}. Packed ones are made here from "
    "the float weights. [default: native on a GPU, float32 on a CPU]",
)
@click.option(
    "--batches",
    help=f"Replies at once. [default: {','.join(map(str, plan.BATCHES))}; with --quick "
    f"{','.join(map(str, plan.QUICK_BATCHES))}]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help=f"Tokens of every reply. [default: {plan.TOKENS}; with --quick {plan.QUICK_TOKENS}]",
)
@click.option("--quick", is_flag=True, help="Fewer batches, shorter replies.")
@reference_option
@objective_option
@json_option
@run_options
def sweep(
    server: Server, kinds: str | None, batches: str | None, max_tokens: int | None, quick: bool, study: bool,
    objective: tuple[str, ...], out: Path, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Sweeps batch sizes; for request rates see `rush --rates`.

    N replies are started together, for growing N: what they write a second in total and each, and what that gains
    over one. Keeps a cost profile of this machine in the run's folder, for `--engine paced --profile`; replies that
    come and go, and long prompts, are measured for it too.
    """
    console = console_for(as_json)
    try:
        default = plan.QUICK_BATCHES if quick else plan.BATCHES
        settings = SweepSettings(
            server=server,
            weights=swept_weights(server, kinds),
            batches=whole_numbers("--batches", batches, 1, MOST_AT_ONCE) if batches else default,
            max_tokens=max_tokens or (plan.QUICK_TOKENS if quick else plan.TOKENS),
            objectives=objective,
        )
        server.check()
        check_objectives(objective)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for line in plan_lines(settings):
        console.print(line, soft_wrap=True)
    if not dry_run:
        carry_out("sweep", settings, out, console, plan.measure, study)


def swept_weights(server: Server, kinds: str | None) -> tuple[str, ...]:
    """Types of weights, one sweep each; a profile has none. Raises ValueError in one line."""
    if server.engine == "paced":
        if kinds is not None:
            raise ValueError("--weights are a model's: leave them out with --engine paced")
        return (models.NATIVE,)
    return words("--weights", kinds, models.WEIGHTS) if kinds else (models.default_weights(),)


def plan_lines(settings: SweepSettings) -> list[str]:
    """The plan in words."""
    kinds = "" if settings.server.engine == "paced" else f", weights {', '.join(settings.weights)}"
    lines = [
        f"Plan: {settings.server.name}{kinds}: {', '.join(map(str, settings.batches))} replies at once, "
        f"{settings.max_tokens} tokens each; then rows that come and go, and long prompts, for the cost profile."
    ]
    return [*lines, f"Expected: about {minutes(expected_s(settings))}."] if settings.server.engine == "paced" else lines


def expected_s(settings: SweepSettings) -> float:
    """How long a sweep of a profile takes, for prompts as long as the study's."""
    profile, prompt, most = load_profile(settings.server.profile), 60, max(settings.batches)
    together = sum(
        START_UP_S + profile.read_s(rows, prompt) + settings.max_tokens * profile.decode_s(rows, prompt)
        for rows in settings.batches
    )
    changing = START_UP_S + 2 * (profile.read_s(most, prompt) + settings.max_tokens * profile.decode_s(most, 60))
    alone = profile.read_s(1, plan.LONG_PROMPT_TOKENS) + plan.LONG_PROMPT_REPLY * profile.decode_s(1, prompt)
    return together + changing + START_UP_S + plan.LONG_PROMPTS * alone
