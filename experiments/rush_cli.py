"""`headway rush`: checks what was asked before anything starts, runs it, and shows the tables."""

import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from clients.arrivals import ArrivalPlan
from clients.cli import load_prompts
from clients.options import trace_source
from clients.traces import TraceSource, read_trace
from experiments import plan
from experiments.crowd_options import AUTO, HIGHEST_SEED, LOWEST_SEED, crowd_options
from experiments.fitted import WantedTwin, named_profile
from experiments.launch import console_for, finish, json_option, launch, objective_option, reference_option, run_options
from experiments.manifest import differences
from experiments.memory import shortage
from experiments.objectives import check_objectives
from experiments.plan import Offer, RushSettings, cells, known_reply_s, named_policies, with_seats
from experiments.run import Run
from experiments.run_folder import RunFolderError, read_manifest
from router.policies import PolicyError, label, parse_policy
from router.trial import try_out
from worker import models
from worker.options import NOT_BATCHED, Server, server_options

LONGEST_TIMEOUT_S = 366 * 86_400.0
THE_STUDYS = "one,static,continuous"
NOT_SETTINGS = {"like", "out", "dry_run", "study", "as_json", "twin", "profile_fit"}


@click.command()
@server_options()
@crowd_options
@click.option("--ignore-eos", is_flag=True, help="Write on to the limit when the model would stop.")
@click.option("--clients", type=click.IntRange(1, 64), default=2, show_default=True, help="Client processes.")
@click.option("--share-prefix", is_flag=True, help="Have the worker keep what it read of the turns that prompts share.")
@objective_option
@json_option
@run_options
@reference_option
@click.option("--twin", is_flag=True, help="Simulate the same cells afterwards, and show how far off that is.")
@click.option(
    "--profile-fit",
    metavar="RUN",
    help="Costs of the twin: an earlier run's folder, such as a sweep's, or a cost profile. By default they are fitted "
    "from this run's own steps, which the twin then has seen.",
)
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Repeat a run with the settings of its folder, and list what differs.",
)
def rush(
    like: Path | None, out: Path, dry_run: bool, study: bool, server: Server, as_json: bool, twin: bool,
    profile_fit: str | None, **options: Any,
) -> None:  # fmt: skip
    """Replay one seeded crowd under several admission policies.

    Every policy serves the same requests at the same times, each role in a process of its own: one worker with the
    model, and for every policy and rate a fresh router and fresh clients. Prints what a customer waited, and how long
    the reply took to write; all timing records stay in the run's folder.
    """
    console = console_for(as_json)
    try:
        earlier = None
        if like is not None:
            refuse_settings(click.get_current_context())
            earlier = read_manifest(like)
        refuse_both_seeds(click.get_current_context())
        settings = settings_like(earlier) if earlier is not None else settings_from(server, options)
        check(settings)
        wanted = wanted_twin(twin, profile_fit)
    except (ValueError, RunFolderError) as error:
        raise click.UsageError(str(error)) from None
    for line in plan_text(settings, earlier):
        console.print(line)
    if not dry_run:
        sys.exit(_run(settings, out, console, study, earlier, wanted))


def wanted_twin(twin: bool, profile_fit: str | None) -> WantedTwin | None:
    """The twin that was asked for. Raises ValueError and RunFolderError."""
    if not twin and profile_fit is not None:
        raise ValueError("--profile-fit is about the twin: ask for one with --twin")
    profile = None if profile_fit is None else named_profile(profile_fit)
    return WantedTwin(profile, profile_fit) if twin else None


def _run(
    settings: RushSettings, out: Path, console: Console, study: bool, earlier: dict[str, Any] | None,
    twin: WantedTwin | None,
) -> int:  # fmt: skip
    from experiments.rush import Rush
    from experiments.show import show

    calibration = earlier["calibration"] if earlier else None

    def body(run: Run) -> Callable[[], None]:
        return Rush(settings, run, calibration, known_reply_s(settings), twin).measure

    run, summary = launch("rush", asdict(settings), settings.server, out, console, body)
    show(console, summary, run.manifest["settings"], study)
    if earlier is not None:
        for line in differences(earlier, run.manifest) or ["Nothing that a measurement depends on differs."]:
            console.print(line, soft_wrap=True)
    return finish(run, summary, study)


def plan_text(settings: RushSettings, earlier: dict[str, Any] | None) -> list[str]:
    """The plan, with the time it takes where one reply's is known: from the calibration of the run to be repeated, or
    the profile of the paced engine."""
    from experiments.rush import plan_lines

    calibration = (earlier or {}).get("calibration")
    lines = plan_lines(settings, calibration["reply_s"] if calibration else known_reply_s(settings))
    return lines + memory_warnings(settings)


def memory_warnings(settings: RushSettings) -> list[str]:
    """What does not fit into memory, should every seat be taken by the longest request."""
    lacking = [shortage(settings.server, cell) for cell in cells(settings, [Offer(None, None)])]
    return [f"Warning: {line}" for line in dict.fromkeys(lacking) if line is not None]


