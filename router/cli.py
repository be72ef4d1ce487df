"""`headway router`: one router process, as the supervisor or a person at a terminal starts it."""

import sys
from pathlib import Path

import click
import orjson

from protocol.options import cell_option, role_options, start_timeout_option
from protocol.process import StopRequest, end_with_parent
from protocol.wire import WireError, check_endpoint
from router.policies import PolicyError, parse_policy
from router.trial import try_out

FRONT, BACK = "tcp://127.0.0.1:7411", "tcp://127.0.0.1:7412"


@click.command()
@click.option(
    "--front", default=FRONT, show_default=True, help="Endpoint for clients: ipc:///a/path or tcp://127.0.0.1:PORT."
)
@click.option("--back", default=BACK, show_default=True, help="Endpoint for the worker.")
@click.option(
    "--policy",
    default="continuous",
    show_default=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="A policy with its settings, such as static:n=4,wait=1 (headway policies lists them), or your own, "
    "FILE.py:CLASS.",
)
@click.option(
    "--clients", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Client processes to wait for."
)
@click.option(
    "--queue",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Longest queue; beyond it requests are rejected.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds after which a request is cancelled; none by default.",
)
@start_timeout_option
@cell_option
@role_options
@click.option("--labels", default="{}", hidden=True, help="JSON facts for the records: rate, load, seed.")
def router(
    front: str, back: str, policy: str, clients: int, queue: int, timeout: float | None, start_timeout: float,
    cell: str, run: str, out: Path, labels: str, supervised: bool,
) -> None:  # fmt: skip
    """Hold the admission queue and apply a policy.

    Waits until the worker and all clients are ready, sends them the start, moves their messages, and ends when every
    client has left. Prints its progress as JSON lines. Start it first; then a worker and the clients:

    \b
      headway router  --policy static:n=4,wait=1 --clients 2
      headway worker
      headway clients --index 0 --of 2 & headway clients --index 1 --of 2
    """
    from router.loop import RouterLoop, RouterSettings

    try:
        made = parse_policy(policy)
        try_out(made)
        check_endpoint(front)
        check_endpoint(back)
        out.mkdir(parents=True, exist_ok=True)
        settings = RouterSettings(
            front, back, run, cell, made, queue, timeout, clients, out, start_timeout, orjson.loads(labels)
        )
        if supervised:
            end_with_parent()
        loop = RouterLoop(settings, StopRequest())
    except FileExistsError as error:
        raise click.UsageError(f"{error.filename} is there already; choose another --out or --cell") from None
    except (PolicyError, WireError, OSError) as error:
        raise click.UsageError(str(error)) from None
    status = loop.serve()
    if loop.failure:
        click.echo(f"headway router: {loop.failure}", err=True)
    sys.exit(status)
