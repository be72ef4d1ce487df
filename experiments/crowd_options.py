"""Options that say what crowd comes and which policies serve it: shared by the rush and its simulation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from clients.arrivals import ARRIVALS
from clients.options import trace_options
from clients.workloads import WORKLOADS
from experiments import plan

Command = TypeVar("Command", bound=Callable[..., Any])

AUTO = "auto"
LOWEST_SEED, HIGHEST_SEED = -(2**63), 2**63 - 1

OPTIONS: dict[str, Callable[[Any], Any]] = {
    "policies": click.option("--policies", help="Short for one --policy each. [default: one,static,continuous]"),
    "policy": click.option(
        "--policy",
        multiple=True,
        metavar="NAME[:KEY=VALUE,...]",
        help="A policy with its settings, such as static:n=4,wait=1 or shortest:predictor=prompt, or your own, "
        "FILE.py:CLASS; repeatable. headway policies lists them.",
    ),
    "rates": click.option(
        "--rates",
        default=AUTO,
        show_default=True,
        help="Requests per second, such as 1,2,4. auto: measure one at a time, then offer the study's four loads "
        "(0.46, 0.93, 1.85 and 3.7 times that).",
    ),
    "arrivals": click.option(
        "--arrivals",
        type=click.Choice([*ARRIVALS]),
        default="poisson",
        show_default=True,
        help="How requests arrive; at-once needs no rates.",
    ),
    "requests": click.option(
        "--requests", type=click.IntRange(1), help=f"Requests of every cell. [default: {plan.REQUESTS}]"
    ),
    "max_tokens": click.option(
        "--max-tokens",
        type=click.IntRange(1),
        help=f"Longest reply. [default: {plan.TOKENS}, {plan.CPU_TOKENS} for a model on a CPU]",
    ),
    "workload": click.option(
        "--workload", default="emails", show_default=True, help=f"What is asked: {', '.join(WORKLOADS)}."
    ),
    "prompts": click.option(
        "--prompts", type=click.Path(path_type=Path), help="JSON Lines file of prompts, instead of a workload."
    ),
    "seed": click.option(
        "--seed",
        type=click.IntRange(LOWEST_SEED, HIGHEST_SEED),
        default=12,
        show_default=True,
        help="Seed of the arrivals (12 is the study's).",
    ),
    "seeds": click.option(
        "--seeds",
        metavar="SEED,...",
        help="Several seeds, such as 12,13,14,15,16: every cell is served once for each, and policies are compared on "
        "the same arrivals, with intervals from five seeds up.",
    ),
    "seats": click.option(
        "--seats",
        type=click.IntRange(1, 100_000),
        default=64,
        show_default=True,
        help="Seats of continuous and whatever else has seats, where --policy does not say.",
    ),
    "queue": click.option(
        "--queue",
        type=click.IntRange(1, 10**9),
        default=4096,
        show_default=True,
        help="Longest queue; beyond it requests are rejected.",
    ),
    "timeout": click.option(
        "--timeout", type=float, help="Seconds after which a request is cancelled; none by default."
    ),
    "quick": click.option(
        "--quick",
        is_flag=True,
        help=f"The study's loads 1 and 4 only, {plan.QUICK_REQUESTS} requests, {plan.QUICK_TOKENS} tokens, no cell "
        "repeated to see drift.",
    ),
}


def crowd_options(command: Command) -> Command:
    """All of them, in this order, and those of a trace."""
    return some_crowd_options(*OPTIONS)(trace_options(command))


def some_crowd_options(*names: str) -> Callable[[Command], Command]:
    """Those of these names, in this order."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = OPTIONS[name](command)
        return command

    return decorate
