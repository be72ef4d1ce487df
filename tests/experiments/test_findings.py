"""Findings have a row for every planned cell, measured or not, and say of each why it is missing."""

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from experiments import kv_quant, prefix, repeat, sweep
from experiments.analysis import by_cell
from experiments.cell import Cell
from experiments.run_folder import build_summary
from experiments.show import show
from protocol.records import CellRecord, ClientRecord, RequestRecord, RouterRecord
from worker.options import Server

SERVER = Server()
SWEEP = sweep.SweepSettings(SERVER, ("4bit", "bf16"), (1, 8), 16)
PREFIX = prefix.PrefixSettings(SERVER, 4, None, False, 12)
REPEAT = repeat.RepeatSettings(SERVER, 4, 2, (2,), 8, "emails", None)
KV_QUANT = kv_quant.KVQuantSettings(SERVER, (16, 4), (300, 500), 2)
PLANS: dict[str, tuple[Any, Sequence[Cell]]] = {
    "sweep": (SWEEP, sweep.cells(SWEEP, "4bit") + sweep.cells(SWEEP, "bf16")),
    "prefix": (PREFIX, prefix.cells(PREFIX)),
    "repeat": (REPEAT, repeat.cells(REPEAT)),
    "kv-quant": (KV_QUANT, kv_quant.cells(KV_QUANT, 16) + kv_quant.cells(KV_QUANT, 4)),
}

each = pytest.mark.parametrize("experiment", PLANS)


def manifest(experiment: str, **changes: Any) -> dict[str, Any]:
    settings, cells = PLANS[experiment]
    planned = [{"cell": cell.name, "label": cell.label, **cell.labels} for cell in cells]
    return {"experiment": experiment, "settings": asdict(settings), "planned": planned} | changes


def records(experiment: str, end: str, detail: str | None = None, answer: Callable[[int], int] = int) -> list[Any]:
    """Every request of every planned cell, all with the same end."""
    made: list[Any] = []
    for cell in PLANS[experiment][1]:
        ids = tuple(range(cell.requests))
        labels = {"label": cell.label, "requests": cell.requests} | dict(cell.labels)
        made.append(ClientRecord(cell.name, 0, 1, cell.requests, 0, 0, {}, ids, (0,) * cell.requests))
        made += [
            RequestRecord(
                cell.name, id, prompt_tokens=50, reused=0, max_tokens=8, intended=0, sent=10, received=20, admitted=30,
                started=40, first_token=10**9, last_token=2 * 10**9, first_received=10**9 + 9,
                last_received=2 * 10**9 + 9, ended=2 * 10**9 + 5, tokens=(7, answer(id)), margins=(3.0, 0.001),
                text="x", end=end, detail=detail,
            )
            for id in ids
        ]  # fmt: skip
        made.append(RouterRecord(cell.name, "one", {}, 9, None, 1, "run", labels))
        facts = {"dtype": "float32", "kv_bytes": 1_000, "prefix_hits": 0, "prefix_misses": 0, "prefix_bytes": 0}
        made.append(CellRecord(cell.name, 9, 5_000, 0, 1, facts | {"prefix_evicted": 0}))
    return made


def shown(made: Any, settings: Any) -> str:
    console = Console(width=80, file=io.StringIO(), record=True, force_terminal=False, markup=False)
    show(console, made, asdict(settings), study=True)
    text: str = console.export_text()
    tables = [line for line in text.splitlines() if "   " in line]
    assert max(map(len, tables)) <= 80
    return text


@each
def test_an_interruption_before_the_first_cell_leaves_rows_without_figures(experiment: str) -> None:
    made = build_summary(manifest(experiment, reason="interrupted"), {})
    assert not made.complete
    text = shown(made, PLANS[experiment][0])
    assert "interrupted" in text
    assert "identical every time" not in text
    assert "None" not in text


@each
def test_what_was_refused_or_lost_is_named(experiment: str) -> None:
    first, second = (cell.name for cell in PLANS[experiment][1][:2])
    made = build_summary(
        manifest(experiment, refused={first: "not enough memory: 9 GB"}, lost={second: "worker was killed"}), {}
    )
    text = shown(made, PLANS[experiment][0])
    assert "not enough memory: 9 GB" in text
    assert "worker was killed" in text
    assert made.reason is not None


@each
def test_rejected_requests_are_named_and_nothing_is_made_of_them(experiment: str) -> None:
    cells = by_cell(records(experiment, "rejected", "request 0 of user-0: exceeds the model's context of 64"))
    made = build_summary(manifest(experiment), cells)
    text = shown(made, PLANS[experiment][0])
    assert "exceeds the model's context of 64" in text
    assert "identical every time" not in text
    assert "0 / 0" not in text


@each
def test_a_whole_run_is_complete(experiment: str) -> None:
    made = build_summary(manifest(experiment), by_cell(records(experiment, "completed")))
    assert made.complete
    assert made.findings is not None
    text = shown(made, PLANS[experiment][0])
    assert "None" not in text
    assert ("identical every time" in text) == (experiment == "repeat")


def test_saved_bytes_are_against_the_unquantized_cache_or_not_told() -> None:
    settings, _ = PLANS["kv-quant"]
    quantized = [record for record in records("kv-quant", "completed") if "-4-bits" in record.cell]
    made = build_summary(manifest("kv-quant"), by_cell(quantized))
    assert made.findings is not None
    assert [row["saved"] for row in made.findings["rows"]] == [None] * 4
    assert "save" not in shown(made, settings).partition("The study")[0].replace("saved", "")


def test_a_differing_answer_is_placed() -> None:
    plan = PLANS["repeat"][1]
    made = records("repeat", "completed")
    changed = [
        record if not (isinstance(record, RequestRecord) and record.cell == plan[-1].name and record.id == 2)
        else RequestRecord(record.cell, 2, tokens=(7, 99), margins=(3.0, 0.002), end="completed")
        for record in made
    ]  # fmt: skip
    found = build_summary(manifest("repeat"), by_cell(changed)).findings
    assert found is not None
    assert found["rows"][-1]["differences"] == ({"id": 2, "token": 1, "margin": 0.001, "near_tie": True},)


@pytest.mark.parametrize(
    ("changes", "facts", "said"),
    [
        ({"timestamp_first": True}, {"prefix_misses": 4, "prefix_bytes": 99}, "what never changes goes first"),
        ({}, {"prefix_misses": 4, "prefix_bytes": 0}, "larger than --prefix-cache"),
        ({"emails": 1}, {"prefix_misses": 1, "prefix_bytes": 99}, "there was no second email"),
        ({}, {"prefix_hits": 3, "prefix_misses": 1, "prefix_bytes": 2**21}, "2 MiB of cache; 3 hits, 1 misses"),
    ],
)
def test_what_the_prefix_cache_did_is_told_for_its_own_reason(
    changes: dict[str, Any], facts: dict[str, int], said: str
) -> None:
    made = [
        CellRecord(r.cell, r.steps, 1, 0, 1, {**r.facts, **facts}) if isinstance(r, CellRecord) else r
        for r in records("prefix", "completed")
    ]
    described = manifest("prefix")
    described["settings"] |= changes
    assert said in shown(build_summary(described, by_cell(made)), PLANS["prefix"][0])
