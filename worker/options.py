"""Options that say what serves: shared by the worker's command and the experiments that start it."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from worker import models

Command = TypeVar("Command", bound=Callable[..., Any])

STUDY_PROFILE = "qwen3-4b-4bit-m4max"
PREFILL_BATCH, PREFILL_STEP = 8, 2048
OPTIONS = (
    click.option(
        "--model",
        default=models.EMBEDDED,
        show_default=True,
        help="The embedded model, a local MLX folder, or a hub id.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["mlx", "paced"]),
        default="mlx",
        show_default=True,
        help="A real model, or one that takes the time a cost profile says.",
    ),
    click.option(
        "--profile",
        default=STUDY_PROFILE,
        show_default=True,
        help="Cost profile of the paced engine: a shipped name or a JSON file.",
    ),
    click.option(
        "--prefill-step",
        type=click.IntRange(1, 10**9),
        default=PREFILL_STEP,
        show_default=True,
        help="Most tokens of a prompt read in one step.",
    ),
    click.option(
        "--prefill-batch",
        type=click.IntRange(1, 10**9),
        default=PREFILL_BATCH,
        show_default=True,
        help="Prompts read together in one step.",
    ),
    click.option(
        "--chat-template-args",
        default="{}",
        help="JSON object for the model's chat template; thinking is off unless said otherwise.",
    ),
)


def engine_options(command: Command) -> Command:
    """All of them, in this order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
