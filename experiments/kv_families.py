"""What mlx-lm makes of a config.json: the kind of cache a model has, by its `model_type`, or why it is not known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from experiments.kv_size import KVShape
from protocol.fields import shown

Config = Mapping[str, Any]


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
            raise refusal(config, f"layer_types does not name the kind of each of the {layers} layers")
        for kind in kinds:
            if kind not in ("sliding_attention", "full_attention"):
                raise refusal(config, f"layers of the kind {kind} are unknown")
        return kinds.count("sliding_attention")

    return sliding


def by_pattern(config: Config, layers: int) -> int:
    """All layers but every `sliding_window_pattern`th."""
    return layers - layers // count(config, "sliding_window_pattern")


def by_letters(config: Config, layers: int) -> int:
    """Those with an L where `sliding_window_pattern`, such as LLLG, is repeated; none where it is missing."""
    letters = config.get("sliding_window_pattern") or "G"
    if not isinstance(letters, str):
        raise refusal(config, f"sliding_window_pattern is {shown(letters)}, not letters such as LLLG")
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
    kind, nested = model_type(config), config.get("text_config")
    if kind in FAMILIES:
        return {**FAMILIES[kind].defaults, **config}
    text = nested if isinstance(nested, dict) else {}
    inner = NESTED_NAMES.get(model_type(text), model_type(text))
    if inner in FAMILIES:
        return {**FAMILIES[inner].defaults, **NESTED_DEFAULTS.get(kind, {}), **text, "model_type": inner}
    reasons = (why for key, why in _OTHER_KINDS.items() if config.get(key) or text.get(key))
    raise refusal(config, next(reasons, f"it is none of {', '.join(FAMILIES)}"))


def model_type(config: Config) -> str:
    """The `model_type`, in words that are no model's where it is missing or wrong."""
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else shown(kind)


def kv_shape(config: Config) -> KVShape:
    """The shape of the cache that mlx-lm makes for a config.json.

    Raises ValueError, one line that names the `model_type`, if its cache is of another kind or unknown, or if a value
    is missing or wrong.
    """
    config = language_config(config)
    layers = count(config, "num_hidden_layers")
    sliding = FAMILIES[config["model_type"]].sliding(config, layers)
    return KVShape(
        full_layers=layers - sliding,
        sliding_layers=sliding,
        window=count(config, "sliding_window") if sliding else None,
        query_heads=count(config, "num_attention_heads"),
        kv_heads=_kv_heads(config),
        head_dim=_head_dim(config),
    )


def _kv_heads(config: Config) -> int:
    """Without grouped-query attention the key is often missing: as many as query heads."""
    key = "num_attention_heads" if config.get("num_key_value_heads") is None else "num_key_value_heads"
    return count(config, key)


def _head_dim(config: Config) -> int:
    head = FAMILIES[config["model_type"]].head
    if head == "derived" or (head == "either" and config.get("head_dim") is None):
        config = {**config, "head_dim": count(config, "hidden_size") // count(config, "num_attention_heads")}
    return count(config, "head_dim")


def count(config: Config, key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise refusal(config, f"{key} is {shown(value)}, not a whole number from 1")
    return value


def refusal(config: Config, why: str) -> ValueError:
    return ValueError(f"the KV cache of model_type {model_type(config)} cannot be computed: {why}")
