"""What a KV cache takes: the study's figures, mlx-lm's own caches and models, and what is refused, by name."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli import main
from experiments.kv_families import FAMILIES, kv_shape
from experiments.kv_size import KVShape, bytes_per_token, cache_bytes, tokens_to_pass, users_that_fit
from experiments.model_config import SHIPPED, NamedConfig, Weights, load_config, parameters, weights_bytes
from worker import models

GB = 10**9

QWEN3_8B = KVShape(full_layers=36, sliding_layers=0, window=None, query_heads=32, kv_heads=8, head_dim=128)

# A model of mlx-lm's, small: every kind below is this, but for what differs.
TINY = {
    "hidden_size": 64, "num_hidden_layers": 6, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 128, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "rope_scaling": None, "tie_word_embeddings": True,
    "attention_bias": False, "mlp_bias": False, "sliding_window": 16, "use_bias": False, "partial_rotary_factor": 0.5,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "norm_topk_prob": True, "n_group": 1,
    "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "use_qk_norm": True,
}  # fmt: skip
GRANITE = {
    "logits_scaling": 1.0, "attention_multiplier": 0.1, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
}  # fmt: skip
NULLABLE = ("rope_scaling", "sliding_window_pattern")
SLIDES, FULL = "sliding_attention", "full_attention"

KINDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    **{kind: (kind, {}) for kind in FAMILIES},
    "llama that slides": ("llama", {"layer_types": [SLIDES, SLIDES, FULL] * 2}),
    "llama without head_dim": ("llama", {"head_dim": None}),
    "llama with a KV head for each query head": ("llama", {"num_key_value_heads": None}),
    "mistral with a window": ("mistral", {"sliding_window": 16}),
    "ministral3": (
        "ministral3",
        {
            "layer_types": [FULL, SLIDES] * 3,
            "rope_parameters": {
                "rope_theta": 1e4,
                "rope_type": "default",
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    "qwen2 with a window in use": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    "gemma3_text": ("gemma3_text", {"sliding_window_pattern": 3}),
    "gemma3_text with its defaults": ("gemma3_text", {"sliding_window": None, "head_dim": None}),
    "granite": ("granite", GRANITE),
    "granitemoe": ("granitemoe", GRANITE),
    "exaone4": (
        "exaone4",
        {
            "sliding_window_pattern": "LLLG",
            "rope_scaling": {
                "factor": 8.0,
                "rope_type": "llama3",
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    "cohere2": ("cohere2", {"head_dim": 16}),
    "olmo3 by its layer types": ("olmo3", {"layer_types": [FULL, SLIDES, SLIDES] * 2}),
    "gpt_oss": ("gpt_oss", {"head_dim": 64}),
}
KINDS["exaone4 without a window"] = (
    "exaone4",
    {**KINDS["exaone4"][1], "sliding_window_pattern": None},
)


def tiny(kind: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a small model; None leaves a key out, unless mlx-lm wants a null there."""
    whole = {**TINY, **EXPERTS, "model_type": kind, **changes}
    return {key: value for key, value in whole.items() if value is not None or key in NULLABLE}


def network_of(config: Mapping[str, Any]) -> Any:
    """mlx-lm's model of a configuration, with random weights."""
    from worker import mlx_engine  # noqa: F401 (puts the BLAS before MLX)

    import mlx.core as mx  # isort: skip

    mx.random.seed(1)
    file = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    module = importlib.import_module(f"mlx_lm.models.{file}")
    return module.Model(module.ModelArgs.from_dict(dict(config)))


