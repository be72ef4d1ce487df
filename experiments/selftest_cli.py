"""`headway selftest`: the instrument measured on this machine, kept for later runs to cite."""

import secrets
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
import orjson
from rich.console import Console

from experiments import selftest as plan
from experiments.launch import finish, launch, run_options
from experiments.manifest import keep_selftest
from experiments.selftest import SelfTestSettings
from experiments.show import show
from worker.options import Server

SECONDS, QUICK_SECONDS = 15, 3
KNOWN, QUICK_KNOWN = 1_000, 200


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, and nothing else.")
@click.option("--quick", is_flag=True, help="A quarter of a minute instead of one and a half; not kept.")
@run_options
def selftest(as_json: bool, quick: bool, out: Path, dry_run: bool) -> None:
    """Measure the instrument itself on this machine, in under two minutes.

    Wake-up and send lag, idle and with every core busy; how far apart the processes' clocks are; the floor of the wire
    with a model that costs nothing; a queue whose waits are known; the arrivals. Later runs cite the last self-test.
    """
    console = Console(highlight=False, markup=False, emoji=False, quiet=as_json)
    settings = SelfTestSettings(
        server=Server(engine="paced", profile="instant"),
        seconds=QUICK_SECONDS if quick else SECONDS,
        known=QUICK_KNOWN if quick else KNOWN,
        seed=secrets.randbits(32),  # the same arrivals every time would test the code, not what clients send
    )
    console.print(f"Plan: {len(plan.cells(settings))} cells with a model that costs nothing, no other load, please.")
    if dry_run:
        return
    run, summary = launch(
        "selftest", asdict(settings), settings.server, out, console, lambda run: partial(plan.measure, settings, run)
    )
    found = summary.findings or {}
    if as_json:
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    else:
        show(console, summary, run.manifest["settings"])
    if summary.complete and not quick:
        keep_selftest(run.manifest, found)
    status = finish(run, summary)
    sys.exit(status or (0 if found.get("passed") else 1))
