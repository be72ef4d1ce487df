"""How the twin serves a crowd at any rate: the same requests and, stretched or pressed together, the same arrivals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from experiments.analysis import CellSummary
from experiments.cell import Cell
from experiments.load_state import OVERLOADED
from experiments.objectives import Objective, Outcome
from experiments.plan import arrivals, prompts
from experiments.statistics import PERCENTILES
from experiments.twin.cells import SimulatedServer, Simulation
from experiments.twin.crowd import Crowd, PromptedCrowd
from protocol.clock import SECOND
from router.policies import label, parse_policy

ALONE = 1_000  # requests this many times as far apart as a busy server takes for one meet nobody else
ALONE_REQUESTS = 250


class FiguresOnly(Simulation):
    """A simulation that keeps no token, however short it is: nothing is written, and it takes a tenth of the time."""

    @property
    def detailed(self) -> bool:
        return False


@dataclass(slots=True)
class Crowds:
    """The crowds of `cell`, a seed each. At one request a second they are made once; any other rate scales that."""

    cell: Cell
    _made: dict[tuple[int, int], PromptedCrowd] = field(default_factory=dict)

    def at(self, rate: float, requests: int, seed: int) -> PromptedCrowd:
        """So many requests at this rate."""
        crowd = self._unit(requests, seed)
        times = np.rint(np.asarray(crowd.times, dtype=np.float64) / rate)
        return replace(crowd, times=times.astype(np.int64).tolist())

    def at_once(self, requests: int, seed: int) -> PromptedCrowd:
        return replace(self._unit(requests, seed), times=(0,) * requests)

    def apart(self, gap_ns: int, requests: int, seed: int) -> PromptedCrowd:
        """One after another, this far apart."""
        return replace(self._unit(requests, seed), times=range(0, requests * gap_ns, gap_ns))

    def same_lengths(self, seed: int) -> bool:
        """Whether all replies are equally long."""
        crowd = self._unit(ALONE_REQUESTS, seed)
        return len({asked.max_tokens for asked in crowd.requests()}) == 1

    def _unit(self, requests: int, seed: int) -> PromptedCrowd:
        if (requests, seed) not in self._made:
            cell = replace(self.cell, rate=1.0, requests=requests, seed=seed)
            self._made[requests, seed] = PromptedCrowd(arrivals(cell), prompts(cell), cell.max_tokens)
        return self._made[requests, seed]


@dataclass(slots=True)
class Served:
    """One policy with its seats in front of these crowds: a `search.Trial`. `simulated` counts requests; `beyond` says
    what the profile was not measured at, if the costs of some steps were extrapolated."""

    policy: str
    server: SimulatedServer
    objectives: Sequence[Objective]
    crowds: Crowds
    simulated: int = 0
    beyond: str | None = None

    def most(self, requests: int, seed: int) -> float:
        """As if nobody had to wait for arrivals, nor lost patience. Raises OutsideProfile and PolicyFailed."""
        everyone = replace(self.crowds.cell, queue=requests, timeout=None)
        done = self._run(everyone, self.crowds.at_once(requests, seed))
        if not done.done_s:
            raise ValueError(f"with this profile {self.policy} takes no time for replies, or completes none of them")
        return done.completed / done.done_s

    def meets(self, rate: float, requests: int, seed: int) -> bool:
        """Whether every objective holds, and the queue does not just grow. Raises as above."""
        figures = self.figures(rate, requests, seed)
        return figures.load_state != OVERLOADED and all(map(holds, figures.objectives))

    def figures(self, rate: float, requests: int, seed: int) -> CellSummary:
        """Everything that is known of such a crowd. Raises as above."""
        return self._run(replace(self.crowds.cell, rate=rate, seed=seed), self.crowds.at(rate, requests, seed))

    def alone(self, seed: int) -> CellSummary:
        """Of requests that meet nobody else. Raises as above."""
        gap = round(ALONE * SECOND / self.most(ALONE_REQUESTS, seed))
        return self._run(self.crowds.cell, self.crowds.apart(gap, ALONE_REQUESTS, seed))

    def _run(self, cell: Cell, crowd: Crowd) -> CellSummary:
        named = replace(cell, policy=self.policy, label=label(parse_policy(self.policy)))
        simulation = FiguresOnly(named, crowd, self.server, self.objectives)
        figures = simulation.run()
        self.simulated += len(crowd.times)
        self.beyond = simulation.beyond or self.beyond
        return figures


def holds(outcome: Outcome) -> bool:
    """Whether the percentile of these very requests, by nearest rank, is below the limit."""
    q = PERCENTILES[outcome.objective.partition("<")[0].strip().partition(".")[2]]
    return outcome.n - outcome.misses >= math.ceil(q * outcome.n)
