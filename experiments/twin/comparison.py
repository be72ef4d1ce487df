"""A real run beside its simulation: the same crowd, policies and lengths on a cost profile, and how far off it is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import orjson

from clients.workloads import Prompt, expected_tokens
from experiments.analysis import CellRecords, CellSummary, written
from experiments.cell import Cell
from experiments.report.texts import prompts_of
from experiments.twin.cells import SimulatedServer, Simulation
from experiments.twin.crowd import Asked
from protocol.records import CellRecord, RequestRecord
from router.policies import params, parse_policy
from router.policies import written as spelled
from worker.profile import parse_profile

FIGURES = ("ttft.p50", "ttft.p95", "reply.p50", "reply.p95", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class TwinFigure:
    """One figure of a cell, measured and simulated (seconds, or tokens a second), and the error as a share."""

    figure: str
    measured: float
    simulated: float
    error: float


@dataclass(frozen=True, slots=True)
class TwinCell:
    """A cell and its simulation; `outside` is the share of the simulated steps that the profile was not measured at."""

    label: str
    figures: list[TwinFigure]
    outside: float


@dataclass(frozen=True, slots=True)
class Twin:
    """All cells of a run; `profile` says where the costs are from, `unseen` whether from other runs. Errors are shares,
    whatever their direction; None where there is no figure."""

    profile: str
    unseen: bool
    cells: list[TwinCell]
    median: float | None
    worst: float | None


@dataclass(frozen=True, slots=True)
class RecordedCrowd:
    """The crowd that a cell recorded: when requests were meant to come, counted from `begin`, and how long prompts and
    replies were; a reply that did not complete may be as long as was asked for. Of `prompts`, by id, is what else a
    policy looks at."""

    recorded: Sequence[RequestRecord]
    begin: int
    prompts: Sequence[Prompt]

    @property
    def times(self) -> tuple[int, ...]:
        return tuple([(request.intended or 0) - self.begin for request in self.recorded])

    def requests(self) -> Iterator[Asked]:
        for id, r in enumerate(self.recorded):
            prompt = self.prompts[r.id] if r.id < len(self.prompts) else NOTHING
            length = written(r) if r.end == "completed" else r.max_tokens
            rest = expected_tokens(prompt, r.max_tokens or 1, False), prompt.priority, prompt.deadline_s
            yield Asked(id, r.user or f"user-{r.id}", (0,) * (r.prompt_tokens or 1), max(1, length or 1), *rest)


NOTHING = Prompt(())


def twin_of(manifest: Mapping[str, Any], cells: Mapping[str, CellRecords], figures: Mapping[str, CellSummary]) -> Twin:
    """The simulation of these cells. The manifest says what serves, and of `twin` the profile and where it is from; its
    slopes are carried on where it was not measured. Raises ProfileError."""
    twin = manifest["twin"]
    profile = parse_profile(orjson.dumps(twin["profile"]), "of the twin")
    server = SimulatedServer(profile, twin["prefill_batch"], twin["prefill_step"], extrapolate=True)
    specs = {
        spelled(p.name, params(p)): text for text in manifest["settings"]["policies"] for p in [parse_policy(text)]
    }
    made = [
        _cell(cells[name], figures[name], server, specs, manifest.get("inputs") or {})
        for name in figures
        if any(request.intended is not None for request in cells[name].requests) and cells[name].router is not None
    ]
    errors = [abs(each.error) for cell in made for each in cell.figures]
    middle, worst = (median(errors), max(errors)) if errors else (None, None)
    return Twin(twin["from"], twin["unseen"], made, middle, worst)


def _cell(
    cell: CellRecords,
    measured: CellSummary,
    server: SimulatedServer,
    specs: Mapping[str, str],
    inputs: Mapping[str, Any],
) -> TwinCell:
    assert cell.router is not None
    router = cell.router
    came = sorted([r for r in cell.requests if r.intended is not None], key=lambda r: (r.intended, r.id))
    begin = min([c.zero for c in cell.clients if c.zero is not None], default=came[0].intended or 0)
    spelling = spelled(router.policy, router.params)
    again = Cell(
        *("twin", measured.label, specs.get(spelling, spelling), len(came)),
        max_tokens=max([r.max_tokens or 1 for r in came]),
        rate=measured.rate,
        queue=router.queue,
        timeout=router.timeout_s,
    )
    accounts: list[CellRecord] = []

    def keep(role: str, record: Any) -> None:
        if isinstance(record, CellRecord):
            accounts.append(record)

    crowd = RecordedCrowd(came, begin, prompts_of(cell, inputs))
    simulated = Simulation(again, crowd, server, write=keep).run()
    outside = accounts[0].facts["clamped_steps"] / max(1, accounts[0].steps)
    pairs = [(name, _figure(measured, name), _figure(simulated, name)) for name in FIGURES]
    found = [TwinFigure(name, ours, theirs, theirs / ours - 1) for name, ours, theirs in pairs if ours and theirs]
    return TwinCell(measured.label, found, outside)


def _figure(of: CellSummary, name: str) -> float | None:
    metric, _, percentile = name.partition(".")
    value: float | None = getattr(getattr(of, metric), percentile) if percentile else getattr(of, metric)
    return value
