"""What a KV cache takes, in figures and in words: computed from a configuration that the manifest holds."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments import reference
from experiments.analysis import CellRecords
from experiments.kv_families import Config, kv_shape, language_config
from experiments.kv_size import KVShape, bytes_per_token, cache_bytes, tokens_to_pass, users_that_fit
from experiments.model_config import NamedConfig, Weights, weights_bytes
from experiments.tables import MISSING, plain_table
from protocol.sizes import binary_text, bytes_text


@dataclass(frozen=True, slots=True)
class Figures:
    """What `users` of `context` tokens each take at so many bits; None where it is not known or was not asked for."""

    context: int
    users: int
    bits: int
    bytes_per_token: int
    one_user_bytes: int
    all_users_bytes: int
    weights_bytes: int | None
    tokens_to_pass_weights: int | None
    grouped_query_factor: float
    memory_bytes: int | None
    users_that_fit: int | None


def figures(shape: KVShape, weights: int | None, context: int, users: int, bits: int, memory: int | None) -> Figures:
    """The figures of a cache, beside so many bytes of weights and in so many of memory.

    Raises ValueError for a head that quantization does not fit.
    """
    one_user = cache_bytes(shape, context, bits)
    return Figures(
        context=context,
        users=users,
        bits=bits,
        bytes_per_token=bytes_per_token(shape, bits),
        one_user_bytes=one_user,
        all_users_bytes=users * one_user,
        weights_bytes=weights,
        tokens_to_pass_weights=None if weights is None else tokens_to_pass(shape, weights, bits),
        grouped_query_factor=shape.query_heads / shape.kv_heads,
        memory_bytes=memory,
        users_that_fit=None
        if memory is None or weights is None
        else users_that_fit(shape, memory, weights, context, bits),
    )


def findings(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any]:
    """Shape, weights and figures, from the manifest's settings alone: nothing is measured. Raises ValueError for a
    configuration whose cache cannot be computed."""
    asked = dict(manifest["settings"])
    named = NamedConfig(**asked.pop("model"))
    shape, weights = kv_shape(named.config), weights_bytes(named)
    told = figures(shape, weights.bytes, **asked)
    return {
        "model": named.name,
        "configuration": named.source,
        "shape": asdict(shape),
        "weights": asdict(weights),
        "figures": asdict(told),
        "remarks": [*remarks(language_config(named.config), shape, told)],
    }


def show(console: Console, found: Mapping[str, Any]) -> None:
    """One table, and what must be known beside it."""
    console.print(
        size_table(found["model"], KVShape(**found["shape"]), Weights(**found["weights"]), Figures(**found["figures"]))
    )
    for line in found["remarks"]:
        console.print(line)


def show_study(console: Console, found: Mapping[str, Any]) -> None:
    """The study's figures."""
    console.print(reference.KV_SIZE, soft_wrap=True)


def size_table(name: str, shape: KVShape, weights: Weights, told: Figures) -> Table:
    """One line a figure, and what it is made of or for."""
    table = plain_table(f"{name}: the KV cache at {told.bits} bits")
    table.show_header = False
    for wraps in (False, False, True):
        table.add_column(no_wrap=not wraps, overflow="fold")
    per_token = f"{told.bytes_per_token:,} B ({binary_text(told.bytes_per_token)})"
    table.add_row("one more token" if shape.sliding_layers else "one token", per_token, product(shape, told.bits))
    table.add_row("one user", bytes_text(told.one_user_bytes), f"{told.context:,} tokens")
    if told.users > 1:
        table.add_row(f"{told.users:,} users", bytes_text(told.all_users_bytes), f"{told.context:,} tokens each")
    table.add_row(
        "the weights", MISSING if told.weights_bytes is None else bytes_text(told.weights_bytes), weights.source
    )
    table.add_row("passes the weights", *passing(shape, told))
    table.add_row("grouped queries", *saving(shape))
    if told.memory_bytes is not None:
        table.add_row(f"users in {bytes_text(told.memory_bytes)}", *fitting(told))
    return table


def product(shape: KVShape, bits: int) -> str:
    """Bytes per token as the numbers that are multiplied."""
    number = f"{bits // 8} B" if bits >= 16 else f"{bits + 0.5} bits"
    layers, heads = counted(shape.full_layers, "layer"), counted(shape.kv_heads, "head")
    return f"2 x {layers} x {heads} x {shape.head_dim} x {number}"


def saving(shape: KVShape) -> tuple[str, str]:
    """How much smaller the cache is than with a KV head for each query head."""
    factor = shape.query_heads / shape.kv_heads
    heads = f"{counted(shape.kv_heads, 'KV head')} for {counted(shape.query_heads, 'query head')}"
    return f"{factor:.3g} times smaller" if factor > 1 else "nothing saved", heads


def passing(shape: KVShape, told: Figures) -> tuple[str, str]:
    """At how many tokens the cache is larger than the weights, and whose tokens these are."""
    if told.weights_bytes is None:
        return MISSING, ""
    if told.tokens_to_pass_weights is None:
        return "never", "every layer slides"
    whose = "tokens of one user" if shape.sliding_layers else "tokens, of one user or of several"
    return f"at {told.tokens_to_pass_weights:,}", whose


def fitting(told: Figures) -> tuple[str, str]:
    """How many users fit beside the weights, or why none does."""
    if told.weights_bytes is None or told.memory_bytes is None:
        return MISSING, "the size of the weights is not known"
    left = told.memory_bytes - told.weights_bytes
    if told.users_that_fit == 0:
        return "0", f"only {bytes_text(left)} beside the weights" if left > 0 else "the weights alone do not fit"
    return f"{told.users_that_fit:,}", f"{told.context:,} tokens, beside the weights"


def remarks(config: Config, shape: KVShape, told: Figures) -> Iterator[str]:
    """What must be known beside the figures: windows, quantization that mlx-lm lacks, a context that is too long."""
    window, longest = config.get("sliding_window"), config.get("max_position_embeddings")
    if shape.window is not None:
        layers = shape.full_layers + shape.sliding_layers
        yield f"{shape.sliding_layers} of {layers} layers keep only the last {shape.window:,} tokens of each user."
    elif isinstance(window, int) and window < told.context and config.get("use_sliding_window", True):
        yield f"The configuration names a window of {window:,} tokens; mlx-lm keeps all, and so do these figures."
    if told.bits < 16:
        yield f"mlx-lm cannot batch a quantized cache{', nor quantize one that slides' if shape.window else ''}."
    if isinstance(longest, int) and longest < told.context:
        yield f"The model is made for {longest:,} tokens, fewer than {told.context:,}."


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
