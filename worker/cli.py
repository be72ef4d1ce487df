"""`headway worker`: one worker process, as the supervisor or a person at a terminal starts it."""

import os
from dataclasses import replace
from pathlib import Path

import click

from protocol.options import role_options
from protocol.priority import tighten_timers
from protocol.process import StopRequest, end_with_parent
from protocol.wire import WireError, check_endpoint
from worker import models
from worker.engine import CannotServe, Engine
from worker.heap import keep_freed_memory
from worker.options import Server, server_options
from worker.profile import load_profile

NICE = 10


def build_engine(server: Server, bandwidth: bool = False) -> Engine:
    """The engine of these settings, loaded, and the memory's bandwidth measured if that is asked for. MLX is imported
    here and nowhere earlier. Raises ValueError or RuntimeError when it cannot be had."""
    if server.engine == "paced":
        from worker.paced import PacedEngine

        return PacedEngine(load_profile(server.profile), server.prefill_batch, server.prefill_step)
    loaded = models.load(server.model, server.chat_template_args, server.weights)
    if bandwidth:
        from worker.bandwidth import memory_bandwidth

        loaded = replace(loaded, bandwidth=memory_bandwidth())
    if server.kv_bits is not None:
        from worker.solo_engine import SoloEngine

        return SoloEngine(loaded, kv_bits=server.kv_bits, prefill_step=server.prefill_step)
    from worker.mlx_engine import MLXEngine

    return MLXEngine(
        loaded,
        seats=server.prefill_batch,
        prefill_step=server.prefill_step,
        prefill_batch=server.prefill_batch,
        prefix_bytes=server.prefix_cache,
    )


@click.command()
@click.option("--router", default="tcp://127.0.0.1:7412", show_default=True, help="The router's endpoint for workers.")
@server_options()
@click.option("--bandwidth", is_flag=True, help="Measure the memory's bandwidth first, for the records.")
@role_options
def worker(server: Server, router: str, bandwidth: bool, run: str, out: Path, supervised: bool) -> None:
    """Own the model and run the batching loop.

    Loads the model, registers with the router, and serves until it is stopped (Ctrl-C); when its router leaves, it
    waits for the next one at the same endpoint. Runs at low priority, so that arithmetic never delays a client.
    """
    from worker.loop import Heart, Progress, WorkerLoop, WorkerSettings

    try:
        check_endpoint(router)
        server.check()
        out.mkdir(parents=True, exist_ok=True)
    except (WireError, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
    if supervised:
        end_with_parent()
    stop = StopRequest()
    os.nice(NICE)
    keep_freed_memory()
    tighten_timers()
    settings, progress = WorkerSettings(router, run, out), Progress()
    heart = Heart(settings, progress)
    heart.start()

    def tell(line: str) -> None:
        if not supervised:
            click.echo(f"headway worker: {line}", err=True)

    try:
        tell(f"loading {server.name}")
        try:
            made = build_engine(server, bandwidth)
        except (RuntimeError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        tell(f"loaded; serving the router at {router} until Ctrl-C")
        WorkerLoop(made, settings, heart.instance, progress, stop).serve()
    except CannotServe as error:
        raise click.ClickException(str(error)) from error
    finally:
        heart.stop()
