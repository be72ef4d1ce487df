"""`headway worker`: one worker process, as the supervisor or a person at a terminal starts it."""

import os
from pathlib import Path
from typing import Any

import click
import orjson

from protocol.clock import tighten_timers
from protocol.process import StopRequest, end_with_parent
from protocol.wire import WireError, check_endpoint
from worker import models
from worker.engine import Engine
from worker.heap import keep_freed_memory
from worker.profile import ProfileError, load_profile

NICE = 10


def build_engine(
    engine: str, model: str, profile: str, prefill_batch: int, prefill_step: int, chat_template_args: dict[str, Any]
) -> Engine:
    """The engine of these settings, loaded. MLX is imported here and nowhere earlier."""
    if engine == "paced":
        from worker.paced import PacedEngine

        return PacedEngine(load_profile(profile), prefill_batch, prefill_step)
    from worker.mlx_engine import MLXEngine

    loaded = models.load(model, chat_template_args)
    return MLXEngine(loaded, seats=prefill_batch, prefill_step=prefill_step, prefill_batch=prefill_batch)


@click.command()
@click.option("--router", default="tcp://127.0.0.1:7412", show_default=True, help="The router's endpoint for workers.")
@click.option(
    "--engine",
    type=click.Choice(["mlx", "paced"]),
    default="mlx",
    show_default=True,
    help="A real model, or one that takes the time a cost profile says.",
)
@click.option(
    "--model", default=models.EMBEDDED, show_default=True, help="The embedded model, a local MLX folder, or a hub id."
)
@click.option(
    "--profile",
    default="qwen3-4b-4bit-m4max",
    show_default=True,
    help="Cost profile of the paced engine: a shipped name or a JSON file.",
)
@click.option(
    "--prefill-batch", type=click.IntRange(1), default=8, show_default=True, help="Prompts read together in one step."
)
@click.option(
    "--prefill-step",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Most tokens of a prompt read in one step.",
)
@click.option(
    "--chat-template-args",
    default="{}",
    help="JSON object for the model's chat template; thinking is off unless said otherwise.",
)
@click.option(
    "--run", default="run", show_default=True, help="Run id that every message must carry: the same for all roles."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("records"),
    show_default=True,
    help="Folder for the timing records.",
)
@click.option("--supervised", is_flag=True, hidden=True, help="Stop when standard input closes.")
def worker(
    router: str, engine: str, model: str, profile: str, prefill_batch: int, prefill_step: int,
    chat_template_args: str, run: str, out: Path, supervised: bool,
) -> None:  # fmt: skip
    """Own the model and run the batching loop.

    Loads the model, registers with the router, and serves until it is stopped (Ctrl-C); when its router leaves, it
    waits for the next one at the same endpoint. Runs at low priority, so that arithmetic never delays a client.
    """
    from worker.loop import Heart, Progress, WorkerLoop, WorkerSettings

    try:
        template_args = parse_template_args(chat_template_args)
        check_endpoint(router)
        if engine == "mlx":
            models.check(model)
        else:
            load_profile(profile)
        out.mkdir(parents=True, exist_ok=True)
        settings = WorkerSettings(router, run, out)
    except (ProfileError, WireError, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
    if supervised:
        end_with_parent()
    stop = StopRequest()
    os.nice(NICE)
    keep_freed_memory()
    tighten_timers()
    progress = Progress()
    heart = Heart(settings, progress)
    heart.start()
    try:
        made = build_engine(engine, model, profile, prefill_batch, prefill_step, template_args)
        WorkerLoop(made, settings, heart.instance, progress, stop).serve()
    finally:
        heart.stop()


def parse_template_args(text: str) -> dict[str, Any]:
    """The JSON object of `--chat-template-args`. Raises ValueError in one line."""
    try:
        args = orjson.loads(text)
    except orjson.JSONDecodeError:
        args = None
    if not isinstance(args, dict):
        raise ValueError(f'--chat-template-args takes a JSON object such as {{"enable_thinking": true}}, not {text!r}')
    return args
