"""The rush: the same seeded crowd served under several admission policies, one after another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.analysis import by_cell, summarise
from experiments.fit import FitError
from experiments.fitted import WantedTwin
from experiments.plan import (
    CALIBRATION,
    Offer,
    RushSettings,
    calibration_cell,
    cells,
    drift_cell,
    expected_s,
    minutes,
    offers,
)
from experiments.run import Run
from experiments.supervisor import CellFailed
from protocol.records import read_folder
from worker.profile import as_json


@dataclass(slots=True)
class Rush:
    """What a rush does in its run. `calibration` is an earlier run's, to be repeated with its rates; `reply_s` is the
    time of one reply alone, once it is known; `twin` is the simulation that is wanted beside it."""

    settings: RushSettings
    run: Run
    calibration: Mapping[str, Any] | None = None
    reply_s: float | None = None
    twin: WantedTwin | None = None

    def measure(self) -> None:
        """Every cell of the plan. Raises CellFailed at the first that cannot be measured: the others would be compared
        with nothing."""
        self.run.serve(self.settings.server)
        capacity = self.calibration["replies_per_s"] if self.calibration else None
        offered = offers(self.settings, capacity)
        if offered is None:
            offered = self._calibrate()
        elif self.calibration:
            self.reply_s = self.calibration["reply_s"]
            self.run.keep(calibration=dict(self.calibration))
        planned = cells(self.settings, offered)
        again = drift_cell(planned, self.settings, self.reply_s)
        everything = [*planned, *([again[1]] if again else [])]
        self.run.announce(everything)
        self.run.keep(drift={"first": again[0].name, "repeat": again[1].name} if again else None)
        if self.reply_s is not None and self.settings.rates is None:
            total = sum(expected_s(cell, self.reply_s) for cell in everything)
            self.run.console.print(f"{len(everything)} cells, about {minutes(total)}.")
        for number, cell in enumerate(everything, start=1):
            self.run.cell(cell, f"{number}/{len(everything)} {cell.label}")
        if self.twin is not None:
            self._keep_twin(self.twin)

    def _keep_twin(self, wanted: WantedTwin) -> None:
        """What the simulation beside this run goes by."""
        try:
            profile, source = wanted.profile_for(self.run.folder)
        except FitError as error:
            self.run.console.print(f"No twin: {error}", soft_wrap=True)
            return
        server = self.settings.server
        sizes = {"prefill_batch": server.prefill_batch, "prefill_step": server.prefill_step}
        self.run.keep(twin={**sizes, "from": source, "unseen": wanted.unseen, "profile": as_json(profile)})

    def _calibrate(self) -> list[Offer]:
        """Measure replies a second one at a time, on a few requests that wait from the start."""
        self.run.cell(calibration_cell(self.settings), "calibration: one at a time")
        figures = summarise(CALIBRATION, by_cell(read_folder(self.run.folder))[CALIBRATION])
        if not figures.done_s:
            raise CellFailed("none of the calibration's requests was answered; give --rates instead of auto")
        capacity = figures.completed / figures.done_s
        self.reply_s = 1 / capacity
        chosen = offers(self.settings, capacity) or []
        rates = [offer.rate for offer in chosen]
        self.run.keep(calibration={"replies_per_s": capacity, "reply_s": self.reply_s, "rates": rates})
        self.run.console.print(
            f"One at a time this machine does {capacity:.2g} replies a second; offered: "
            f"{', '.join(f'{rate:g}' for rate in rates)} a second.",
            soft_wrap=True,
        )
        return chosen


def plan_lines(settings: RushSettings, reply_s: float | None) -> list[str]:
    """The plan in words: cells, requests, expected minutes; what is not known before a calibration says so."""
    offered = offers(settings, 1 / reply_s if reply_s else None)
    shown = offered or [Offer(load, load) for load in settings.loads]
    planned = cells(settings, shown)
    again = drift_cell(planned, settings, reply_s)
    count = len(planned) + (again is not None)
    lines = [
        f"Plan: {settings.server.name}, {count} {'cell' if count == 1 else 'cells'} of {settings.requests} requests "
        f"({count * settings.requests} in all), replies of up to {settings.max_tokens} tokens, "
        f"{settings.clients} clients."
    ]
    if offered is None:
        lines.append(
            f"  A calibration first: {settings.calibration_requests} replies, one at a time. They decide the rates of "
            f"the study's loads {', '.join(f'{load:g}' for load in settings.loads)}, and how long it all takes."
        )
    for cell in [*planned[: len(planned) // len(settings.seeds)], *([again[1]] if again else [])]:
        load = cell.labels["load"]
        place = f"load {load:g}" if offered is None else "at once" if cell.rate is None else f"{cell.rate:g}/s"
        lines.append(f"  {cell.policy:<28} {place}{' (repeated, for drift)' if again and cell is again[1] else ''}")
    if len(settings.seeds) > 1:
        each = "All but the repeated one" if again else "All"
        seeds = ", ".join(map(str, settings.seeds))
        lines.append(f"  {each} once for each of {len(settings.seeds)} seeds: {seeds}.")
    if reply_s is not None:
        total = sum(expected_s(cell, reply_s) for cell in [*planned, *([again[1]] if again else [])])
        lines.append(f"Expected: about {minutes(total)}, at {reply_s:.2g} s for one reply alone.")
    elif offered is not None:
        lines.append("Expected: unknown until one reply was measured; at least the arrivals' own time.")
    return lines