def refuse_settings(context: click.Context) -> None:
    """Raises ValueError when a setting was given beside --like, which takes all of them from the earlier run."""
    given = [
        name
        for name in context.params
        if name not in NOT_SETTINGS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise ValueError(f"--like takes every setting from its run: leave out --{given[0].replace('_', '-')}")


def refuse_both_seeds(context: click.Context) -> None:
    """Raises ValueError when --seed was given beside --seeds."""
    given = context.get_parameter_source("seed") is ParameterSource.COMMANDLINE
    if given and context.params["seeds"] is not None:
        raise ValueError("--seeds names every seed: leave out --seed")


def settings_from(server: Server, options: dict[str, Any]) -> RushSettings:
    """The settings of a command line. Raises ValueError in one line."""
    quick = options["quick"]
    if options["arrivals"] == "at-once" and options["rates"] != AUTO:
        raise ValueError("--arrivals at-once has no rate: leave out --rates")
    trace = trace_of(options)
    on_cpu = server.engine == "mlx" and models.device() == "cpu"
    tokens = plan.QUICK_TOKENS if quick else plan.CPU_TOKENS if on_cpu else plan.TOKENS
    if options["policy"] and options["policies"] is not None:
        raise ValueError("--policies is short for one --policy each: give one of the two")
    named = options["policy"] or named_policies(options["policies"] or THE_STUDYS, options["seats"])
    return RushSettings(
        server=server,
        policies=tuple(with_seats(spec, options["seats"]) for spec in named),
        rates=parse_rates(options["rates"]),
        loads=plan.QUICK_LOADS if quick else plan.STUDY_LOADS,
        arrivals=options["arrivals"],
        requests=len(read_trace(trace).times)
        if trace
        else options["requests"] or (plan.QUICK_REQUESTS if quick else plan.REQUESTS),
        max_tokens=options["max_tokens"] or tokens,
        ignore_eos=options["ignore_eos"],
        workload=options["workload"],
        prompts=str(options["prompts"]) if options["prompts"] is not None else None,
        seeds=(options["seed"],) if options["seeds"] is None else parse_seeds(options["seeds"]),
        clients=options["clients"],
        queue=options["queue"],
        timeout=options["timeout"],
        share_prefix=options["share_prefix"],
        drift_cell=not quick,
        objectives=options["objective"],
        trace=trace,
    )


def trace_of(options: dict[str, Any]) -> TraceSource | None:
    """The trace of a command line. Raises ValueError in one line, also for what it leaves nothing to say about."""
    source = trace_source(*(options[name] for name in ("trace", "speed", "first", "columns", "unit")))
    if source is None:
        return None
    if options["rates"] != AUTO or options["prompts"] is not None or options["requests"] is not None:
        raise ValueError("--trace says who comes when: leave out --rates, --prompts and --requests (there is --first)")
    if options["seeds"] is not None:
        raise ValueError("--trace has one order of arrivals: leave out --seeds")
    return source


def settings_like(manifest: dict[str, Any]) -> RushSettings:
    """The settings of an earlier run. Raises ValueError when its manifest does not hold them."""
    kept = manifest.get("settings")
    names = {field.name for field in fields(RushSettings)}
    if manifest.get("experiment") != "rush" or not isinstance(kept, dict) or set(kept) != names:
        raise ValueError("--like: that folder's manifest.json holds no settings of a rush of this version")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()}
    try:
        return RushSettings(**values | {"server": Server(**kept["server"]), "trace": kept_trace(kept["trace"])})
    except TypeError:
        raise ValueError("--like: that folder's manifest.json is of another version") from None


def kept_trace(kept: dict[str, Any] | None) -> TraceSource | None:
    """A trace as a manifest holds it. Raises TypeError for one of another version."""
    if kept is None:
        return None
    columns = kept.get("columns")
    return TraceSource(**kept | {"columns": tuple(columns) if columns else None})


def parse_rates(text: str) -> tuple[float, ...] | None:
    """Requests per second from `1,2,4`, ascending; None for auto. Raises ValueError in one line."""
    if text == AUTO:
        return None
    try:
        rates = [float(part) for part in text.split(",")]
        for rate in rates:
            ArrivalPlan("poisson", rate)
    except ValueError:
        raise ValueError(f"--rates takes auto, or requests per second above 0 such as 1,2,4; not {text!r}") from None
    if len(set(rates)) != len(rates):
        raise ValueError(f"--rates names a rate twice: {text}")
    return tuple(sorted(rates))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from `12,13,14`, in that order. Raises ValueError in one line."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or not all(LOWEST_SEED <= seed <= HIGHEST_SEED for seed in seeds):
        raise ValueError(f"--seeds takes whole numbers of up to 64 bits such as 12,13,14; not {text!r}")
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"--seeds names a seed twice: {text}")
    return tuple(seeds)


def check(settings: RushSettings) -> None:
    """Raises ValueError, in one line that says what to do, for what would fail once processes run."""
    made = [parse_policy(spec) for spec in settings.policies]
    if len(set(map(label, made))) != len(made):
        raise PolicyError(f"a policy is named twice: {', '.join(settings.policies)}")
    for policy in made:
        try_out(policy)
    if settings.timeout is not None and not 0 < settings.timeout <= LONGEST_TIMEOUT_S:
        raise ValueError(f"--timeout takes seconds above 0, up to a year; not {settings.timeout}")
    if settings.server.kv_bits is not None and any(policy.seats > 1 for policy in made):
        raise ValueError(NOT_BATCHED)
    if settings.share_prefix and (settings.server.engine == "paced" or settings.server.kv_bits is not None):
        raise ValueError("--share-prefix needs a model that serves many: leave out --engine paced and --kv-bits")
    settings.server.check()
    prompts = Path(settings.prompts) if settings.prompts is not None else None
    for seed in settings.seeds:
        load_prompts(settings.workload, prompts, settings.requests, settings.max_tokens, seed)
    check_objectives(settings.objectives)
    for cell in cells(settings, [Offer(rate, None) for rate in settings.rates or ()]):
        plan.schedule(cell)
