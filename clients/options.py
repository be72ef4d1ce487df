"""Options that name a trace: shared by the clients' command and the experiments that replay one."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from clients.traces import DATES, UNITS, TraceSource

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--trace",
        type=click.Path(),
        help="Real traffic instead of arrivals and workload: Azure's LLM inference CSV, Mooncake's JSON Lines, or any "
        "CSV with --columns and --unit. Prompts are common words, about one for each token.",
    ),
    click.option("--speed", type=float, default=1.0, show_default=True, help="Replay the trace so many times as fast."),
    click.option("--first", type=click.IntRange(2), help="Replay the trace's first requests only."),
    click.option("--columns", metavar="TIME,PROMPT,REPLY", help="Names of a trace's columns: when, and tokens."),
    click.option("--unit", type=click.Choice([*UNITS, DATES]), help=f"What a trace's times are ({DATES}: dates)."),
)


def trace_options(command: Command) -> Command:
    """All of them, in this order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def trace_source(
    trace: str | None, speed: float, first: int | None, columns: str | None, unit: str | None
) -> TraceSource | None:
    """The trace that was named, if one was. Raises ValueError in one line."""
    if trace is None:
        for name, value in (("--speed", speed != 1), ("--first", first), ("--columns", columns), ("--unit", unit)):
            if value:
                raise ValueError(f"{name} is about a trace: name one with --trace")
        return None
    if not 0 < speed < 1e6:
        raise ValueError(f"--speed is a number above 0, not {speed:g}")
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    if names is not None and len(names) != 3:
        raise ValueError(f"--columns takes three names, TIME,PROMPT,REPLY; not {columns!r}")
    return TraceSource(trace, speed, first, names, unit)
