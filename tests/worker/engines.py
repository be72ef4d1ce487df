"""Engines and requests as the tests of the MLX engine want them."""

from typing import Any

from protocol.messages import Submit
from worker.mlx_engine import MLXEngine
from worker.models import LoadedModel

LIGHTHOUSE = (
    "The lighthouse keeper had counted ships for forty years, and every evening he wrote their names into a book "
    "that nobody else was ever allowed to open. When the last ship of the season passed, he closed the book, put "
    "out the lamp, and walked down the long stairs to the harbour, where the fishermen were mending their nets and "
    "talking about the storm that had taken three boats and a church bell the winter before."
)


def engine_on(
    model: LoadedModel, seats: int = 8, prefill_step: int = 64, prefill_batch: int = 8, prefix_bytes: int = 0
) -> MLXEngine:
    return MLXEngine(
        model, seats=seats, prefill_step=prefill_step, prefill_batch=prefill_batch, prefix_bytes=prefix_bytes
    )


def request(number: int, prompt: str | tuple[int, ...] = "once upon", limit: int = 8, **more: Any) -> Submit:
    """A request for the tiny model, whose tokens are bytes; it does not stop before its limit unless it may."""
    tokens = tuple(prompt.encode()) if isinstance(prompt, str) else prompt
    return Submit(number, "user", tokens, limit, **{"ignore_eos": True, **more})
