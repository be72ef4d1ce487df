"""How large a KV cache is, from its shape alone."""

from bisect import bisect_right
from dataclasses import dataclass

GROUP = 64  # numbers that share a scale and a bias in a quantized cache, as mlx-lm has it
GROUP_BYTES = 4  # the scale and the bias, 16 bits each


@dataclass(frozen=True, slots=True)
class KVShape:
    """What decides the size of a cache.

    For every token a layer keeps one key and one value of `head_dim` numbers for each of its `kv_heads`.
    `sliding_layers` keep the last `window` tokens, the `full_layers` all; `window` is None where no layer slides.
    """

    full_layers: int
    sliding_layers: int
    window: int | None
    query_heads: int
    kv_heads: int
    head_dim: int


def cache_bytes(shape: KVShape, tokens: int, bits: int = 16) -> int:
    """Bytes of the keys and values of one sequence of `tokens`, at 32, 16, 8 or 4 bits a number.

    The size in use: mlx-lm allocates for the next multiple of 256 tokens, and a layer that slides holds more while it
    reads a prompt. Raises ValueError for other bits, and for a head that groups of 64 do not fit into.
    """
    kept = shape.full_layers * tokens + shape.sliding_layers * min(tokens, shape.window or 0)
    return kept * _layer_bytes(shape, bits)


def bytes_per_token(shape: KVShape, bits: int = 16) -> int:
    """Bytes by which the cache grows with each token; beyond the window, where layers slide. Raises as above."""
    return shape.full_layers * _layer_bytes(shape, bits)


def _layer_bytes(shape: KVShape, bits: int) -> int:
    """Bytes of one token in one layer: a key and a value for each KV head."""
    if bits not in (32, 16, 8, 4):
        raise ValueError(f"a cache has 32, 16, 8 or 4 bits a number, not {bits}")
    if bits < 16 and shape.head_dim % GROUP:
        raise ValueError(f"a head of {shape.head_dim} numbers cannot be quantized in groups of {GROUP}")
    scales = shape.head_dim // GROUP * GROUP_BYTES if bits < 16 else 0
    return 2 * shape.kv_heads * (shape.head_dim * bits // 8 + scales)


def tokens_to_pass(shape: KVShape, weights_bytes: int, bits: int = 16) -> int | None:
    """The fewest tokens whose cache is larger than the weights; None if it never is, since every layer slides."""
    growth = bytes_per_token(shape, bits)
    most = weights_bytes // growth + 1 if growth else shape.window or 0
    passed = bisect_right(range(most + 1), weights_bytes, key=lambda tokens: cache_bytes(shape, tokens, bits))
    return passed if passed <= most else None


def users_that_fit(shape: KVShape, memory_bytes: int, weights_bytes: int, tokens: int, bits: int = 16) -> int:
    """How many users with `tokens` each (1 or more) fit into the memory beside the weights; 0 if none does."""
    return max(0, memory_bytes - weights_bytes) // cache_bytes(shape, tokens, bits)
