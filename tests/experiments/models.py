"""Small random models with a long context, for whole commands that must be quick: a token is a byte."""

from pathlib import Path

import pytest

from tests.worker.conftest import END, byte_level, write_llama, write_tokenizer

CONTEXT = 16_000


def write_model(folder: Path, context: int = CONTEXT) -> Path:
    """One layer, heads of 64 numbers so that its cache can be quantized."""
    tokens = [*(byte_level(bytes([byte])) for byte in range(256)), END]
    config = {
        "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 1, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "rms_norm_eps": 1e-5,
        "vocab_size": len(tokens), "max_position_embeddings": context, "tie_word_embeddings": False,
        "eos_token_id": len(tokens) - 1,
    }  # fmt: skip
    write_llama(folder, config, lambda network: None)
    write_tokenizer(folder, tokens)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small")
