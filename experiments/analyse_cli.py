"""`headway analyse`: a run's figures, computed again from its records."""

from pathlib import Path

import click
from rich.console import Console

from experiments.launch import objective_option, reference_option
from experiments.objectives import check_objectives
from experiments.run_folder import SUMMARY, RunFolderError, analyse, read_manifest
from experiments.show import show


@click.command(name="analyse")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False, exists=True))
@reference_option
@objective_option
def analyse_command(run: Path, study: bool, objective: tuple[str, ...]) -> None:
    """Rebuild summary.json of the folder RUN from its records, and print the tables.

    RUN may also be a folder into which a router, a worker and clients wrote that were started by hand. An --objective
    given here takes the place of those that the run was started with.
    """
    try:
        check_objectives(objective)
        settings = read_manifest(run).get("settings", {})
        summary = analyse(run, objective)
    except (ValueError, RunFolderError) as error:
        raise click.UsageError(str(error)) from None
    console = Console(highlight=False, markup=False, emoji=False)
    show(console, summary, settings, study)
    if not summary.complete:
        console.print(f"INCOMPLETE: {summary.reason or 'not every request was sent and ended'}", soft_wrap=True)
    console.print(f"Rewritten: {run / SUMMARY}", soft_wrap=True)
