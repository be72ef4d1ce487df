"""The whole search: every server roughly, the best of each policy until it is sure, and which is best of all."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from experiments.capacity.plan import EFFORT, CapacitySettings, kind_of, label, seatings, seats_of
from experiments.capacity.search import FOUND, NONE, NOT_DETERMINED, Capacity, Effort, Hunt
from experiments.capacity.seats import by_seats
from experiments.capacity.serving import Crowds, Served, holds
from experiments.capacity.words import rate_text
from experiments.objectives import Objective
from experiments.tables import seconds_text
from experiments.twin.cells import SimulatedServer

AS_GOOD = 0.98  # of the most that anything serves: so much is as good, with fewer seats or a simpler policy
NEARLY = 0.9  # of a target: seats that roughly serve so much are worth a closer look


@dataclass(slots=True)
class Tried:
    """One server. `hopeless` says why it serves nobody as promised; `capacity` is the sure answer, where one was looked
    for."""

    policy: str
    served: Served
    hunt: Hunt
    hopeless: str | None = None
    rough: float = 0.0
    capacity: Capacity | None = None

    @property
    def rate(self) -> float | None:
        """The highest, as far as it is known."""
        known = self.capacity is not None and self.capacity.state == FOUND and self.capacity.estimate is not None
        return self.capacity.estimate.rate if known else None  # type: ignore[union-attr]

    @property
    def is_sure(self) -> bool:
        return self.rate is not None or self.hopeless is not None

    @property
    def lowest(self) -> float:
        """The lower end of its interval, which the highest rate is hardly below."""
        interval = self.capacity.estimate.interval if self.capacity and self.capacity.estimate else None
        return interval[0] if self.rate is not None and interval is not None else 0.0


@dataclass(slots=True)
class Study:
    """A search with these settings on this server; `told` hears in words what was found, as it is found, and
    `trying` what comes next."""

    settings: CapacitySettings
    server: SimulatedServer
    effort: Effort = EFFORT
    told: Callable[[str], None] = lambda words: None
    trying: Callable[[str], None] = lambda words: None
    _objectives: Sequence[Objective] = field(init=False)
    _crowds: Crowds = field(init=False)

    def __post_init__(self) -> None:
        self._objectives, self._crowds = self.settings.promised(), Crowds(self.settings.cell())

    def run(self) -> dict[str, Any]:
        """What the manifest keeps of it. Raises OutsideProfile, PolicyFailed and ValueError."""
        groups = [self._tried(policy) for policy in self.settings.policies]
        chosen = [self._chosen(group) for group in groups]
        best = self._best(chosen)
        return {
            "objectives": list(self.settings.objectives),
            "target": self.settings.rate,
            "seeds": list(self.settings.seeds),
            "policies": [self._row(each) for each in chosen],
            "comparisons": comparisons(chosen),
            "best": None if best is None else chosen.index(best),
            "seats": None if best is None else self._seats(groups[chosen.index(best)], best),
            "simulated_requests": sum(each.served.simulated for group in groups for each in group),
            "flags": None if best is None else flags(best.policy, self.server),
            "same_lengths": self._crowds.same_lengths(self.settings.seeds[0]),
        }

    def _tried(self, policy: str) -> list[Tried]:
        """What each number of seats serves, roughly."""
        found = []
        for each in seatings(policy, self.settings.seats):
            self.trying(label(each))
            served = Served(each, self.server, self._objectives, self._crowds)
            tried = Tried(each, served, Hunt(served, self.settings.seeds), self._hopeless(served))
            if tried.hopeless is None:
                tried.rough = tried.hunt.look(self.effort.fewest, self.effort.rough_seeds).rate or 0.0
            found.append(tried)
        return found

    def _hopeless(self, served: Served) -> str | None:
        """Why a server does not keep what was promised even to requests that are alone with it."""
        figures = served.alone(self.settings.seeds[0])
        for promised, outcome in zip(self._objectives, figures.objectives, strict=True):
            if not outcome.n:
                raise ValueError(f"--objective {promised.text}: replies of one token say nothing of it; leave it out")
            if not holds(outcome):
                value = getattr(getattr(figures, promised.metric), promised.percentile)
                return f"even alone, {promised.metric}.{promised.percentile} is {seconds_text(value)}"
        return None

    def _chosen(self, group: Sequence[Tried]) -> Tried:
        """Of one policy the fewest seats that serve as many as any, or that are enough for the target."""
        most = max(each.rough for each in group)
        best = next(each for each in group if each.rough >= AS_GOOD * most)
        self._settle(best)
        target = self.settings.rate
        if target is None or best.rate is None:
            return best
        for each in group[: group.index(best)]:
            if each.rough / best.rough * best.rate >= NEARLY * target:
                self._settle(each)
                if each.lowest >= target:
                    return each
        return best

    def _settle(self, tried: Tried) -> None:
        self.trying(f"{label(tried.policy)}, closely")
        if tried.hopeless is not None:
            tried.capacity = Capacity(NONE, None, tried.hopeless)
        else:
            tried.capacity = tried.hunt.settled(self.effort)
        self.told(f"{label(tried.policy)}: {in_words(tried.capacity)}")

    def _best(self, chosen: Sequence[Tried]) -> Tried | None:
        """The first that is enough for the target; else the first that is not shown to serve far less than the most."""
        known = [each for each in chosen if each.rate is not None]
        if not known:
            return None
        enough = [each for each in known if self.settings.rate is not None and each.lowest >= self.settings.rate]
        most = max(known, key=lambda each: each.rate or 0.0)
        return (enough or [each for each in known if not _fewer(each, most)])[0]

    def _row(self, tried: Tried) -> dict[str, Any]:
        """One policy's, as a table needs it."""
        capacity = tried.capacity or Capacity(NOT_DETERMINED, None)
        found = capacity.estimate
        return {
            "policy": tried.policy,
            "label": label(tried.policy),
            "kind": kind_of(tried.policy),
            "seats": seats_of(tried.policy),
            "state": capacity.state,
            "reason": capacity.reason,
            "rate": found.rate if found else None,
            "interval": found.interval if found else None,
            "bounded": found.bounded if found else False,
            "requests": found.requests if found else None,
            "beyond": tried.served.beyond,
            "rates": list(found.rates) if found else [],
            "target": self._target(tried),
        }

    def _target(self, tried: Tried) -> str | None:
        """Whether this server meets the objectives at the target, if there is one."""
        target, capacity = self.settings.rate, tried.capacity
        if target is None:
            return None
        if capacity is None or capacity.estimate is None or capacity.estimate.interval is None:
            return "missed"
        low, high = capacity.estimate.interval
        return "met" if low >= target else "missed" if high < target else NOT_DETERMINED

    def _seats(self, group: Sequence[Tried], best: Tried) -> dict[str, Any]:
        """The other numbers of seats beside the best, by what each serves of as many requests of the same seeds."""
        rate, rough = best.rate or 0.0, best.rough
        known = [(each.served, each.rate or each.rough / rough * rate, each.is_sure) for each in group]
        return by_seats(known, self.settings, self.settings.rate or best.lowest, self.effort)


