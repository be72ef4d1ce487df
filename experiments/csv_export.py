"""A run's requests as CSV, one row each: every stamp, what follows from it, and which cell it was."""

import csv
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from experiments.analysis import DURATIONS, LIFE, CellRecords, CellSummary, gaps, summarise, tpot, written
from protocol.clock import seconds
from protocol.records import RequestRecord

CELL = ("cell", "label", "policy", "rate", "load", "seed")
REQUEST = ("id", "user", "end", "finish", "detail", "departure", "prompt_tokens", "reused", "max_tokens")
# In the order of a life; the client's, but received, admitted and ended (the router's) and three of the worker.
STAMPS = (*LIFE[:-1], "first_received", "last_received", "ended")
SPANS = DURATIONS | {"send_lag": ("intended", "sent"), "service": ("admitted", "ended")}
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(file: TextIO, cells: Mapping[str, CellRecords], text: bool = True) -> None:
    """One row a request, cells in the order of their names: stamps in nanoseconds, durations in seconds, an empty field
    for what was not measured. With `text` the replies too; prompts are in no record. Open `file` with newline=""."""
    writer = csv.writer(file)
    writer.writerow(columns(text))
    for name in sorted(cells):
        figures = summarise(name, cells[name])
        writer.writerows(_row(figures, request, text) for request in cells[name].requests)


def columns(text: bool) -> list[str]:
    """The names of the columns: `_ns` and `_s` are their units."""
    spans = [f"{name}_s" for name in (*SPANS, "tpot", "longest_gap")]
    return [*CELL, *REQUEST, "tokens", *(f"{name}_ns" for name in STAMPS), *spans, *(["text"] if text else [])]


def _row(figures: CellSummary, request: RequestRecord, text: bool) -> Iterable[Any]:
    place = [request.cell, *(getattr(figures, name) for name in CELL[1:])]
    facts = [*(getattr(request, name) for name in REQUEST), written(request)]
    stamps = [getattr(request, f) for f in STAMPS]
    spans = [_span(request, *ends) for ends in SPANS.values()]
    derived = [*spans, tpot(request), max(gaps(request), default=None)]
    return [harmless(value) for value in (*place, *facts, *stamps, *derived, *([request.text] if text else []))]


def _span(request: RequestRecord, begin: str, end: str) -> float | None:
    first, last = getattr(request, begin), getattr(request, end)
    return None if first is None or last is None else seconds(last - first)


def harmless(value: Any) -> Any:
    """A text that a spreadsheet would run as a formula, with an apostrophe before it, which makes it text there; all
    other values as they are. Numbers are written as numbers, also those below 0."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