def cached(network: Any, *prompts: int) -> int:
    """Bytes of the keys and values in use after prompts of so many tokens, and three tokens more, one by one."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(network)
    for tokens in (*prompts, 1, 1, 1):
        mx.eval(network(mx.array([[1] * tokens]), cache=cache))
    return sum(array.nbytes for layer in cache for array in layer.keys_and_values())


# --- against mlx-lm ---


@pytest.mark.parametrize(("kind", "changes"), KINDS.values(), ids=KINDS)
def test_the_size_is_that_of_mlx_lms_cache(kind: str, changes: Mapping[str, Any]) -> None:
    """Below the window, and beyond it; random weights are float32."""
    config = tiny(kind, changes)
    network, shape = network_of(config), kv_shape(config)
    assert cached(network, 5) == cache_bytes(shape, 8, 32)
    assert cached(network, 30, 31) == cache_bytes(shape, 64, 32) <= 64 * 6 * cache_bytes(shape, 1, 32)


@pytest.mark.parametrize(
    ("kind", "changes", "sliding"),
    [
        ("llama that slides", {}, 4), ("mistral with a window", {}, 0), ("qwen2 with a window in use", {}, 0),
        ("gemma2", {}, 0), ("gemma3_text", {}, 4), ("gemma3_text", {"sliding_window_pattern": 6}, 5),
        ("cohere2", {"num_hidden_layers": 9}, 7), ("olmo3", {}, 5), ("olmo3 by its layer types", {}, 4),
        ("gpt_oss", {}, 3), ("exaone4", {}, 5), ("exaone4 without a window", {}, 0), ("ministral3", {}, 3),
    ],
)  # fmt: skip
def test_how_many_layers_slide(kind: str, changes: Mapping[str, Any], sliding: int) -> None:
    name, own = KINDS[kind]
    shape = kv_shape(tiny(name, {**own, **changes}))
    assert shape.sliding_layers == sliding
    assert (shape.window is None) == (sliding == 0)


@pytest.mark.parametrize(("bits", "factor"), [(8, 0.531), (4, 0.281)])
def test_a_quantized_cache_is_that_of_mlx_lm(bits: int, factor: float) -> None:
    network_of(tiny("llama", {}))
    import mlx.core as mx
    from mlx_lm.models.cache import QuantizedKVCache

    shape = KVShape(full_layers=1, sliding_layers=0, window=None, query_heads=4, kv_heads=3, head_dim=128)
    cache = QuantizedKVCache(group_size=64, bits=bits)
    cache.update_and_fetch(*[mx.ones((1, 3, 256, 128), mx.float16)] * 2)
    assert cache_bytes(shape, 256, bits) == cache.nbytes
    assert cache_bytes(shape, 256, bits) / cache_bytes(shape, 256) == pytest.approx(factor, abs=5e-4)


DENSE = {name: case for name, case in KINDS.items() if FAMILIES[case[0]].dense is not None}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "changes"), DENSE.values(), ids=DENSE)
def test_parameters_are_those_of_mlx_lms_model(kind: str, changes: Mapping[str, Any], tied: bool) -> None:
    """Whole, and quantized: files of float16 with packed weights take what their arrays take."""
    network, config = dense_network(kind, {**changes, "tie_word_embeddings": tied})
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    network.set_dtype(mx.float16)
    assert parameters(config) == sum(array.size for _, array in tree_flatten(network.parameters()))
    nn.quantize(network, group_size=32, bits=4)
    packed = {**config, "torch_dtype": "float16", "quantization": {"bits": 4, "group_size": 32, "mode": "affine"}}
    held = sum(array.nbytes for _, array in tree_flatten(network.parameters()))
    assert weights_bytes(NamedConfig("tiny", "hub", packed)).bytes == held


def dense_network(kind: str, changes: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    config = tiny(kind, changes)
    network = network_of(config)
    if kind == "gemma3_text":
        network.sanitize({})  # it has an output of its own until it loads files without one
    return network, config


# --- the study's figures ---


def test_the_studys_cache() -> None:
    """144 KiB a token; 4.8 GB at 32K; 32 users 154 GB, for 16 GB of weights; 0.6B passes its own at about 10,000."""
    large, small = load_config("Qwen3-8B"), load_config("Qwen3-0.6B")
    shape = kv_shape(large.config)
    assert shape == QWEN3_8B
    assert bytes_per_token(shape) == 147_456 == 144 * 1024
    assert cache_bytes(shape, 32_768) == 4_831_838_208
    assert 32 * cache_bytes(shape, 32_768) == 154_618_822_656
    assert weights_bytes(large) == Weights(16_381_470_720, "8,190,735,360 parameters, bfloat16")
    own = weights_bytes(small).bytes
    assert own == 2 * 596_049_920
    passed = tokens_to_pass(kv_shape(small.config), own)
    assert passed == 10_395
    assert cache_bytes(kv_shape(small.config), 10_394) <= own < cache_bytes(kv_shape(small.config), 10_395)


def test_quantization_shrinks_it_by_47_and_72_percent() -> None:
    whole = bytes_per_token(QWEN3_8B)
    assert [round(1 - bytes_per_token(QWEN3_8B, bits) / whole, 2) for bits in (8, 4)] == [0.47, 0.72]
    assert bytes_per_token(QWEN3_8B, 32) == 2 * whole


@pytest.mark.parametrize(
    ("name", "count"), [("Qwen3-0.6B", 596_049_920), ("Qwen3-4B", 4_022_468_096), ("Qwen3-8B", 8_190_735_360)]
)
def test_shipped_configurations(name: str, count: int) -> None:
    assert parameters(load_config(name).config) == count
    same = [load_config(spelt) for spelt in (name.lower(), f"Qwen/{name}", f"qwen/{name}".upper())]
    assert same == [load_config(name)] * 3
    assert load_config(name).source == "shipped"


def test_the_shipped_names_are_the_shipped_files() -> None:
    folder = Path(importlib.import_module("experiments").__path__[0]) / "kv_configs"
    assert {file.stem for file in folder.iterdir()} == {*SHIPPED, models.EMBEDDED}


# --- the arithmetic ---

SHAPES = st.builds(
    KVShape,
    full_layers=st.integers(0, 80),
    sliding_layers=st.integers(1, 80),
    window=st.integers(1, 8192),
    query_heads=st.integers(1, 64),
    kv_heads=st.integers(1, 16),
    head_dim=st.sampled_from([64, 128, 192, 256]),
)
TOKENS = st.integers(1, 200_000)
BITS = st.sampled_from([32, 16, 8, 4])


@given(SHAPES, TOKENS, BITS)
def test_beyond_the_window_only_full_layers_grow(shape: KVShape, tokens: int, bits: int) -> None:
    grown = cache_bytes(shape, tokens + 1, bits) - cache_bytes(shape, tokens, bits)
    assert grown >= bytes_per_token(shape, bits)
    assert (grown == bytes_per_token(shape, bits)) == (tokens >= (shape.window or 0))


@given(SHAPES, st.integers(0, 10**12), BITS)
def test_the_cache_passes_the_weights_with_the_first_token_that_makes_it_larger(
    shape: KVShape, weights: int, bits: int
) -> None:
    passed = tokens_to_pass(shape, weights, bits)
    if passed is None:
        assert shape.full_layers == 0
        assert cache_bytes(shape, 10**15, bits) <= weights
    else:
        assert cache_bytes(shape, passed - 1, bits) <= weights < cache_bytes(shape, passed, bits)


@given(SHAPES, st.integers(0, 10**12), st.integers(0, 10**11), TOKENS, BITS)
def test_one_user_more_would_not_fit(shape: KVShape, memory: int, weights: int, tokens: int, bits: int) -> None:
    users, one = users_that_fit(shape, memory, weights, tokens, bits), cache_bytes(shape, tokens, bits)
    assert users >= 0
    assert weights + (users + 1) * one > memory
    assert users == 0 or weights + users * one <= memory


@pytest.mark.parametrize(
    ("head_dim", "bits", "why"), [(80, 8, "a head of 80 numbers"), (96, 4, "groups of 64"), (128, 3, "not 3")]
)
def test_a_quantization_that_cannot_be_is_refused(head_dim: int, bits: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        cache_bytes(KVShape(2, 0, None, 4, 4, head_dim), 10, bits)


# --- what is unknown ---

OTHERS = {
    "deepseek_v3": ({"kv_lora_rank": 512}, "multi-head latent attention"),
    "qwen3_next": ({"linear_num_key_heads": 16}, "state of fixed size"),
    "falcon_h1": ({"mamba_d_state": 256}, "state of fixed size"),
    "gemma3n": ({"text_config": {"model_type": "gemma3n_text", "num_kv_shared_layers": 15}}, "share their cache"),
    "hyena": ({}, "it is none of llama, mistral"),
    "llama": ({"layer_types": [FULL, "linear_attention"] * 3}, "layers of the kind linear_attention"),
    "mistral": ({"layer_types": [FULL]}, "each of the 6 layers"),
    "qwen3": ({"head_dim": None}, "head_dim is None"),
    "qwen2": ({"num_key_value_heads": [2, 2]}, "num_key_value_heads is list"),
    "phi3": ({"hidden_size": True}, "hidden_size is True"),
    "granite": ({"hidden_size": 3}, "head_dim is 0"),
    "gemma3_text": ({"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    "olmo3": ({"sliding_window": None}, "sliding_window is None"),
    "exaone4": ({"sliding_window_pattern": 4}, "not letters"),
}


@pytest.mark.parametrize(("kind", "changes", "why"), [(kind, *case) for kind, case in OTHERS.items()], ids=OTHERS)
def test_an_unknown_kind_of_cache_is_refused_by_name(
    kind: str, changes: Mapping[str, Any], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**tiny(kind, {}), **changes}))
    refused(run(str(tmp_path)), f"model_type {kind} cannot", why)


@pytest.mark.parametrize("kind", [None, 7, ["llama"], {}])
def test_a_model_type_that_is_no_name_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="cannot be computed"):
        kv_shape({**TINY, "model_type": kind})
    assert parameters({**TINY, "model_type": kind}) is None


def test_the_language_model_of_a_multimodal_one_counts() -> None:
    """And it has the defaults that mlx-lm gives it there: gemma3's text has 8 heads, 4 for keys and values."""
    inner = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "sliding_window": 1024}
    outer = {"model_type": "gemma3", "text_config": inner, "torch_dtype": "bfloat16"}
    assert kv_shape(outer) == KVShape(5, 29, 1024, query_heads=8, kv_heads=4, head_dim=256)
    assert weights_bytes(NamedConfig("gemma", "hub", outer)).bytes is None
    other = {"model_type": "qwen3_vl", "text_config": tiny("qwen3_vl_text", {})}
    assert kv_shape(other) == kv_shape(tiny("qwen3", {}))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mixtral"},
        {"model_type": "hyena"},
        {"attention_bias": True},
        {"torch_dtype": None},
        {"torch_dtype": "float8"},
        {"quantization_config": {"quant_method": "fp8"}},
        {"quantization": {"bits": 4, "group_size": 64, "mode": "mxfp4"}},
        {"quantization": {"bits": 4, "group_size": 32, "model.embed_tokens": {"bits": 8, "group_size": 32}}},
        {"quantization": {"bits": 4, "group_size": 40}},
        {"quantization": {"bits": "4", "group_size": 0}},
    ],
    ids=str,
)
def test_weights_that_cannot_be_known_are_not_guessed(changes: Mapping[str, Any]) -> None:
    config = {**tiny("llama", {}), "torch_dtype": "bfloat16"}
    assert weights_bytes(NamedConfig("tiny", "hub", config)).bytes is not None
    unknown = weights_bytes(NamedConfig("tiny", "hub", {**config, **changes}))
    assert unknown.bytes is None
    assert unknown.source.startswith("unknown: ")


