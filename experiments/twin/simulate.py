"""A whole run in virtual time, into a run folder like a real one's: the same records, tables, summary and report."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from clients.traces import read_trace
from experiments.analysis import CellSummary
from experiments.cell import Cell
from experiments.guesses import of_crowd
from experiments.manifest import first_manifest
from experiments.objectives import parse_objective
from experiments.plan import Offer, RushSettings, arrivals, calibration_cell, cells, offers, prompts
from experiments.run_folder import MANIFEST, SIMULATED, SUMMARY, Summary, summed_up, write_json
from experiments.twin.cells import SimulatedServer, Simulation
from experiments.twin.crowd import Crowd, PromptedCrowd, TraceCrowd
from protocol.records import RecordWriter
from router.policies import parse_policy


def crowd_of(cell: Cell) -> Crowd:
    """A cell's crowd, without the words of its prompts."""
    if cell.trace is not None:
        return TraceCrowd(read_trace(cell.trace))
    return PromptedCrowd(arrivals(cell), prompts(cell), cell.max_tokens)


def simulate_cell(cell: Cell, server: SimulatedServer, objectives: tuple[str, ...] = ()) -> CellSummary:
    """The figures of a cell, with nothing written. Raises OutsideProfile and PolicyFailed."""
    return Simulation(cell, crowd_of(cell), server, [parse_objective(each) for each in objectives]).run()


@dataclass(slots=True)
class SimulatedRun:
    """A simulated rush, into `folder`. `detailed` says whether every token was kept, `beyond` in words what the profile
    was not measured at."""

    settings: RushSettings
    server: SimulatedServer
    folder: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    detailed: bool = True
    beyond: list[str] = field(default_factory=list)
    _figures: dict[str, CellSummary] = field(default_factory=dict)

    def measure(self) -> Summary:
        """Every cell of the plan. Raises OutsideProfile and PolicyFailed; what was written until then stays."""
        self.manifest = first_manifest(SIMULATED, asdict(self.settings), "simulated")
        planned = cells(self.settings, self._offers())
        told = [{"cell": cell.name, "label": cell.label, **cell.labels} for cell in planned]
        self.keep(planned=told, simulated=simulated_by(self.server))
        worker = RecordWriter(self.folder / "worker.msgpack")
        try:
            for cell in planned:
                self._cell(cell, worker)
        finally:
            worker.close()
        self.keep(complete=True, reason=None, detailed=self.detailed, beyond=self.beyond)
        summary = summed_up(self.manifest, self._figures)
        write_json(self.folder / SUMMARY, asdict(summary))
        return summary

    def keep(self, **facts: Any) -> None:
        """Write the manifest, with these facts in it."""
        self.manifest |= facts
        write_json(self.folder / MANIFEST, self.manifest)

    def _offers(self) -> list[Offer]:
        """As a rush offers them; what one at a time can do is simulated first where it decides."""
        known = offers(self.settings, None)
        if known is not None:
            return known
        alone = simulate_cell(calibration_cell(self.settings), self.server)
        if not alone.done_s:
            raise ValueError("with this profile replies take no time; give --rates instead of auto")
        capacity = alone.completed / alone.done_s
        chosen = offers(self.settings, capacity) or []
        rates = [offer.rate for offer in chosen]
        self.keep(calibration={"replies_per_s": capacity, "reply_s": 1 / capacity, "rates": rates})
        return chosen

    def _cell(self, cell: Cell, worker: RecordWriter) -> None:
        client = RecordWriter(self.folder / f"{cell.name}.client-0.msgpack", alone=True)
        router = RecordWriter(self.folder / f"{cell.name}.router.msgpack", alone=True)
        writers: Mapping[str, RecordWriter] = {"client-0": client, "router": router, "worker": worker}
        promised = [parse_objective(each) for each in self.settings.objectives]
        try:
            simulation = Simulation(
                *(cell, crowd_of(cell), self.server, promised),
                write=lambda role, record: writers[role].write(record),
                write_requests=client.write_packed,
            )
            self.detailed &= simulation.detailed
            guessed = of_crowd(parse_policy(cell.policy), simulation.crowd)
            self._figures[cell.name] = replace(simulation.run(), wrong_order=guessed)
            if simulation.beyond:
                self.beyond.append(simulation.beyond)
        finally:
            client.close()
            router.close()


def simulated_by(server: SimulatedServer) -> dict[str, Any]:
    """What the manifest says of the simulation."""
    return {"profile": asdict(server.profile), "extrapolated": server.extrapolate}
