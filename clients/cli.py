"""`headway clients`: one client process, as the supervisor or a person at a terminal starts it."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from clients.arrivals import ARRIVALS, ArrivalPlan, arrival_times
from clients.options import trace_options, trace_source
from clients.traces import TracePrompts, read_trace, trace_facts
from clients.workloads import WORKLOADS, Prompt, cycled, from_file, prompts_for
from protocol.options import cell_option, role_options, start_timeout_option
from protocol.process import StopRequest, end_with_parent
from protocol.wire import WireError, check_endpoint


def load_prompts(workload: str, prompts: Path | None, requests: int, max_tokens: int, seed: int) -> tuple[Prompt, ...]:
    """The prompts of a run, by request id: from a file where one is named. Raises ValueError in one line."""
    if prompts is not None:
        return cycled(from_file(prompts), requests)
    return prompts_for(workload, requests, max_tokens, seed)


@click.command()
@click.option("--router", default="tcp://127.0.0.1:7411", show_default=True, help="The router's endpoint for clients.")
@click.option(
    "--index",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Which client this is: it sends every OF-th request, from INDEX on.",
)
@click.option(
    "--of", type=click.IntRange(1, 10_000), default=1, show_default=True, help="How many clients share the schedule."
)
@click.option(
    "--arrivals", type=click.Choice([*ARRIVALS]), default="poisson", show_default=True, help="How requests arrive."
)
@click.option("--rate", type=float, default=1.0, show_default=True, help="Requests per second of all clients together.")
@click.option(
    "--seed", type=click.IntRange(-(2**63), 2**63 - 1), default=12, show_default=True, help="Seed of the arrivals."
)
@click.option(
    "--requests", type=click.IntRange(1), default=40, show_default=True, help="Requests of all clients together."
)
@click.option("--workload", default="emails", show_default=True, help=f"What they ask: {', '.join(WORKLOADS)}.")
@click.option("--prompts", type=click.Path(path_type=Path), help="JSON Lines file of prompts, instead of a workload.")
@trace_options
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="Longest reply.")
@click.option("--ignore-eos", is_flag=True, help="Write on to the limit when the model would stop.")
@click.option("--share-prefix", is_flag=True, help="Have the worker keep what it read of the turns that prompts share.")
@click.option("--margins", is_flag=True, help="Record how far apart the two best candidates were, at every token.")
@start_timeout_option
@cell_option
@role_options
def clients(
    router: str, index: int, of: int, arrivals: str, rate: float, seed: int, requests: int, workload: str,
    prompts: Path | None, trace: str | None, speed: float, first: int | None, columns: str | None, unit: str | None,
    max_tokens: int, ignore_eos: bool, share_prefix: bool, margins: bool, start_timeout: float,
    cell: str, run: str, out: Path, supervised: bool,
) -> None:  # fmt: skip
    """Send timestamped requests and stamp the replies.

    One process sends its share of a seeded schedule that all clients know: request i goes to client i modulo OF.
    Requests leave at their intended times whatever the replies do.
    """
    from clients.sender import Client, ClientError, ClientSettings

    try:
        check_endpoint(router)
        if index >= of:
            raise ValueError(f"--index {index} is not below --of {of}")
        plan = ArrivalPlan(arrivals, None if arrivals == "at-once" else rate, seed)
        source = trace_source(trace, speed, first, columns, unit)
        if source is None:
            times = arrival_times(plan, requests)
            asked: Sequence[Prompt] = load_prompts(workload, prompts, requests, max_tokens, seed)
        else:
            replayed = read_trace(source)
            times, asked = replayed.times, TracePrompts(replayed)
        out.mkdir(parents=True, exist_ok=True)
        facts = {
            "arrivals": arrivals, "rate": plan.rate, "seed": seed, "workload": str(prompts or workload),
            "max_tokens": max_tokens, "ignore_eos": ignore_eos, "share_prefix": share_prefix,
        } | ({} if source is None else trace_facts(source))  # fmt: skip
        settings = ClientSettings(
            router, run, cell, index, of, out, times, asked, max_tokens, ignore_eos, share_prefix, margins,
            start_timeout, facts,
        )  # fmt: skip
        client = Client(settings, StopRequest())
    except FileExistsError as error:
        raise click.UsageError(f"{error.filename} is there already; choose another --out or --cell") from None
    except (WireError, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
    if supervised:
        end_with_parent()
    try:
        why = client.run()
    except ClientError as error:
        why = str(error)
    if why is not None:
        click.echo(f"headway clients: {why}", err=True)
    elif not supervised:
        click.echo(f"headway clients: {client.sent} sent and answered; records in {out}", err=True)
    sys.exit(0 if why is None else 1)
