"""How every experiment's command begins and ends: the model fetched, a run folder made, the outcome told."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console

from experiments.manifest import first_manifest
from experiments.objectives import METRICS
from experiments.run import Run
from experiments.run_folder import (
    MANIFEST,
    SUMMARY,
    RunFolderError,
    Summary,
    analyse,
    check_parent,
    create,
    write_json,
)
from experiments.show import show
from protocol.process import StopRequest
from worker import models
from worker.options import Server

STANDARD_ERROR = 2

Command = TypeVar("Command", bound=Callable[..., Any])


def _parent(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    try:
        check_parent(value)
    except RunFolderError as error:
        raise click.UsageError(str(error)) from None
    return value


def run_options(command: Command) -> Command:
    """`--out`, the folder in which run folders are made, checked; and `--dry-run`."""
    out = click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("runs"),
        show_default=True,
        callback=_parent,
        help="Folder in which the run's own folder is made.",
    )
    return out(click.option("--dry-run", is_flag=True, help="Print the plan and stop.")(command))


def json_option(command: Command) -> Command:
    """`--json`, for scripts; the command speaks through `console_for`."""
    words = "Print summary.json at the end, and all else on standard error."
    return click.option("--json", "as_json", is_flag=True, help=words)(command)


def reference_option(command: Command) -> Command:
    """`--reference`, as `study`."""
    return click.option("--reference", "study", is_flag=True, help="Show the study's figures beside these.")(command)


def console_for(as_json: bool) -> Console:
    """Where a command says what it does: on standard error, where standard output is a script's."""
    return Console(highlight=False, markup=False, emoji=False, stderr=as_json)


def objective_option(command: Command) -> Command:
    """`--objective`, as often as wanted; the command checks what was given."""
    option = click.option(
        "--objective",
        multiple=True,
        metavar="METRIC.PERCENTILE<LIMIT",
        help="What was promised, such as 'ttft.p95<1s' or 'tpot.p50<40ms', repeatable: says whether it was met, and "
        f"how many requests met all of them. Metrics: {', '.join(METRICS)}.",
    )
    return option(command)


def launch(
    experiment: str,
    settings: Mapping[str, Any],
    server: Server,
    out: Path,
    console: Console,
    body: Callable[[Run], Callable[[], None]],
) -> tuple[Run, Summary]:
    """Measure, and sum up; `body` makes of a run what it does. Ends the process with status 2 when the model or the
    folder cannot be had."""
    fetch(server)
    try:
        folder = create(out, experiment)
    except RunFolderError as error:
        raise click.UsageError(str(error)) from None
    run = Run(experiment, settings, folder, console, StopRequest())
    return run, run.measure(body(run))


def carry_out(
    experiment: str,
    settings: Any,
    out: Path,
    console: Console,
    measure: Callable[[Any, Run], None],
    study: bool = False,
) -> NoReturn:
    """A whole experiment, from its settings (a dataclass, `server` among them) to the table; `study` adds the study's
    figures. Ends the process."""
    run, summary = launch(
        experiment, asdict(settings), settings.server, out, console, lambda run: partial(measure, settings, run)
    )
    show(console, summary, run.manifest["settings"], study)
    sys.exit(finish(run, summary, study))


def keep_calculation(experiment: str, settings: Mapping[str, Any], out: Path, **facts: Any) -> tuple[Path, Summary]:
    """A run folder for what needs no measurement: manifest, with these facts in it, and summary."""
    try:
        folder = create(out, experiment)
    except RunFolderError as error:
        raise click.UsageError(str(error)) from None
    write_json(folder / MANIFEST, first_manifest(experiment, settings, "") | {"complete": True, "reason": None} | facts)
    summary = analyse(folder)
    keep_report(folder, Console(highlight=False, markup=False, emoji=False, stderr=True))
    return folder, summary


def keep_report(folder: Path, console: Console, study: bool = False) -> None:
    """Write a run's page. Whatever goes wrong there is said in one line: nothing of the run is lost by it."""
    from experiments.report.write import read_run, write_report

    try:
        write_report(folder, read_run(folder), study)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        console.print(f"No report was written ({why}). To try again: headway report {folder}", soft_wrap=True)


def fetch(server: Server) -> None:
    """The model, if it is not here. In a process of its own: that takes the libraries that only a worker loads."""
    if server.engine == "mlx" and not models.cached(server.model):
        command = [sys.executable, "-m", "experiments", "fetch", server.model]
        fetched = subprocess.run(command, stdout=STANDARD_ERROR, check=False)
        if fetched.returncode:
            sys.exit(fetched.returncode)


def finish(run: Run, summary: Summary, study: bool = False) -> int:
    """Say how it ended and where it is kept, and give a script the whole summary; `study` sets the study's figures
    beside the run's in the report. The exit status: 0 for a complete run, 1 for an incomplete one, 130 for one that was
    interrupted."""
    if not summary.complete:
        run.console.print(f"INCOMPLETE: {summary.reason}", soft_wrap=True)
    keep_report(run.folder, run.console, study)
    run.console.print(f"Results: {run.folder}\n(report.html, summary.json, manifest.json, records)", soft_wrap=True)
    if run.console.stderr:
        click.echo((run.folder / SUMMARY).read_bytes(), nl=False)
    return 0 if summary.complete else 130 if run.interrupted else 1
