"""`headway simulate`: the rush in virtual time, on a cost profile; no model is needed, and none is loaded."""

import gc
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from experiments import plan
from experiments.crowd_options import crowd_options
from experiments.launch import console_for, json_option, keep_report, objective_option, reference_option, run_options
from experiments.plan import RushSettings
from experiments.run_folder import SIMULATED, SUMMARY, RunFolderError, create
from experiments.rush_cli import check, refuse_both_seeds, settings_from
from experiments.sentences import UNKEPT
from router.core import PolicyFailed
from worker.options import Server, server_options
from worker.profile import load_profile

NOT_SIMULATED = ("engine", "model", "weights", "prefix_cache", "kv_bits", "chat_template_args")
FIXED = {"ignore_eos": True, "clients": 1, "share_prefix": False}


@click.command()
@server_options(*NOT_SIMULATED)
@crowd_options
@objective_option
@json_option
@run_options
@reference_option
@click.option(
    "--extrapolate",
    is_flag=True,
    help="Go on where the profile was not measured, with the slopes of its outermost points, and say so.",
)
def simulate(
    out: Path, dry_run: bool, study: bool, server: Server, as_json: bool, extrapolate: bool, **options: Any
) -> None:
    """Play a rush in virtual time: what --profile says a step costs, and nothing else takes time.

    The policies and the router's queue are the real ones, the machine is the paced engine's. A token is a word of the
    prompt, and a reply takes all its tokens. Everything is kept as in a real run and marked as simulated; of cells
    with more than 100,000 tokens one record a request, without steps and words.
    """
    console = console_for(as_json)
    try:
        refuse_both_seeds(click.get_current_context())
        settings = replace(settings_from(replace(server, engine="paced"), options | FIXED), drift_cell=False)
        check(settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    console.print(plan_text(settings))
    if not dry_run:
        sys.exit(_run(settings, out, console, study, extrapolate))


def plan_text(settings: RushSettings) -> str:
    """The plan in words."""
    offered = plan.offers(settings, plan.STUDY_CAPACITY) or []
    count = len(plan.cells(settings, offered))
    cells = f"{count} {'cell' if count == 1 else 'cells'} of {settings.requests:,} requests"
    return f"Plan, simulated: {settings.server.profile}, {cells}, replies of up to {settings.max_tokens} tokens."


def _run(settings: RushSettings, out: Path, console: Console, study: bool, extrapolate: bool) -> int:
    from experiments.show import show
    from experiments.twin.cells import SimulatedServer
    from experiments.twin.simulate import SimulatedRun

    profile, server = load_profile(settings.server.profile), settings.server
    simulated = SimulatedServer(profile, server.prefill_batch, server.prefill_step, extrapolate)
    gc.disable()  # nothing here goes round in circles, and looking for it takes a third of the time
    try:
        folder = create(out, SIMULATED)
        run = SimulatedRun(settings, simulated, folder)
        try:
            summary = run.measure()
        except BaseException:
            shutil.rmtree(folder)  # a part of a simulation is worth nothing
            raise
    except (RunFolderError, PolicyFailed, ValueError) as error:
        raise click.UsageError(str(error)) from None
    finally:
        gc.enable()
    show(console, summary, run.manifest["settings"], study)
    for line in run.beyond:
        console.print(line, soft_wrap=True)
    if not run.detailed:
        console.print(UNKEPT)
    kept = "summary.json, manifest.json, records"
    if run.detailed:
        keep_report(folder, console)
        kept = f"report.html, {kept}"
    else:
        console.print(f"Its report takes longer than the simulation: headway report {folder}", soft_wrap=True)
    console.print(f"Simulated, not measured. Results: {folder}\n({kept})", soft_wrap=True)
    if console.stderr:
        click.echo((folder / SUMMARY).read_bytes(), nl=False)
    return 0
