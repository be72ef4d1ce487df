"""One run of an experiment: its folder, its manifest, its worker, and its cells measured one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.cell import Cell, client_options, router_options
from experiments.manifest import first_manifest, on_battery
from experiments.memory import shortage
from experiments.progress import CellProgress
from experiments.run_folder import MANIFEST, Summary, analyse, write_json
from experiments.supervisor import CellFailed, Crew, Interrupted
from protocol.process import StopRequest
from worker.options import Server


@dataclass(slots=True)
class Run:
    """A run of `experiment` with these settings, into `folder`."""

    experiment: str
    settings: Mapping[str, Any]
    folder: Path
    console: Console
    stop: StopRequest
    manifest: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    _crew: Crew | None = None
    _worker: tuple[Server, Sequence[str]] | None = None
    _worker_lost: bool = False

    def measure(self, body: Callable[[], None]) -> Summary:
        """Do what `body` does, all processes ended afterwards, and sum up what was measured; the summary says whether
        it is complete."""
        with Crew(self.folder, self.stop) as self._crew:
            self.manifest = first_manifest(self.experiment, self.settings, self._crew.run)
            self.keep()
            try:
                body()
                self.manifest |= {"complete": not self.manifest["lost"], "reason": None}
            except CellFailed as failure:
                self.interrupted = isinstance(failure, Interrupted)
                self.manifest["reason"] = str(failure)
        self.keep(on_battery_at_end=on_battery())
        return analyse(self.folder)

    def keep(self, **facts: Any) -> None:
        """Write the manifest, with these facts in it."""
        self.manifest |= facts
        write_json(self.folder / MANIFEST, self.manifest)

    def serve(self, server: Server, *options: str) -> None:
        """Have a worker with these settings from now on, in the place of an earlier one."""
        assert self._crew is not None
        self._worker, self._worker_lost = (server, options), False
        self._crew.start_worker([*server.arguments(), *options])

    def cell(self, cell: Cell, title: str) -> None:
        """Measure one cell. Raises CellFailed or Interrupted."""
        assert self._crew is not None
        progress = CellProgress(self.console, title, cell)
        with progress:
            self._crew.run_cell(
                cell.name,
                cell.clients,
                router_options(cell),
                client_options(cell),
                lambda event: self._follow(event, progress),
            )

    def announce(self, cells: Sequence[Cell]) -> None:
        """Keep what is planned, so that a cell which is never reached has its place in what is found all the same."""
        self.keep(planned=[{"cell": cell.name, "label": cell.label, **cell.labels} for cell in cells])

    def attempt(self, cell: Cell, title: str) -> None:
        """Measure one cell, if it fits into memory. Where it does not, or fails, keep the reason; the next one can be
        attempted all the same. Raises Interrupted."""
        server, options = self._worker or (Server(), ())
        lacking = shortage(server, cell)
        if lacking is not None:
            self._without(cell, title, "refused", lacking)
            return
        if self._worker_lost:
            self.serve(server, *options)
        try:
            self.cell(cell, title)
        except Interrupted:
            raise
        except CellFailed as failure:
            self._without(cell, title, "lost", str(failure))
            self._worker_lost = True

    def _without(self, cell: Cell, title: str, how: str, reason: str) -> None:
        self.keep(**{how: {**self.manifest[how], cell.name: reason}})
        self.console.print(f"{title}: {reason}", soft_wrap=True)

    def _follow(self, event: Mapping[str, Any], progress: CellProgress) -> None:
        progress.follow(event)
        if event["event"] == "started" and not self.manifest["worker"]:
            self.keep(worker=event["worker"])
            if event["worker"].get("blas_warning"):
                self.console.print(f"Warning: {event['worker']['blas_warning']}")
