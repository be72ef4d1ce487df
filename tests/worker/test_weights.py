"""Types of weights: what a model computes in, how many bytes a step reads, and that packing starts from the floats."""

from pathlib import Path
from typing import Any

import pytest

from worker import models
from worker.models import LoadedModel

pytestmark = pytest.mark.alone

VOCABULARY, HIDDEN, INNER, LAYERS, KEYS = 257, 64, 128, 2, 32
MATRICES = VOCABULARY * HIDDEN + LAYERS * HIDDEN * (2 * HIDDEN + 2 * KEYS + 3 * INNER)
VECTORS = HIDDEN * (2 * LAYERS + 1)


@pytest.mark.parametrize(
    ("weights", "dtype", "size"),
    [
        ("native", "float32", 4 * (MATRICES + VECTORS)),
        ("float32", "float32", 4 * (MATRICES + VECTORS)),
        ("bf16", "bfloat16", 2 * (MATRICES + VECTORS)),
        ("8bit", "float32, 8-bit weights", MATRICES * (8 + 1) // 8 + 4 * VECTORS),
        ("4bit", "float32, 4-bit weights", MATRICES * (4 + 1) // 8 + 4 * VECTORS),
    ],
)
def test_a_step_reads_every_weight_but_the_embedding(tiny_folder: Path, weights: str, dtype: str, size: int) -> None:
    """The tiny model's output is a matrix of its own; packed, every 64 numbers have a scale and a bias of 32 bits."""
    loaded = models.load(str(tiny_folder), weights=weights)
    assert loaded.dtype == dtype
    assert loaded.bytes_per_step == size


def test_by_default_a_cpu_computes_in_float32(tiny: LoadedModel) -> None:
    assert tiny.dtype == "float32"
    assert models.default_weights() == ("float32" if models.device() == "cpu" else "native")


def test_packed_weights_are_close_to_the_float_weights_they_are_made_from(tiny_folder: Path) -> None:
    import mlx.core as mx

    tokens = mx.array([[65, 66, 67, 68, 69]])
    exact, eight, four = (
        models.load(str(tiny_folder), weights=kind).network(tokens) for kind in ("float32", "8bit", "4bit")
    )

    def away(logits: Any) -> float:
        return float(mx.abs(logits - exact).mean() / mx.abs(exact).mean())

    assert away(eight) < 0.02 < away(four) < 0.5


@pytest.mark.model
def test_the_embedded_model_packs_in_groups_that_fit() -> None:
    """Its hidden size, 576, is nine groups of 64."""
    packed = models.load(weights="4bit")
    assert packed.dtype == "float32, 4-bit weights"
    assert packed.bytes_per_step is not None
    assert 134e6 * 5 / 8 < packed.bytes_per_step < 136e6 * 5 / 8


def test_bandwidth_is_that_of_a_memory(tiny: LoadedModel) -> None:
    from worker.bandwidth import memory_bandwidth

    assert 1e8 < memory_bandwidth() < 1e14
