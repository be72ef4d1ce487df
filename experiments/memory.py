"""Whether a cell's requests fit into this machine's memory: told before anything starts."""

from pathlib import Path

import psutil

from clients.cli import load_prompts
from clients.workloads import limits
from experiments.cell import Cell
from experiments.kv_size import cache_bytes, kv_shape, load_config, parameters
from protocol.sizes import bytes_text
from router.policies import parse_policy
from worker import models
from worker.options import Server

# Fewer than in any language that tokenizers are made for, so that the estimate is on the safe side.
CHARACTERS_PER_TOKEN = 3
_BITS = {"float32": 32, "bf16": 16, "8bit": 9, "4bit": 5}


def shortage(server: Server, cell: Cell) -> str | None:
    """What is lacking, in one line, if every seat is taken by the longest request; None if all of it fits, or where
    it cannot be told: the paced engine, or a model whose cache or configuration is not known here."""
    if server.engine == "paced":
        return None
    try:
        config = load_config(server.model).config
        shape = kv_shape(config)
    except (ValueError, RuntimeError):
        return None
    seats = min(parse_policy(cell.policy).seats, cell.requests)
    tokens = longest_request(cell)
    weights = _weights(server) if _weights(server) != models.NATIVE else "bf16"
    numbers = 32 if weights == "float32" or (models.device() == "cpu" and weights != "bf16") else 16
    cache = seats * cache_bytes(shape, tokens, numbers)
    held = (parameters(config) or 0) * _BITS[weights] // 8
    total = psutil.virtual_memory().total
    if cache + held <= total:
        return None
    beside = f" beside {bytes_text(held)} of weights" if held else ""
    return (
        f"not enough memory: {seats} requests of up to {tokens:,} tokens need {bytes_text(cache)} of KV cache{beside}, "
        f"and this machine has {bytes_text(total)}"
    )


def longest_request(cell: Cell) -> int:
    """Tokens of the longest prompt and its reply, as far as characters tell them before a tokenizer does."""
    file = Path(cell.prompts) if cell.prompts is not None else None
    prompts = load_prompts(cell.workload, file, cell.requests, cell.max_tokens, cell.seed)
    lengths = {
        sum(len(turn.content) for turn in prompt.turns) // CHARACTERS_PER_TOKEN
        + limits(prompt, cell.max_tokens, cell.ignore_eos)[0]
        for prompt in prompts
    }
    return max(lengths)


def _weights(server: Server) -> str:
    return models.default_weights() if server.weights == models.DEFAULT_WEIGHTS else server.weights
