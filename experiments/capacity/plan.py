"""What a search for the capacity will try: its settings, the servers they lead to, and what is refused. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.capacity.search import Effort
from experiments.cell import Cell
from experiments.objectives import Objective, parse_objective
from experiments.plan import RushSettings
from experiments.tables import SERVERS, setting_words
from router.policies import label as policy_label
from router.policies import params, parse_policy, spec
from worker.options import Server
from worker.profile import CostProfile

POLICIES = ("one", "static", "continuous", "shortest")
SEATS = (1, 2, 4, 8, 16, 32, 64)
EFFORT = Effort()
CLIENTS = 2


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """Everything that decides what is found; plain values, as they stand in the manifest.

    `seats` are tried with every policy whose seats are a setting of its that it does not name. `rate` is a target in
    requests a second, if there is one. `model` is the one that the profile's costs are of, where memory is asked for.
    """

    server: Server
    objectives: tuple[str, ...]
    policies: tuple[str, ...]
    seats: tuple[int, ...]
    rate: float | None
    arrivals: str
    max_tokens: int
    workload: str
    prompts: str | None
    seeds: tuple[int, ...]
    queue: int
    timeout: float | None
    confirm: bool = False
    extrapolate: bool = False
    model: str | None = None

    def promised(self) -> list[Objective]:
        return [parse_objective(text) for text in self.objectives]

    def cell(self) -> Cell:
        """What every crowd asks, whatever its rate, seed and server."""
        return Cell(
            *("capacity", "capacity", "one", EFFORT.fewest, self.max_tokens),
            arrivals=self.arrivals, workload=self.workload, prompts=self.prompts, ignore_eos=True, clients=CLIENTS,
            queue=self.queue, timeout=self.timeout,
        )  # fmt: skip

    def rush(self, policies: Sequence[str], rates: Sequence[float], requests: int) -> RushSettings:
        """A rush of such a crowd, of the first seed."""
        return RushSettings(
            self.server, tuple(policies), tuple(rates), (), self.arrivals, requests, self.max_tokens, True,
            self.workload, self.prompts, self.seeds[:1], CLIENTS, self.queue, self.timeout, drift_cell=False,
            objectives=self.objectives,
        )  # fmt: skip


def seatings(policy: str, seats: Sequence[int]) -> list[str]:
    """The servers that a policy leads to, as specs with every setting, fewest seats first."""
    made = parse_policy(policy)
    if "seats" not in params(made) or "seats=" in policy:
        return [spec(made)]
    return [spec(replace(made, seats=count)) for count in seats]  # type: ignore[type-var]


def seats_of(policy: str) -> int:
    return parse_policy(policy).seats


def kind_of(policy: str) -> str:
    """A policy without its seats, in the words of the tables: of one that is tried with several, what they share."""
    made = parse_policy(policy)
    default = params(type(made)())
    changed = {key: value for key, value in params(made).items() if value != default[key] and key != "seats"}
    return " ".join([SERVERS.get(made.name, made.name), *setting_words(changed)])


def label(policy: str) -> str:
    """A policy in one word, as people write it."""
    return policy_label(parse_policy(policy))


def fitting_seats(profile: CostProfile) -> tuple[int, ...]:
    """The usual numbers of seats, as far as the profile was measured; the fewest it was where that is none of them."""
    rows = [point.rows for point in profile.decode]
    return tuple(seats for seats in SEATS if seats <= max(rows)) or (min(rows),)


def check_objectives_can_be_searched(objectives: Sequence[Objective]) -> None:
    """Raises ValueError, in one line, without one, and for what the search does not see."""
    if not objectives:
        raise ValueError("what is to be met? give at least one --objective, such as 'reply.p95<3s'")
    for each in objectives:
        if each.metric == "gap":
            raise ValueError(f"--objective {each.text}: the search keeps no gaps; name tpot, or see headway simulate")


def check_profile(settings: CapacitySettings, profile: CostProfile) -> None:
    """Raises ValueError, in one line that says what to do, for more seats than the profile was measured at."""
    most = max(point.rows for point in profile.decode)
    specs = [each for policy in settings.policies for each in seatings(policy, settings.seats)]
    for policy in map(parse_policy, specs):
        if policy.seats > most and not settings.extrapolate:
            raise ValueError(
                f"{policy_label(policy)} has {policy.seats} seats, more than {profile.name} was measured at "
                f"({profile.range}); measure more, name fewer, or go on with --extrapolate"
            )
