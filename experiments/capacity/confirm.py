"""The answer held against real runs: one below the interval, which should meet what was promised, and one above it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.analysis import CellSummary
from experiments.capacity.plan import CapacitySettings
from experiments.capacity.serving import Crowds, Served
from experiments.capacity.words import Found, best_of
from experiments.cell import Cell
from experiments.plan import Offer, cells, minutes, two_digits
from experiments.run import Run
from experiments.statistics import PERCENTILES, samples_needed
from experiments.twin.cells import SimulatedServer

# At the very edge of the interval half of all samples miss; a fifth away a few hundred requests can tell.
BELOW, ABOVE = 0.8, 1.2
MISSES = 3
MOST_REQUESTS = 1_600


def requests_needed(settings: CapacitySettings) -> int:
    """How many show that every objective is met, should so many miss it."""
    return max(samples_needed(PERCENTILES[each.percentile], MISSES) for each in settings.promised())


def rates_around(best: Found, target: float | None) -> dict[float, str]:
    """What is offered, and what is expected of it. A target that is met is offered itself."""
    low, high = best["interval"]
    below = target if target is not None and best["target"] == "met" else two_digits(BELOW * low)
    return {below: "met", two_digits(ABOVE * high): "missed"}


@dataclass(frozen=True, slots=True)
class Real:
    """A cell to be served for real, what should become of its objectives, and what the twin says of it."""

    cell: Cell
    expected: str
    simulated: CellSummary

    @property
    def decided(self) -> bool:
        """Whether so many requests show, to the twin, what is expected."""
        states = [each.state for each in self.simulated.objectives]
        return "missed" in states if self.expected == "missed" else {*states} == {"met"}


def planned(settings: CapacitySettings, server: SimulatedServer, found: Found) -> list[Real]:
    """The real cells of the best server; none where no rate was found."""
    best = best_of(found)
    if best is None:
        return []
    rates = rates_around(best, found["target"])
    rush = settings.rush([best["policy"]], [*rates], requests_needed(settings))
    made = cells(rush, [Offer(rate, None) for rate in rates])
    return [_long_enough(settings, server, cell, rates[cell.rate]) for cell in made if cell.rate is not None]


def _long_enough(settings: CapacitySettings, server: SimulatedServer, cell: Cell, expected: str) -> Real:
    """The cell with as many requests as the twin needs to decide: an overloaded server is quick at first."""
    while True:
        served = Served(cell.policy, server, settings.promised(), Crowds(cell))
        real = Real(cell, expected, served.figures(cell.rate or 1.0, cell.requests, cell.seed))
        if real.decided or 2 * cell.requests > MOST_REQUESTS:
            return real
        cell = replace(cell, requests=2 * cell.requests)


def measure(settings: CapacitySettings, server: SimulatedServer, found: Found, run: Run) -> None:
    """Serve both for real, and keep what the twin says of the very same arrivals. Raises Interrupted."""
    real = planned(settings, server, found)
    run.keep(searched=dict(found), confirming=[_kept(settings, each) for each in real])
    run.announce([each.cell for each in real])
    if not real:
        return
    lasts = sum(each.cell.requests / (each.cell.rate or 1.0) for each in real)
    run.console.print(f"Confirming by {len(real)} real runs, about {minutes(lasts)}.")
    run.serve(settings.server)
    for number, each in enumerate(real, start=1):
        run.attempt(each.cell, f"{number}/{len(real)} {each.cell.label}")


def _kept(settings: CapacitySettings, real: Real) -> dict[str, Any]:
    simulated = [getattr(getattr(real.simulated, each.metric), each.percentile) for each in settings.promised()]
    cell = {"cell": real.cell.name, "rate": real.cell.rate, "requests": real.cell.requests}
    return cell | {"expected": real.expected, "simulated_s": simulated}


def lines(settings: CapacitySettings) -> Sequence[str]:
    """The plan in words."""
    count = requests_needed(settings)
    return [f"Then two real runs of the best, {count:,} requests each or more, on {settings.server.name}."]