# --- the command ---


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders are made in the current one."""
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["kv-size", *arguments])


def refused(result: Result, *said: str) -> None:
    """One line, exit status 2, nothing printed."""
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert len(errors) == 1
    assert result.stderr.endswith(errors[0] + "\n")
    assert not result.stdout
    for words in said:
        assert words in errors[0]


def told(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    weights = found.pop("weights")
    assert weights["bytes"] == found["figures"]["weights_bytes"]
    return {**found.pop("shape"), **found.pop("figures"), **found, "weights_from": weights["source"]}


def test_the_studys_figures_are_printed() -> None:
    result = run("Qwen3-8B", "--memory", "48GB")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]
    *rows, kept = lines[lines.index("Qwen3-8B: the KV cache at 16 bits") :]
    assert kept.startswith("Results: runs")
    assert rows == [
        "Qwen3-8B: the KV cache at 16 bits",
        "one token 147,456 B (144 KiB) 2 x 36 layers x 8 heads x 128 x 2 B",
        "one user 4.83 GB 32,768 tokens",
        "32 users 154.6 GB 32,768 tokens each",
        "the weights 16.4 GB 8,190,735,360 parameters, bfloat16",
        "passes the weights at 111,094 tokens, of one user or of several",
        "grouped queries 4 times smaller 8 KV heads for 32 query heads",
        "users in 48.0 GB 6 32,768 tokens, beside the weights",
    ]


def slider(folder: Path) -> str:
    config = tiny("gemma3_text", {"sliding_window": 1024, "max_position_embeddings": 8192, "head_dim": 64})
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("context", [1, 32_768, 10**7])
@pytest.mark.parametrize("bits", ["16", "8", "4"])
@pytest.mark.parametrize("users", ["1", "1000000"])
@pytest.mark.parametrize("model", [*SHIPPED, "a folder"])
def test_eighty_columns_are_enough(model: str, users: str, bits: str, context: int, tmp_path: Path) -> None:
    named = model if model in SHIPPED else slider(tmp_path)
    for memory in ("1MB", "1000000TB"):
        result = run(named, "--context", str(context), "--users", users, "--bits", bits, "--memory", memory)
        assert result.exit_code == 0, result.output
        shown, _, _ = result.stdout.partition("Results: ")  # a path is never cut
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in result.stdout
        assert "None" not in result.stdout


def test_what_must_be_known_beside_the_figures(tmp_path: Path) -> None:
    sliding = slider(tmp_path)
    assert told(sliding, "--bits", "8")["remarks"] == [
        "5 of 6 layers keep only the last 1,024 tokens of each user.",
        "mlx-lm cannot batch a quantized cache, nor quantize one that slides.",
        "The model is made for 8,192 tokens, fewer than 32,768.",
    ]
    assert told("Qwen3-8B")["remarks"] == []
    for use, lines in ((True, 1), (False, 0)):
        config = {**tiny("qwen2", {}), "use_sliding_window": use, "max_position_embeddings": 32_768}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert len(told(sliding)["remarks"]) == lines


@pytest.mark.parametrize(("memory", "users"), [("16GB", 0), ("20GB", 0), ("21.3GB", 1), ("200GiB", 41)])
def test_users_that_fit_beside_the_weights(memory: str, users: int) -> None:
    assert told("Qwen3-8B", "--memory", memory)["users_that_fit"] == users


def test_one_head_is_one_head(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny("gemma3_text", {"num_key_value_heads": 1})))
    assert "4 times smaller  1 KV head for 4 query heads" in run(str(tmp_path)).stdout
    (tmp_path / "config.json").write_text(json.dumps(tiny("llama", {"num_key_value_heads": 4})))
    assert "nothing saved" in run(str(tmp_path)).stdout


def test_no_user_fits_and_why() -> None:
    assert "the weights alone do not fit" in run("Qwen3-8B", "--memory", "16GB").stdout
    assert "only 3.62 GB beside the weights" in run("Qwen3-8B", "--memory", "20GB").stdout


def test_as_json() -> None:
    facts = told("qwen3-0.6b", "--context", "1000", "--users", "2", "--bits", "4")
    assert facts == {
        "model": "Qwen3-0.6B", "configuration": "shipped", "weights_from": "596,049,920 parameters, bfloat16",
        "full_layers": 28, "sliding_layers": 0, "window": None, "query_heads": 16, "kv_heads": 8, "head_dim": 128,
        "context": 1000, "users": 2, "bits": 4, "bytes_per_token": 32_256, "one_user_bytes": 32_256_000,
        "all_users_bytes": 64_512_000, "weights_bytes": 1_192_099_840, "tokens_to_pass_weights": 36_958,
        "grouped_query_factor": 2.0, "memory_bytes": None, "users_that_fit": None,
        "remarks": ["mlx-lm cannot batch a quantized cache."],
    }  # fmt: skip


def test_the_weights_of_a_folder_are_the_sizes_of_its_files(tmp_path: Path) -> None:
    """The files are empty inside: nobody may read them."""
    (tmp_path / "config.json").write_text(json.dumps(tiny("mixtral", {})))
    assert told(str(tmp_path), "--memory", "1GB")["users_that_fit"] is None
    assert "n/a" in run(str(tmp_path), "--memory", "1GB").stdout
    for name, size in (("model-1.safetensors", 3 * GB), ("model-2.safetensors", GB), ("adapters.safetensors", GB)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    assert told(str(tmp_path))["weights_bytes"] == 4 * GB
    assert load_config(str(tmp_path)).source == "folder"


def test_the_embedded_model_is_known_before_it_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    facts = told()
    assert (facts["configuration"], facts["bytes_per_token"]) == ("shipped", 2 * 30 * 3 * 64 * 2)
    assert facts["weights_bytes"] is None
    folder = models.gguf.target()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny("llama", {})))
    assert told()["model"] == models.EMBEDDED


def test_of_a_hub_id_the_configuration_alone_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def download(repo: str, filename: str, local_files_only: bool) -> str:
        assert (repo, filename, local_files_only) == ("org/tiny", "config.json", False)
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    (tmp_path / "config.json").write_text(json.dumps({**tiny("llama", {}), "dtype": "float32", "odd": float("inf")}))
    facts = told("org/tiny")
    assert facts["configuration"] == "hub"
    assert facts["weights_bytes"] == 4 * (parameters(tiny("llama", {})) or 0)


def test_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: str, **more: bool) -> str:
        raise OSError("no route\nand much more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    refused(run("org/tiny"), "config.json of org/tiny cannot be downloaded from the hub: no route")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-model",), "Qwen3-0.6B, Qwen3-4B, Qwen3-8B are known without a download"),
        (("",), "there is no model ''"),
        (
            ("Qwen3-8B", "--memory", "48 bananas"),
            "an amount of memory is such as 48GB or 512MiB, not '48 bananas'",
        ),
        (("Qwen3-8B", "--bits", "3"), "'3' is not one of"),
        (("Qwen3-8B", "--context", "0"), "0 is not in the range"),
        (("Qwen3-8B", "--users", "0"), "0 is not in the range"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    refused(run(*arguments), said)


@pytest.mark.parametrize("content", ["", "[]", "{", "\xff"])
def test_a_configuration_that_cannot_be_read_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    refused(run(str(tmp_path)), "cannot be read as a JSON object")


def test_it_works_without_mlx() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['mlx', 'mlx.core', 'mlx_lm']))\n"
        "from experiments.cli import main; main(['kv-size', 'Qwen3-8B'], standalone_mode=False)\n"
        "assert sys.modules['mlx.core'] is None and 'huggingface_hub' not in sys.modules"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "154.6 GB" in done.stdout


def test_a_folder_is_named_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("[bold]").mkdir()
    slider(Path("[bold]"))
    printed = run("[bold]").stdout
    assert "KV cache of [bold] by its configuration" in printed
    assert "[bold]: the KV cache at 16 bits" in printed
