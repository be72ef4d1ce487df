"""`headway worker`: one worker process, as the supervisor or a person at a terminal starts it."""

import os
from pathlib import Path
from typing import Any

import click
import orjson

from protocol.clock import tighten_timers
from protocol.options import role_options
from protocol.process import StopRequest, end_with_parent
from protocol.wire import WireError, check_endpoint
from worker import models
from worker.engine import Engine
from worker.heap import keep_freed_memory
from worker.options import engine_options
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
@engine_options
@role_options
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

    def tell(line: str) -> None:
        if not supervised:
            click.echo(f"headway worker: {line}", err=True)

    try:
        tell(f"loading {model if engine == 'mlx' else profile}")
        try:
            made = build_engine(engine, model, profile, prefill_batch, prefill_step, template_args)
        except (RuntimeError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        tell(f"loaded; serving the router at {router} until Ctrl-C")
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
