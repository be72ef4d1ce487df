"""How large a model's KV cache is, from its configuration alone: no weights are read, and no MLX is loaded."""

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from protocol.fields import shown
from worker import gguf, models

Config = Mapping[str, Any]

# --- the cache ---

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


# --- what mlx-lm makes of a configuration ---


def no_layer(config: Config, layers: int) -> int:
    """How many layers slide: none, even where the configuration names a window."""
    return 0


def by_types(period: int) -> Callable[[Config, int], int]:
    """The layers that `layer_types` calls sliding; where it is missing, all but every `period`th."""

    def sliding(config: Config, layers: int) -> int:
        kinds = config.get("layer_types")
        if kinds is None:
            return layers - layers // period
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise _refusal(config, f"layer_types does not name the kind of each of the {layers} layers")
        for kind in kinds:
            if kind not in ("sliding_attention", "full_attention"):
                raise _refusal(config, f"layers of the kind {kind} are unknown")
        return kinds.count("sliding_attention")

    return sliding


def by_pattern(config: Config, layers: int) -> int:
    """All layers but every `sliding_window_pattern`th."""
    return layers - layers // _count(config, "sliding_window_pattern")


def by_letters(config: Config, layers: int) -> int:
    """Those with an L where `sliding_window_pattern`, such as LLLG, is repeated; none where it is missing."""
    letters = config.get("sliding_window_pattern") or "G"
    if not isinstance(letters, str):
        raise _refusal(config, f"sliding_window_pattern is {shown(letters)}, not letters such as LLLG")
    return sum(letters[layer % len(letters)] == "L" for layer in range(layers))


@dataclass(frozen=True, slots=True)
class Dense:
    """What a dense model has beside its embedding and the seven matrices of a layer (q, k, v, o and a gated MLP).

    `norms` counts a layer's vectors of the hidden size. Queries and keys may be normed by head or as a whole.
    `tied` is whether the output reuses the embedding, whatever the configuration says; None asks it.
    """

    norms: int = 2
    qkv_bias: bool = False
    qk_norm: Literal["none", "head", "whole"] = "none"
    tied: bool | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """How mlx-lm reads the configurations of a `model_type`.

    The head size is the `given` one, always `derived` (hidden size / query heads), or `either`. `dense` is None where
    parameters are not counted: experts, or biases of their own. `defaults` hold for keys that are missing.
    """

    head: Literal["given", "derived", "either"]
    sliding: Callable[[Config, int], int] = no_layer
    dense: Dense | None = None
    defaults: Config = field(default_factory=dict)


_UNTIED = {"tie_word_embeddings": False}
_LLAMA = Family("either", by_types(1), Dense())

# Each is compared with mlx-lm's own cache, and its parameters with mlx-lm's own model, by a test.
FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral3": _LLAMA,
    "smollm3": _LLAMA,
    "qwen2": Family("derived", dense=Dense(qkv_bias=True)),
    "qwen3": Family("given", dense=Dense(qk_norm="head")),
    "gemma": Family("given", dense=Dense(tied=True)),
    "gemma2": Family("given", dense=Dense(norms=4, tied=True)),
    "gemma3_text": Family(
        "given",
        by_pattern,
        Dense(norms=4, qk_norm="head", tied=True),
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
    ),
    "phi3": Family("derived", dense=Dense(), defaults=_UNTIED),
    "granite": Family("derived", dense=Dense()),
    "olmo2": Family("either", dense=Dense(qk_norm="whole")),
    "olmo3": Family("either", by_types(4), Dense(qk_norm="whole"), _UNTIED),
    "glm4": Family("given", dense=Dense(norms=4, tied=False)),
    "exaone4": Family("given", by_letters, Dense(qk_norm="head")),
    "ernie4_5": Family("either"),
    "seed_oss": Family("given"),
    "starcoder2": Family("derived"),
    "cohere": Family("derived"),
    "cohere2": Family(
        "given", by_pattern, defaults={"head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": 4}
    ),
    "gpt_oss": Family("given", by_types(2), defaults={"head_dim": 64, "sliding_window": 128}),
    "mixtral": Family("derived"),
    "olmoe": Family("either"),
    "granitemoe": Family("derived"),
    "qwen2_moe": Family("derived"),
    "qwen3_moe": Family("given"),
    "glm4_moe": Family("given"),
}

