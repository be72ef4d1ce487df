"""Whether a cell's requests fit into this machine's memory: told before anything starts."""

from pathlib import Path

import psutil

from clients.cli import load_prompts
from clients.traces import read_trace
from clients.workloads import limits
from experiments.cell import Cell
from experiments.kv_families import kv_shape
from experiments.kv_size import cache_bytes
from experiments.model_config import NamedConfig, load_config, parameters, weights_bytes
from protocol.sizes import bytes_text
from router.policies import parse_policy
from worker import models
from worker.options import Server

# Of UTF-8: somewhat fewer than in English, and a character in Chinese or Japanese.
BYTES_PER_TOKEN = 3
# With the scales and biases of packed ones.
_BITS = {"float32": 32, "bf16": 16, "8bit": 9, "4bit": 5}


def shortage(server: Server, cell: Cell) -> str | None:
    """What is lacking, in one line, if every seat is taken by the longest request; None if all of it fits, or where
    it cannot be told: the paced engine, a model whose cache or configuration is not known here, CUDA's own memory."""
    if server.engine == "paced" or models.device() == "cuda":
        return None
    seats, tokens = min(parse_policy(cell.policy).seats, cell.requests), longest_request(cell)
    try:
        named = load_config(server.model, download=False)
        cache = seats * cache_bytes(kv_shape(named.config), tokens, _cache_bits(server))
        held = _weights_bytes(server, named)
    except (ValueError, RuntimeError):
        return None
    total = psutil.virtual_memory().total
    if cache + held <= total:
        return None
    beside = f" beside {bytes_text(held)} of weights" if held else ""
    return (
        f"not enough memory: {seats} requests of up to {tokens:,} tokens need {bytes_text(cache)} of KV cache{beside}, "
        f"and this machine has {bytes_text(total)}"
    )


def longest_request(cell: Cell) -> int:
    """Tokens of the longest prompt and its reply, as far as its bytes tell them before a tokenizer does."""
    if cell.trace is not None:
        return max(request.prompt + request.reply for request in read_trace(cell.trace).requests)
    file = Path(cell.prompts) if cell.prompts is not None else None
    prompts = load_prompts(cell.workload, file, cell.requests, cell.max_tokens, cell.seed)
    lengths = {
        sum(len(turn.content.encode()) for turn in prompt.turns) // BYTES_PER_TOKEN
        + limits(prompt, cell.max_tokens, cell.ignore_eos)[0]
        for prompt in prompts
    }
    return max(lengths)


def _weights(server: Server) -> str:
    return models.default_weights() if server.weights == models.DEFAULT_WEIGHTS else server.weights


def _cache_bits(server: Server) -> int:
    """The cache has the type that the model computes in, on a CPU float32 unless 16 bits were asked for, or so many
    bits as are asked for."""
    if server.kv_bits in (8, 4):
        return server.kv_bits
    wide = _weights(server) == "float32" or (models.device() == "cpu" and _weights(server) != "bf16")
    return 32 if wide else 16


def _weights_bytes(server: Server, named: NamedConfig) -> int:
    """0 where it is not known."""
    if _weights(server) == models.NATIVE:
        return weights_bytes(named).bytes or 0
    return (parameters(named.config) or 0) * _BITS[_weights(server)] // 8
