"""Options that say what serves: shared by the worker's command and the experiments that start it."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click
import orjson

from protocol.options import as_bytes
from worker import models
from worker.profile import load_profile

Command = TypeVar("Command", bound=Callable[..., Any])

STUDY_PROFILE = "qwen3-4b-4bit-m4max"
PREFILL_BATCH, PREFILL_STEP = 8, 2048
PREFIX_BYTES = 2 * 10**9
NOT_BATCHED = "a quantized KV cache cannot be batched (mlx-lm's holds one row): with --kv-bits the only policy is one"


@dataclass(frozen=True, slots=True)
class Server:
    """What serves. `profile` is the paced engine's, all else the real model's; `prefix_cache` counts bytes; `kv_bits`
    None serves many at once, else one at a time with a KV cache of that many bits."""

    engine: str = "mlx"
    model: str = models.EMBEDDED
    weights: str = models.DEFAULT_WEIGHTS
    profile: str = STUDY_PROFILE
    prefill_step: int = PREFILL_STEP
    prefill_batch: int = PREFILL_BATCH
    prefix_cache: int = PREFIX_BYTES
    kv_bits: int | None = None
    chat_template_args: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ValueError, in one line that says what to do, for what would fail once a worker runs."""
        if self.engine == "paced":
            load_profile(self.profile)
            if self.kv_bits is not None:
                raise ValueError("--kv-bits are a model's: leave them out with --engine paced")
        else:
            models.check(self.model)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.profile} (paced)" if self.engine == "paced" else self.model

    def arguments(self) -> list[str]:
        """The options of `headway worker` that start it."""
        return [
            *("--engine", self.engine, "--model", self.model, "--weights", self.weights, "--profile", self.profile),
            *("--prefill-batch", str(self.prefill_batch), "--prefill-step", str(self.prefill_step)),
            *("--prefix-cache", str(self.prefix_cache)),
            *(() if self.kv_bits is None else ("--kv-bits", str(self.kv_bits))),
            *("--chat-template-args", orjson.dumps(dict(self.chat_template_args)).decode()),
        ]


OPTIONS: dict[str, Callable[[Any], Any]] = {
    "engine": click.option(
        "--engine",
        type=click.Choice(["mlx", "paced"]),
        default="mlx",
        show_default=True,
        help="A real model, or one that takes the time a cost profile says.",
    ),
    "model": click.option(
        "--model",
        default=models.EMBEDDED,
        show_default=True,
        help="The embedded model, a local MLX folder, or a hub id.",
    ),
    "weights": click.option(
        "--weights",
        type=click.Choice([models.DEFAULT_WEIGHTS, *models.WEIGHTS]),
        default=models.DEFAULT_WEIGHTS,
        show_default=True,
        help="Type of the weights; packed ones are made from the float weights. auto: native (as stored) on a GPU, "
        "float32 on a CPU.",
    ),
    "profile": click.option(
        "--profile",
        default=STUDY_PROFILE,
        show_default=True,
        help="Cost profile of the paced engine: a shipped name or a JSON file.",
    ),
    "prefill_step": click.option(
        "--prefill-step",
        type=click.IntRange(1, 10**9),
        default=PREFILL_STEP,
        show_default=True,
        help="Most tokens of a prompt read in one step.",
    ),
    "prefill_batch": click.option(
        "--prefill-batch",
        type=click.IntRange(1, 10**9),
        default=PREFILL_BATCH,
        show_default=True,
        help="Prompts read together in one step.",
    ),
    "prefix_cache": click.option(
        "--prefix-cache",
        callback=as_bytes,
        metavar="SIZE",
        default="2GB",
        show_default=True,
        help="Memory for the caches of starts that prompts share; 0 keeps none.",
    ),
    "kv_bits": click.option(
        "--kv-bits",
        type=click.Choice(["16", "8", "4"]),
        help="Serve one at a time with a KV cache of so many bits a number (16: as computed), since a quantized one "
        "cannot be batched. By default many are served at once.",
    ),
    "chat_template_args": click.option(
        "--chat-template-args",
        default="{}",
        help="JSON object for the model's chat template; thinking is off unless said otherwise.",
    ),
}


def server_options(*without: str) -> Callable[[Command], Command]:
    """All of them, in this order, but those that the command has no use for; it takes them together as `server`."""
    names = [name for name in OPTIONS if name not in without]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_server(**given: Any) -> Any:
            chosen = {name: given.pop(name) for name in names}
            try:
                server = Server(**(chosen | _converted(chosen)))
            except ValueError as error:
                raise click.UsageError(str(error)) from None
            return command(server=server, **given)

        decorated: Any = with_server
        for name in reversed(names):
            decorated = OPTIONS[name](decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def _converted(chosen: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if "chat_template_args" in chosen:
        values["chat_template_args"] = parse_template_args(chosen["chat_template_args"])
    if chosen.get("kv_bits") is not None:
        values["kv_bits"] = int(chosen["kv_bits"])
    return values


def parse_template_args(text: str) -> dict[str, Any]:
    """The JSON object of `--chat-template-args`. Raises ValueError in one line."""
    try:
        args = orjson.loads(text)
    except orjson.JSONDecodeError:
        args = None
    if not isinstance(args, dict):
        raise ValueError(f'--chat-template-args takes a JSON object such as {{"enable_thinking": true}}, not {text!r}')
    return args
