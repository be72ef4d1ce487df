"""How fast this worker can read memory: the limit of one reply's speed, since every step reads every weight."""

import time
from typing import Any

SIDE, ROUNDS = 8_192, 7


def memory_bandwidth() -> float:
    """Bytes a second at which a matrix of 256 MiB is multiplied with a vector, the best of seven times. MLX runs as it
    does for the model; import a model first, so that the right BLAS is under it."""
    import mlx.core as mx

    matrix, vector = mx.ones((SIDE, SIDE)), mx.ones((1, SIDE))
    mx.eval(matrix, vector)
    best = min(_multiplied(mx, matrix, vector) for _ in range(ROUNDS))
    size = int(matrix.nbytes)
    del matrix
    mx.clear_cache()
    return size / best


def _multiplied(mx: Any, matrix: Any, vector: Any) -> float:
    begin = time.perf_counter()
    mx.eval(vector @ matrix.T)
    return time.perf_counter() - begin
