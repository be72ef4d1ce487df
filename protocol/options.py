"""Options that every role's command has, spelled once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from protocol.sizes import parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])


def as_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option that takes an amount of memory in words."""
    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


cell_option = click.option(
    "--cell", default="cell", show_default=True, help="Name of what is measured; the records' file is called by it."
)
start_timeout_option = click.option(
    "--start-timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the others to come.",
)


def role_options(command: Command) -> Command:
    """`--run` and `--out`, and the supervisor's own `--supervised`."""
    out_type = click.Path(path_type=Path, file_okay=False)
    for option in (
        click.option("--supervised", is_flag=True, hidden=True, help="Stop when standard input closes."),
        click.option(
            *("--out",), type=out_type, default=Path("records"), show_default=True, help="Folder for timing records."
        ),
        click.option(
            *("--run",), default="run", show_default=True, help="Run id of every message: the same for all roles."
        ),
    ):
        command = option(command)
    return command
