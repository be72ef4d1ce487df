"""What does not fit into memory is told before a run, in figures that can be checked by hand."""

from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner

from experiments import memory
from experiments.cell import Cell
from experiments.cli import main
from experiments.memory import longest_request, shortage
from experiments.model_config import NamedConfig
from worker import models
from worker.options import Server

CELL = Cell("c", "c", "continuous:seats=64", requests=100, max_tokens=500)
EIGHT_B = Server(model="Qwen3-8B", weights="bf16")


def machine(monkeypatch: pytest.MonkeyPatch, total: float) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=round(total)))


def test_every_seat_taken_by_the_longest_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 times 147,456 B a token, beside 16.4 GB of weights."""
    tokens = longest_request(CELL)
    assert 500 < tokens < 600
    need = 64 * tokens * 147_456 + 2 * 8_190_735_360
    machine(monkeypatch, need)
    assert shortage(EIGHT_B, CELL) is None
    machine(monkeypatch, need - 1)
    said = shortage(EIGHT_B, CELL)
    assert said is not None
    assert said.startswith(f"not enough memory: 64 requests of up to {tokens} tokens need ")
    assert "beside 16.4 GB of weights" in said


def test_no_more_seats_than_requests_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 17e9)
    assert shortage(EIGHT_B, CELL) is not None
    assert shortage(EIGHT_B, replace(CELL, requests=1)) is None
    assert shortage(EIGHT_B, replace(CELL, policy="one")) is None


@pytest.mark.parametrize(
    "server",
    [Server(engine="paced"), Server(model="org/unknown"), Server(model="/not/there")],
    ids=["a profile", "a model that is not here", "no model"],
)
def test_what_is_not_known_is_not_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, download: bool) -> None:
        raise RuntimeError("no hub")

    machine(monkeypatch, 1)
    monkeypatch.setattr(memory, "load_config", fail)
    assert shortage(server, CELL) is None


def test_a_rush_warns_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 3e8)
    monkeypatch.setattr(models, "device", lambda: "cpu")
    monkeypatch.setattr(memory, "load_config", lambda name, download: NamedConfig("smol", "test", SMOL))
    printed = CliRunner().invoke(main, ["rush", "--dry-run", "--rates", "1"], env={"COLUMNS": "200"}).stdout
    assert "Warning: not enough memory: 40 requests of up to" in printed
    assert printed.count("Warning") == 3  # one, static and continuous take as many seats as each has


SMOL = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
    "tie_word_embeddings": True,
}  # fmt: skip
