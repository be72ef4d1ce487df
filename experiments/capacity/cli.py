"""`headway capacity`: how much a server can take, searched for in virtual time and confirmed by real runs."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from experiments import plan as rush_plan
from experiments.capacity import confirm as real_runs
from experiments.capacity.plan import (
    EFFORT,
    POLICIES,
    SEATS,
    CapacitySettings,
    check_objectives_can_be_searched,
    check_profile,
    fitting_seats,
    kind_of,
    seatings,
    seats_of,
)
from experiments.crowd_options import some_crowd_options
from experiments.launch import console_for, fetch, finish, json_option, keep_calculation, launch, run_options
from experiments.lists import whole_numbers
from experiments.objectives import METRICS, check_objectives
from experiments.run_folder import SUMMARY, Summary
from experiments.rush_cli import check as check_rush
from router.core import PolicyFailed
from worker import models
from worker.options import Server, server_options
from worker.profile import CostProfile, load_profile

CROWD = ("policy", "arrivals", "max_tokens", "workload", "prompts", "seed", "queue", "timeout")
NOT_SERVED = ("prefix_cache", "kv_bits")
FOR_REAL = ("engine", "weights", "chat_template_args")
MOST_SEATS = 100_000


@click.command()
@click.option(
    "--objective",
    multiple=True,
    metavar="METRIC.PERCENTILE<LIMIT",
    help="What must be met, such as 'reply.p95<3s' or 'ttft.p95<1s', repeatable. "
    f"Metrics: {', '.join(metric for metric in METRICS if metric != 'gap')}.",
)
@click.option("--policies", help=f"Short for one --policy each. [default: {','.join(POLICIES)}]")
@click.option(
    "--seats",
    metavar="N,...",
    help="Seats to try with every policy that has them as a setting and is not told how many. "
    f"[default: {','.join(map(str, SEATS))}, as far as the profile was measured]",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True, max=10**6),
    help="A target, in requests per second: tells the fewest seats that are enough for it.",
)
@server_options(*NOT_SERVED)
@some_crowd_options(*CROWD)
@click.option("--confirm", is_flag=True, help="Hold the answer against two real runs, on --engine mlx or paced.")
@click.option(
    "--extrapolate",
    is_flag=True,
    help="Go on where the profile was not measured, with the slopes of its outermost points.",
)
@json_option
@run_options
def capacity(server: Server, out: Path, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Find the highest rate that meets objectives.

    Tells for every policy how many requests a second it serves as was promised, with a 95 % interval, and with how many
    seats it serves the most. The search is in virtual time, on what --profile says a step costs; it takes as many
    requests as it needs to be sure, and says so where it cannot be.
    """
    console = console_for(as_json)
    try:
        given = given_options(click.get_current_context())
        settings, profile = settings_from(server, options, given)
        check(settings, profile)
    except (ValueError, RuntimeError) as error:
        raise click.UsageError(str(error)) from None
    for line in plan_lines(settings):
        console.print(line, soft_wrap=True)
    if not dry_run:
        sys.exit(_run(settings, profile, out, console))


