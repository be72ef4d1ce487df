"""`headway prefix`: checks what was asked before anything starts, runs it, and shows the table."""

from pathlib import Path

import click

from clients.arrivals import ArrivalPlan
from experiments import prefix as plan
from experiments.cell import SEED
from experiments.launch import carry_out, console_for, json_option, objective_option, reference_option, run_options
from experiments.objectives import check_objectives
from experiments.prefix import PrefixSettings
from worker.options import Server, server_options


@click.command()
@server_options("engine", "profile", "kv_bits")
@click.option(
    "--emails",
    type=click.IntRange(1, 10_000),
    help=f"Emails to sort. [default: {plan.EMAILS}; with --quick {plan.QUICK_EMAILS}]",
)
@click.option("--rate", type=float, help="Emails per second, served by continuous, instead of one at a time.")
@click.option(
    "--timestamp-first", is_flag=True, help="Begin every prompt with the time of day: nothing can be reused then."
)
@click.option("--seed", type=int, default=SEED, show_default=True, help="Seed of the arrivals, with --rate.")
@click.option("--quick", is_flag=True, help="Fewer emails.")
@reference_option
@objective_option
@json_option
@run_options
def prefix(
    server: Server, emails: int | None, rate: float | None, timestamp_first: bool, seed: int, quick: bool, study: bool,
    objective: tuple[str, ...], out: Path, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Sort emails without and with the cache of what prompts share.

    Every prompt begins with the same rules and ten worked examples, and ends with its own email. Shows what reading
    the start once saves, whether the answers stay the same, and how many are right.
    """
    console = console_for(as_json)
    settings = PrefixSettings(
        server, emails or (plan.QUICK_EMAILS if quick else plan.EMAILS), rate, timestamp_first, seed, objective
    )
    try:
        if rate is not None:
            ArrivalPlan("poisson", rate, seed)
        server.check()
        check_objectives(objective)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    how = "one at a time" if rate is None else f"{rate:g} a second"
    stamped = ", each prompt beginning with the time of day" if timestamp_first else ""
    console.print(
        f"Plan: {server.name}, {settings.emails} emails sorted {how}{stamped}, without and with the prefix cache.",
        soft_wrap=True,
    )
    if not dry_run:
        carry_out("prefix", settings, out, console, plan.measure, study)
