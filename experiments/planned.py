"""The cells of a plan and what became of each: findings have a row for every one, measured or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.analysis import CellRecords, CellSummary, summarise
from protocol.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Planned:
    """One cell: `label` and `facts` as announced, what was recorded, and why not all of it was measured, if so."""

    name: str
    label: str
    facts: Mapping[str, Any]
    cell: CellRecords
    figures: CellSummary
    lost: str | None

    @property
    def done(self) -> list[RequestRecord]:
        return [request for request in self.cell.requests if request.end == "completed"]

    @property
    def worker(self) -> Mapping[str, Any]:
        """What the worker said of itself at the end of the cell."""
        return self.cell.worker.facts if self.cell.worker else {}


def planned(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> list[Planned]:
    """Every cell that the run announced, in order."""
    return [_planned(dict(facts), manifest, cells) for facts in manifest.get("planned") or ()]


def _planned(facts: dict[str, Any], manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> Planned:
    name, label = facts.pop("cell"), facts.pop("label")
    cell = cells.get(name, CellRecords())
    figures = summarise(name, cell)
    return Planned(name, label, facts, cell, figures, _lost(name, cell, figures, manifest))


def _lost(name: str, cell: CellRecords, figures: CellSummary, manifest: Mapping[str, Any]) -> str | None:
    refused, lost = manifest.get("refused") or {}, manifest.get("lost") or {}
    if name in refused:
        return str(refused[name])
    if figures.requests and figures.completed == figures.requests:
        return None
    details = [request.detail for request in cell.requests if request.end != "completed" and request.detail]
    reasons = [lost.get(name), *details, manifest.get("reason")]
    return next((str(reason) for reason in reasons if reason), "not measured")