# Language models inside multimodal ones: other names for the same, and defaults that differ there.
NESTED_NAMES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
NESTED_DEFAULTS = {"gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4}}

# Keys that give away a cache of another kind, in the order in which they are looked for.
_OTHER_KINDS = {
    "kv_lora_rank": "multi-head latent attention keeps no keys and values by head",
    "num_kv_shared_layers": "some layers share their cache",
    **dict.fromkeys(
        ("linear_num_key_heads", "linear_attn_config", "mamba_d_state", "ssm_state_size", "state_size", "conv_L_cache"),
        "some layers keep a state of fixed size instead of keys and values",
    ),
}


def language_config(config: Config) -> Config:
    """The part of a config.json that describes the language model, with mlx-lm's defaults for what it leaves out.

    That is all of it or, in a multimodal model, its `text_config`. Raises ValueError, which names the `model_type` and
    says why, if it is none of `FAMILIES`.
    """
    kind, nested = _model_type(config), config.get("text_config")
    if kind in FAMILIES:
        return {**FAMILIES[kind].defaults, **config}
    text = nested if isinstance(nested, dict) else {}
    inner = NESTED_NAMES.get(_model_type(text), _model_type(text))
    if inner in FAMILIES:
        return {**FAMILIES[inner].defaults, **NESTED_DEFAULTS.get(kind, {}), **text, "model_type": inner}
    reasons = (why for key, why in _OTHER_KINDS.items() if config.get(key) or text.get(key))
    raise _refusal(config, next(reasons, f"it is none of {', '.join(FAMILIES)}"))


def _model_type(config: Config) -> str:
    """The `model_type`, in words that are no model's where it is missing or wrong."""
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else shown(kind)


def kv_shape(config: Config) -> KVShape:
    """The shape of the cache that mlx-lm makes for a config.json.

    Raises ValueError, one line that names the `model_type`, if its cache is of another kind or unknown, or if a value
    is missing or wrong.
    """
    config = language_config(config)
    layers = _count(config, "num_hidden_layers")
    sliding = FAMILIES[config["model_type"]].sliding(config, layers)
    return KVShape(
        full_layers=layers - sliding,
        sliding_layers=sliding,
        window=_count(config, "sliding_window") if sliding else None,
        query_heads=_count(config, "num_attention_heads"),
        kv_heads=_kv_heads(config),
        head_dim=_head_dim(config),
    )


def _kv_heads(config: Config) -> int:
    """Without grouped-query attention the key is often missing: as many as query heads."""
    key = "num_attention_heads" if config.get("num_key_value_heads") is None else "num_key_value_heads"
    return _count(config, key)


def _head_dim(config: Config) -> int:
    head = FAMILIES[config["model_type"]].head
    if head == "derived" or (head == "either" and config.get("head_dim") is None):
        config = {**config, "head_dim": _count(config, "hidden_size") // _count(config, "num_attention_heads")}
    return _count(config, "head_dim")


def _count(config: Config, key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise _refusal(config, f"{key} is {shown(value)}, not a whole number from 1")
    return value


def _refusal(config: Config, why: str) -> ValueError:
    return ValueError(f"the KV cache of model_type {_model_type(config)} cannot be computed: {why}")


# --- the weights ---

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
    family = FAMILIES.get(_model_type(config))
    if family is None or family.dense is None or config.get("attention_bias") or config.get("mlp_bias"):
        return None
    config, dense = language_config(config), family.dense
    shape = kv_shape(config)
    hidden, inner, words = (_count(config, key) for key in ("hidden_size", "intermediate_size", "vocab_size"))
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