def given_options(context: click.Context) -> set[str]:
    """The options that were named on the command line."""
    return {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def settings_from(server: Server, options: dict[str, Any], given: set[str]) -> tuple[CapacitySettings, CostProfile]:
    """The settings of a command line, and the profile it names. Raises ValueError in one line."""
    confirm, profile = options["confirm"], load_profile(server.profile)
    refuse_what_has_no_use(confirm, given)
    on_cpu = confirm and server.engine == "mlx" and models.device() == "cpu"
    if options["policy"] and options["policies"] is not None:
        raise ValueError("--policies is short for one --policy each: give one of the two")
    named = options["policy"] or tuple(part.strip() for part in (options["policies"] or ",".join(POLICIES)).split(","))
    seats, seed = options["seats"], options["seed"]
    settings = CapacitySettings(
        server=server if confirm else replace(server, engine="paced"),
        objectives=options["objective"],
        policies=named,
        seats=fitting_seats(profile) if seats is None else whole_numbers("--seats", seats, 1, MOST_SEATS),
        rate=options["rate"],
        arrivals=options["arrivals"],
        max_tokens=options["max_tokens"] or (rush_plan.CPU_TOKENS if on_cpu else rush_plan.TOKENS),
        workload=options["workload"],
        prompts=str(options["prompts"]) if options["prompts"] is not None else None,
        seeds=tuple(range(seed, seed + EFFORT.seeds)),
        queue=options["queue"],
        timeout=options["timeout"],
        confirm=confirm,
        extrapolate=options["extrapolate"],
        model=server.model if "model" in given or (confirm and server.engine == "mlx") else None,
    )
    return settings, profile


def refuse_what_has_no_use(confirm: bool, given: set[str]) -> None:
    """Raises ValueError, in one line, for real runs without a word on what serves them, and the other way round."""
    if confirm and "engine" not in given:
        raise ValueError("--confirm serves for real: add --engine mlx (with its --model), or --engine paced")
    useless = [name for name in FOR_REAL if name in given]
    if not confirm and useless:
        raise ValueError(f"--{useless[0].replace('_', '-')} is about real runs: ask for some with --confirm")


def check(settings: CapacitySettings, profile: CostProfile) -> None:
    """Raises ValueError or RuntimeError, in one line, for what would fail later."""
    check_objectives(settings.objectives)
    check_objectives_can_be_searched(settings.promised())
    if settings.arrivals == "at-once":
        raise ValueError("--arrivals at-once has no rate to search for: poisson or constant")
    check_profile(settings, profile)
    check_rush(settings.rush(settings.policies, [1.0], EFFORT.fewest))
    if settings.model is not None:
        from experiments.capacity.seats import memory_by_seats

        memory_by_seats(settings, [1])


def plan_lines(settings: CapacitySettings) -> list[str]:
    """The plan in words."""
    servers = [seatings(policy, settings.seats) for policy in settings.policies]
    said = [kind_of(group[0]) + _seats_words(group) for group in servers]
    asked = f"replies of up to {settings.max_tokens} tokens"
    lines = [
        f"Plan, simulated on {settings.server.profile}: {'; '.join(said)}; {asked}.",
        f"{EFFORT.seeds} seeds of {EFFORT.fewest:,} to {EFFORT.most:,} requests each, as many as it takes.",
    ]
    return [*lines, *(real_runs.lines(settings) if settings.confirm else [])]


def _seats_words(group: Sequence[str]) -> str:
    return f" with {', '.join(str(seats_of(each)) for each in group)} seats" if len(group) > 1 else ""


def _run(settings: CapacitySettings, profile: CostProfile, out: Path, console: Console) -> int:
    from experiments.twin.cells import SimulatedServer

    server = settings.server
    if settings.confirm:
        fetch(server)
    simulated = SimulatedServer(profile, server.prefill_batch, server.prefill_step, settings.extrapolate)
    found = _searched(settings, simulated, console)
    if settings.confirm:
        measure = partial(real_runs.measure, settings, simulated, found)
        run, summary = launch("capacity", asdict(settings), server, out, console, lambda run: partial(measure, run))
        _say(console, summary, asdict(settings))
        return finish(run, summary)
    folder, summary = keep_calculation("capacity", asdict(settings), out, searched=found)
    _say(console, summary, asdict(settings))
    console.print(
        f"Simulated, not measured. Results: {folder} (report.html, summary.json, manifest.json)", soft_wrap=True
    )
    if console.stderr:
        click.echo((folder / SUMMARY).read_bytes(), nl=False)
    return 0


def _searched(settings: CapacitySettings, server: Any, console: Console) -> dict[str, Any]:
    from experiments.capacity.study import Study

    servers = sum(len(seatings(policy, settings.seats)) for policy in settings.policies)
    gc.disable()  # as in a simulation: nothing goes round in circles
    try:
        with bar(console, servers + len(settings.policies)) as trying:
            told = partial(console.print, soft_wrap=True)
            return Study(settings, server, EFFORT, told, trying).run()
    except (PolicyFailed, ValueError) as error:
        raise click.UsageError(str(error)) from None
    finally:
        gc.enable()


@contextmanager
def bar(console: Console, steps: int) -> Iterator[Callable[[str], None]]:
    """How far the search is, on a terminal; what it gives is told what comes next."""
    columns = TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn()
    hidden = not console.is_terminal or console.quiet
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=steps)

        def trying(words: str) -> None:
            progress.update(task, description=words, advance=1)

        yield trying


def _say(console: Console, summary: Summary, settings: dict[str, Any]) -> None:
    """The answer first."""
    from experiments.headline import headline
    from experiments.show import show

    console.print(headline(summary), style="bold")
    show(console, summary, settings)
