"""A model's configuration by name, and the size of its weights, without a look at any of them."""

import json
import logging
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from experiments.kv_families import FAMILIES, Config, count, kv_shape, language_config, model_type
from worker import gguf, models

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many numbers a dense model has: those in matrices, which may be quantized by row, and the others.

    `row_lengths` are the lengths that the matrices' rows have.
    """

    matrices: int
    vectors: int
    row_lengths: frozenset[int]


@dataclass(frozen=True, slots=True)
class Weights:
    """The size of a model's weights, and in words where that number is from; None where it cannot be known."""

    bytes: int | None
    source: str


def parameters(config: Config) -> int | None:
    """How many parameters a dense model has, tied embeddings counted once.

    None where they are not counted: experts, biases, multimodal and unknown models. Raises ValueError for values that
    are missing or wrong.
    """
    counted = _counted(config)
    return None if counted is None else counted.matrices + counted.vectors


def _counted(config: Config) -> Parameters | None:
    family = FAMILIES.get(model_type(config))
    if family is None or family.dense is None or config.get("attention_bias") or config.get("mlp_bias"):
        return None
    config, dense = language_config(config), family.dense
    shape = kv_shape(config)
    hidden, inner, words = (count(config, key) for key in ("hidden_size", "intermediate_size", "vocab_size"))
    queries, keys = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tied = config.get("tie_word_embeddings", True) if dense.tied is None else dense.tied
    normed = {"none": 0, "head": 2 * shape.head_dim, "whole": queries + keys}[dense.qk_norm]
    layers = shape.full_layers + shape.sliding_layers
    return Parameters(
        matrices=(1 if tied else 2) * words * hidden + layers * hidden * (2 * queries + 2 * keys + 3 * inner),
        vectors=hidden + layers * (dense.norms * hidden + normed + dense.qkv_bias * (queries + 2 * keys)),
        row_lengths=frozenset((hidden, inner, queries)),
    )


def weights_bytes(model: "NamedConfig") -> Weights:
    """The size of a model's files, or else of the parameters that its configuration describes."""
    if model.files_bytes is not None:
        return Weights(model.files_bytes, "its model*.safetensors")
    counted, dtype = _counted(model.config), str(model.config.get("torch_dtype") or model.config.get("dtype"))
    if counted is None:
        return Weights(None, "unknown: not counted for this kind of model")
    if dtype not in DTYPE_BYTES:
        return Weights(None, "unknown: the configuration names no type of numbers")
    if "quantization" in model.config or "quantization_config" in model.config:
        return _quantized(counted, DTYPE_BYTES[dtype], model.config.get("quantization"))
    total = counted.matrices + counted.vectors
    return Weights(total * DTYPE_BYTES[dtype], f"{total:,} parameters, {dtype}")


def _quantized(counted: Parameters, number: int, how: Any) -> Weights:
    """Weights that mlx-lm quantized all alike: every group of a row has a scale and a bias of `number` bytes."""
    match how:
        case {"bits": int(bits), "group_size": int(group), **more} if group > 0 and more in ({}, {"mode": "affine"}):
            if all(length % group == 0 for length in counted.row_lengths):
                scales = counted.matrices // group * 2
                size = counted.matrices * bits // 8 + (scales + counted.vectors) * number
                total = counted.matrices + counted.vectors
                return Weights(size, f"{total:,} parameters, {bits} bits in groups of {group}")
    return Weights(None, "unknown: quantized in a way that is not computed")


# --- configurations by name ---

SHIPPED = ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B")


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A config.json, where it is from, and the size of the weights beside it: None if there are none."""

    name: str
    source: str
    config: Config
    files_bytes: int | None = None


def load_config(name: str, download: bool = True) -> NamedConfig:
    """The configuration of the embedded model, of a local folder, of one of `SHIPPED` or of a hub id, in this order.

    Of a hub id, config.json alone is downloaded, if it may be. Raises ValueError, with one line that says what to do,
    if there is no such model or configuration, and RuntimeError if a download fails.
    """
    if name == models.EMBEDDED:
        return _in_folder(name, gguf.target()) if gguf.target().is_dir() else _shipped(name)
    folder = _folder(name)
    if folder is not None:
        return _in_folder(name, folder)
    shipped = {model.casefold(): model for model in SHIPPED}.get(name.casefold().removeprefix("qwen/"))
    if shipped is not None:
        return _shipped(shipped)
    try:
        models.check(name)
    except ValueError as error:
        raise ValueError(f"{error}; {', '.join(SHIPPED)} are known without a download") from None
    return NamedConfig(name, "hub", _parsed(_from_hub(name, download), name))


def _folder(name: str) -> Path | None:
    """The folder of that name, if it has a configuration; weights need not be there."""
    try:
        folder = Path(name).expanduser()
    except RuntimeError:  # ~ of nobody
        return None
    return folder if name and (folder / "config.json").is_file() else None


def _shipped(name: str) -> NamedConfig:
    file = resources.files("experiments").joinpath("kv_configs", f"{name}.json")
    return NamedConfig(name, "shipped", _parsed(file, name))


def _in_folder(name: str, folder: Path) -> NamedConfig:
    sizes = [file.stat().st_size for file in folder.glob("model*.safetensors")]
    return NamedConfig(name, "folder", _parsed(folder / "config.json", name), sum(sizes) if sizes else None)


def _from_hub(name: str, download: bool) -> Path:
    from huggingface_hub import hf_hub_download

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of every retry
    try:
        return Path(hf_hub_download(name, "config.json", local_files_only=not download))
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RuntimeError(f"config.json of {name} cannot be downloaded from the hub: {first}") from error


def _parsed(file: Traversable, name: str) -> Config:
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise ValueError(f"the config.json of {name} cannot be read as a JSON object")
    return config