def _fewer(one: Tried, most: Tried) -> bool:
    found = one.hunt.against(most.hunt)
    return found is not None and found.shown and found.ratio < AS_GOOD


def flags(policy: str, server: SimulatedServer) -> list[str]:
    """Those of `mlx_lm.server` that are nearest to this server."""
    return [
        *("--decode-concurrency", str(seats_of(policy)), "--prompt-concurrency", str(server.prefill_batch)),
        *("--prefill-step-size", str(server.prefill_step)),
    ]


def comparisons(chosen: Sequence[Tried]) -> list[dict[str, Any]]:
    """Every pair of policies that both serve somebody."""
    pairs = [(one, other, other.hunt.against(one.hunt)) for one, other in combinations(chosen, 2)]
    return [
        {"policy": label(other.policy), "than": label(one.policy), **asdict(found)}
        for one, other, found in pairs
        if found is not None
    ]


def in_words(capacity: Capacity) -> str:
    """What the search for one server came to, on one line."""
    found = capacity.estimate
    if capacity.state != FOUND or found is None or found.rate is None or found.interval is None:
        return f"{capacity.state}: {capacity.reason}"
    low, high = found.interval
    rate, *ends = map(rate_text, (found.rate, low, high))
    return f"{rate}/s ({' to '.join(ends)}), {found.requests:,} requests a seed"
