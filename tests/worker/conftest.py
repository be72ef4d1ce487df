"""Models made from scratch for the worker's tests, and the embedded one."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.messages import Submit
from worker import models
from worker.engine import Engine
from worker.models import LoadedModel

END = "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    "{% if enable_thinking %}hmm {% endif %}{{ mood }}{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_level(data: bytes) -> str:
    """The spelling of bytes in a byte-level BPE vocabulary: printable ones as they are, the others shifted."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return "".join(chr(byte) if byte in plain else chr(256 + shifted.index(byte)) for byte in data)


def write_tokenizer(folder: Path, tokens: Sequence[str]) -> None:
    """A byte-level BPE of these tokens, without merges; the last is the end of a reply."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": len(tokens) - 1, "content": tokens[-1], **flags}],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {token: n for n, token in enumerate(tokens)}, "merges": []},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[-1],
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_llama(folder: Path, config: Mapping[str, Any], change: Callable[[Any], None]) -> None:
    """A llama with random weights from a fixed seed, after `change` had its way with the network."""
    from worker import mlx_engine  # noqa: F401 (puts the BLAS before MLX)

    import mlx.core as mx  # isort: skip
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs

    mx.random.seed(1)
    network = Model(ModelArgs.from_dict(dict(config)))
    change(network)
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())))
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random llama that knows single bytes, with a context of 300."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokens = [*(byte_level(bytes([byte])) for byte in range(256)), END]
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": len(tokens),
        "max_position_embeddings": 300, "tie_word_embeddings": False, "eos_token_id": len(tokens) - 1,
    }  # fmt: skip

    def widen(network: Any) -> None:
        network.update({"lm_head": {"weight": network.lm_head.weight * 20}})  # no two candidates nearly alike

    write_llama(folder, config, widen)
    write_tokenizer(folder, tokens)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LoadedModel:
    return models.load(str(tiny_folder))


@dataclass(frozen=True)
class Scripted:
    """A model that recites: after `starts[name]` as its prompt come the pieces of that script, then the end."""

    model: LoadedModel
    starts: Mapping[str, int]
    scripts: Mapping[str, Sequence[bytes]]


SCRIPTS: dict[str, list[bytes]] = {
    # Emoji joined of several, a combining accent, CJK, a flag: cut inside characters wherever it hurts.
    "signs": [
        b"Gr\xc3", b"\xbc\xc3", b"\x9fe \xf0", b"\x9f\x91", b"\xa9\xe2\x80", b"\x8d", b"\xf0\x9f\x91\xa7", b" e",
        b"\xcc", b"\x81 ", b"\xe6\xbc\xa2\xe5", b"\xad", b"\x97\xe3\x82", b"\xab\xe3\x83\x8a ",
        b"\xf0\x9f\x87\xa9\xf0\x9f", b"\x87\xaa", b"!",
    ],
    "stops": [b"Hel", b"lo ST", b"O", b"P now", b" and more"],
    "almost": [b"a ST", b"OX S", b"TO", b" end ", b"S"],
    "count": [b"%d, " % number for number in range(1, 31)],
}  # fmt: skip


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    """The successor of every token is a matter of its embedding alone: attention and MLP add nothing."""
    folder = tmp_path_factory.mktemp("models") / "scripted"
    tokens: list[str] = []
    successors: list[int | None] = []
    starts: dict[str, int] = {}
    for name, pieces in SCRIPTS.items():
        starts[name] = len(tokens)
        tokens += [f"<{name}>", *map(byte_level, pieces)]
        successors += [*range(starts[name] + 1, len(tokens)), None]
    tokens.append(END)
    assert len(set(tokens)) == len(tokens)
    size = len(tokens) + len(tokens) % 2  # positions rotate pairs
    following = [len(tokens) - 1 if n is None else n for n in successors]
    config = {
        "model_type": "llama", "hidden_size": size, "num_hidden_layers": 1, "intermediate_size": 8,
        "num_attention_heads": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "vocab_size": size,
        "max_position_embeddings": 500, "tie_word_embeddings": False, "eos_token_id": len(tokens) - 1,
    }  # fmt: skip

    def script(network: Any) -> None:
        import mlx.core as mx

        layer = network.model.layers[0]
        layer.self_attn.o_proj.weight = mx.zeros_like(layer.self_attn.o_proj.weight)
        layer.mlp.down_proj.weight = mx.zeros_like(layer.mlp.down_proj.weight)
        network.model.embed_tokens.weight = mx.eye(size)
        rows = mx.array([*following, *[len(tokens) - 1] * (size - len(following))])
        network.lm_head.weight = (mx.arange(size)[:, None] == rows[None, :]).astype(mx.float32)

    write_llama(folder, config, script)
    write_tokenizer(folder, tokens)
    return Scripted(models.load(str(folder)), starts, SCRIPTS)


@pytest.fixture(scope="session")
def embedded() -> LoadedModel:
    """The embedded model from the user's cache, fetched if it is not there."""
    return models.load()


@dataclass
class Reply:
    """All that an engine said about one request."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    margins: list[float] = field(default_factory=list)
    read: int = 0
    rows: int = 0


Play = Callable[[Engine, Iterable[Submit]], dict[int, Reply]]


@pytest.fixture(scope="session")
def play() -> Play:
    """Inserts requests together, steps until all have ended, and gathers their replies by id."""

    def played(engine: Engine, requests: Iterable[Submit]) -> dict[int, Reply]:
        asked = tuple(requests)
        replies = {request.id: Reply() for request in asked}
        engine.insert(asked)
        while engine.in_flight:
            outcome = engine.step()
            for number, read in outcome.read:
                replies[number].read += read
            for row in outcome.rows:
                reply = replies[row.id]
                assert reply.finish is None
                reply.tokens += row.tokens
                reply.text += row.text
                reply.margins += row.margins or ()
                reply.finish = row.finish
                reply.rows += 1
        return replies

    return played


@pytest.fixture
def engine(tiny: LoadedModel) -> Iterator[Any]:
    from tests.worker.engines import engine_on

    made = engine_on(tiny)
    yield made
    made.close()


@pytest.fixture
def reciter(scripted: Any) -> Iterator[Any]:
    from tests.worker.engines import engine_on

    made = engine_on(scripted.model)
    yield made
    made.close()
