"""The rush: the same seeded crowd served under several admission policies, one after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from experiments.analysis import by_cell, summarise
from experiments.manifest import first_manifest
from experiments.plan import (
    Cell,
    Offer,
    RushSettings,
    cells,
    drift_cell,
    expected_s,
    minutes,
    offers,
)
from experiments.progress import CellProgress
from experiments.run_folder import MANIFEST, Summary, analyse, write_json
from experiments.supervisor import CellFailed, Crew, Interrupted
from protocol.process import StopRequest
from protocol.records import read_folder

CALIBRATION = Cell("calibration", "calibration: one at a time, all at once", "one", None, None)


@dataclass(slots=True)
class Rush:
    """One run of the rush, into `folder`. `calibration` is an earlier run's, to be repeated with its rates; `reply_s`
    is the time of one reply alone, once it is known."""

    settings: RushSettings
    folder: Path
    console: Console
    stop: StopRequest
    calibration: Mapping[str, Any] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    reply_s: float | None = None
    interrupted: bool = False

    def run(self) -> Summary:
        """Measure every cell of the plan, or as many as can be; the summary says whether it is complete."""
        with Crew(self.folder, self.stop) as crew:
            self.manifest = first_manifest(self.settings, crew.run)
            self._keep()
            try:
                crew.start_worker(worker_options(self.settings))
                self._measure(crew)
                self.manifest |= {"complete": True, "reason": None}
            except CellFailed as failure:
                self.interrupted = isinstance(failure, Interrupted)
                self.manifest["reason"] = str(failure)
        self._keep()
        return analyse(self.folder)

    def _measure(self, crew: Crew) -> None:
        capacity = self.calibration["replies_per_s"] if self.calibration else None
        offered = offers(self.settings, capacity)
        if offered is None:
            offered = self._calibrate(crew)
        elif self.calibration:
            self.reply_s, self.manifest["calibration"] = self.calibration["reply_s"], dict(self.calibration)
        planned = cells(self.settings, offered)
        again = drift_cell(planned, self.settings, self.reply_s)
        everything = [*planned, *([again[1]] if again else [])]
        self.manifest["cells"] = [cell.name for cell in planned]
        self.manifest["drift"] = {"first": again[0].name, "repeat": again[1].name} if again else None
        self._keep()
        if self.reply_s is not None:
            total = sum(expected_s(cell, self.settings, self.reply_s) for cell in everything)
            self.console.print(f"{len(everything)} cells, about {minutes(total)}.")
        for number, cell in enumerate(everything, start=1):
            self._cell(crew, cell, f"{number}/{len(everything)} {cell.label}", self.settings.requests)

    def _calibrate(self, crew: Crew) -> list[Offer]:
        """Measure replies a second one at a time, on a few requests that wait from the start."""
        self._cell(crew, CALIBRATION, "calibration: one at a time", self.settings.calibration_requests)
        figures = summarise(CALIBRATION.name, by_cell(read_folder(self.folder))[CALIBRATION.name])
        if not figures.done_s:
            raise CellFailed("none of the calibration's requests was answered; give --rates instead of auto")
        capacity = figures.completed / figures.done_s
        self.reply_s = 1 / capacity
        chosen = offers(self.settings, capacity) or []
        rates = [offer.rate for offer in chosen]
        self.manifest["calibration"] = {"replies_per_s": capacity, "reply_s": self.reply_s, "rates": rates}
        self.console.print(
            f"One at a time this machine does {capacity:.2g} replies a second; offered: "
            f"{', '.join(f'{rate:g}' for rate in rates)} a second.",
            soft_wrap=True,
        )
        return chosen

    def _cell(self, crew: Crew, cell: Cell, title: str, requests: int) -> None:
        progress = CellProgress(self.console, title, requests)
        with progress:
            crew.run_cell(
                cell.name,
                self.settings.clients,
                router_options(self.settings, cell, requests),
                client_options(self.settings, cell, requests),
                lambda event: self._follow(event, progress),
            )

    def _follow(self, event: Mapping[str, Any], progress: CellProgress) -> None:
        progress.follow(event)
        if event["event"] == "started" and not self.manifest["worker"]:
            self.manifest["worker"] = event["worker"]
            self._keep()
            if event["worker"].get("blas_warning"):
                self.console.print(f"Warning: {event['worker']['blas_warning']}")

    def _keep(self) -> None:
        write_json(self.folder / MANIFEST, self.manifest)


def plan_lines(settings: RushSettings, reply_s: float | None) -> list[str]:
    """The plan in words: cells, requests, expected minutes; what is not known before a calibration says so."""
    offered = offers(settings, 1 / reply_s if reply_s else None)
    shown = offered or [Offer(load, load) for load in settings.loads]
    planned = cells(settings, shown)
    again = drift_cell(planned, settings, reply_s)
    count = len(planned) + (again is not None)
    what = settings.model if settings.engine == "mlx" else f"{settings.profile} (paced)"
    lines = [
        f"Plan: {what}, {count} cells of {settings.requests} requests ({count * settings.requests} in all), "
        f"replies of up to {settings.max_tokens} tokens, {settings.clients} clients."
    ]
    if offered is None:
        lines.append(
            f"  A calibration first: {settings.calibration_requests} replies, one at a time. They decide the rates of "
            f"the study's loads {', '.join(f'{load:g}' for load in settings.loads)}, and how long it all takes."
        )
    for cell in [*planned, *([again[1]] if again else [])]:
        place = f"load {cell.load:g}" if offered is None else "at once" if cell.rate is None else f"{cell.rate:g}/s"
        lines.append(f"  {cell.policy:<28} {place}{' (repeated, for drift)' if again and cell is again[1] else ''}")
    if reply_s is not None:
        total = sum(expected_s(cell, settings, reply_s) for cell in [*planned, *([again[1]] if again else [])])
        lines.append(f"Expected: about {minutes(total)}, at {reply_s:.2g} s for one reply alone.")
    elif offered is not None:
        lines.append("Expected: unknown until one reply was measured; at least the arrivals' own time.")
    return lines


def worker_options(settings: RushSettings) -> list[str]:
    """The arguments of `headway worker`."""
    return [
        *("--engine", settings.engine, "--model", settings.model, "--profile", settings.profile),
        *("--prefill-batch", str(settings.prefill_batch), "--prefill-step", str(settings.prefill_step)),
        *("--chat-template-args", orjson.dumps(dict(settings.chat_template_args)).decode()),
    ]


def router_options(settings: RushSettings, cell: Cell, requests: int) -> list[str]:
    """The arguments of `headway router` for a cell."""
    labels = {"label": cell.label, "rate": cell.rate, "load": cell.load, "seed": settings.seed, "requests": requests}
    limited = cell is not CALIBRATION
    timeout = ["--timeout", str(settings.timeout)] if limited and settings.timeout is not None else []
    queue = settings.queue if limited else max(settings.queue, requests)
    return [
        *("--policy", cell.policy, "--queue", str(queue)),
        *("--labels", orjson.dumps(labels).decode(), *timeout),
    ]


def client_options(settings: RushSettings, cell: Cell, requests: int) -> list[str]:
    """The arguments of `headway clients` for a cell."""
    asked = ["--prompts", settings.prompts] if settings.prompts else ["--workload", settings.workload]
    arrivals = ["--arrivals", "at-once"] if cell.rate is None else ["--arrivals", settings.arrivals]
    rate: Sequence[str] = [] if cell.rate is None else ["--rate", repr(cell.rate)]
    return [
        *(*arrivals, *rate, "--seed", str(settings.seed), "--requests", str(requests)),
        *(*asked, "--max-tokens", str(settings.max_tokens)),
        *(["--ignore-eos"] if settings.ignore_eos else []),
    ]
