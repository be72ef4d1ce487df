"""What a rush will do: its settings, its cells and their order, and how long they may take. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from clients.arrivals import ArrivalPlan, arrival_times
from clients.cli import load_prompts
from clients.traces import TracePrompts, TraceSource, read_trace
from clients.workloads import Prompt
from experiments.cell import Cell
from protocol.clock import seconds
from router.policies import Continuous, Policy, label, params, parse_policy, spec
from worker.options import Server
from worker.profile import load_profile

# The study offered 0.5, 1, 2 and 4 requests a second to a machine that does 1.08 replies a second one at a time.
STUDY_LOADS = (0.5, 1.0, 2.0, 4.0)
STUDY_CAPACITY = 1.08
QUICK_LOADS = (1.0, 4.0)
QUICK_REQUESTS, QUICK_TOKENS = 16, 48
CPU_TOKENS, TOKENS, REQUESTS = 64, 128, 40
CALIBRATION_REQUESTS, VARIED_CALIBRATION_REQUESTS = 3, 8
START_UP_S = 2.0
CALIBRATION = "calibration"


@dataclass(frozen=True, slots=True)
class RushSettings:
    """Everything that decides what a rush measures; plain values, as they stand in its manifest.

    `rates` are requests per second, None to choose them from a calibration; `loads` are the study's loads to offer
    then. Every cell is measured once for each of `seeds`; `objectives` are what the records are held against. A `trace`
    takes the place of rates, arrivals and workload.
    `max_tokens` and `timeout` as in the command's help.
    """

    server: Server
    policies: tuple[str, ...]
    rates: tuple[float, ...] | None
    loads: tuple[float, ...]
    arrivals: str
    requests: int
    max_tokens: int
    ignore_eos: bool
    workload: str
    prompts: str | None
    seeds: tuple[int, ...]
    clients: int
    queue: int
    timeout: float | None
    share_prefix: bool = False
    drift_cell: bool = True
    objectives: tuple[str, ...] = ()
    trace: TraceSource | None = None

    @property
    def calibration_requests(self) -> int:
        """How many replies tell what one at a time can do: a few where all are alike, more where lengths differ."""
        alike = self.workload == "emails" and self.prompts is None
        return min(self.requests, CALIBRATION_REQUESTS) if alike else min(self.requests, VARIED_CALIBRATION_REQUESTS)

    def made_policies(self) -> list[Policy]:
        return [parse_policy(spec) for spec in self.policies]


@dataclass(frozen=True, slots=True)
class Offer:
    """An offered rate in requests per second (None: all at once), and the study's load it stands for, if any."""

    rate: float | None
    load: float | None


def named_policies(names: str, seats: int) -> tuple[str, ...]:
    """`one,static,continuous` as policy specs, with this many seats where seats are a setting."""
    return tuple(with_seats(part.strip(), seats) for part in names.split(","))


def with_seats(policy: str, seats: int) -> str:
    """A policy spec, with this many seats if they are a setting of its and it does not name them. Raises
    PolicyError."""
    made = parse_policy(policy)
    if seats == Continuous().seats or "seats" not in params(made) or "seats=" in policy:
        return policy
    return spec(replace(made, seats=seats))  # type: ignore[type-var]


def two_digits(value: float) -> float:
    """Rounded to two significant digits, as rates are offered."""
    return float(f"{value:.2g}")


def offers(settings: RushSettings, capacity: float | None) -> list[Offer] | None:
    """What is offered, slowest first; `capacity` is replies a second one at a time. None when it must be measured."""
    if settings.trace is not None:
        return [Offer(two_digits(read_trace(settings.trace).rate), None)]
    if settings.arrivals == "at-once":
        return [Offer(None, None)]
    if settings.rates is not None:
        return [Offer(rate, None) for rate in settings.rates]
    if capacity is None:
        return None
    return [Offer(two_digits(load / STUDY_CAPACITY * capacity), load) for load in settings.loads]


def cells(settings: RushSettings, offered: Sequence[Offer]) -> list[Cell]:
    """Every policy at every rate, one seed after another, policies interleaved: ABC at the first rate, CAB at the
    second, BCA at the third, and so on through the seeds."""
    policies = settings.made_policies()
    count = len(settings.seeds) * len(offered) * len(policies)
    made: list[Cell] = []
    for row, (seed, offer) in enumerate(product(settings.seeds, offered)):
        shift = -row % len(policies)
        for policy in policies[shift:] + policies[:shift]:
            made.append(_policy_cell(settings, number(len(made) + 1, count), policy, offer, seed))
    return made


def number(ordinal: int, count: int) -> str:
    """How the name of a cell begins: names in the order of their letters are in that of the run, also that of the
    repeated cell after `count` others."""
    return f"c{ordinal:0{max(2, len(str(count + 1)))}d}"


def _policy_cell(settings: RushSettings, number: str, policy: Policy, offer: Offer, seed: int) -> Cell:
    word = label(policy)
    file_word = word.replace(":", "-").replace(",", "-").replace("=", "")
    place = "all at once" if offer.rate is None else f"at {rate_text(offer.rate)}/s"
    file_place = "at-once" if offer.rate is None else f"{rate_text(offer.rate)}-per-s"
    if len(settings.seeds) > 1:
        place, file_place = f"{place}, seed {seed}", f"{file_place}-seed{seed}"
    return _cell(settings, f"{number}-{file_word}-{file_place}", f"{word} {place}", spec(policy), offer, seed)


def calibration_cell(settings: RushSettings) -> Cell:
    """Replies one at a time, all asked for at the start, every prompt read; no limit of the run's applies."""
    requests = settings.calibration_requests
    cell = _cell(
        settings, CALIBRATION, "calibration: one at a time, all at once", "one", Offer(None, None), settings.seeds[0]
    )
    return replace(cell, requests=requests, queue=max(settings.queue, requests), timeout=None, share_prefix=False)


def _cell(settings: RushSettings, name: str, label: str, policy: str, offer: Offer, seed: int) -> Cell:
    return Cell(
        name=name,
        label=label,
        policy=policy,
        requests=settings.requests,
        max_tokens=settings.max_tokens,
        rate=offer.rate,
        arrivals=settings.arrivals,
        seed=seed,
        workload=settings.workload,
        prompts=settings.prompts,
        trace=settings.trace,
        ignore_eos=settings.ignore_eos,
        share_prefix=settings.share_prefix,
        clients=settings.clients,
        queue=settings.queue,
        timeout=settings.timeout,
        labels={"load": offer.load},
    )


def rate_text(rate: float) -> str:
    """A rate in the fewest digits that tell it from every other."""
    return f"{rate:g}" if float(f"{rate:g}") == rate else repr(rate)


def drift_cell(planned: Sequence[Cell], settings: RushSettings, reply_s: float | None) -> tuple[Cell, Cell] | None:
    """The shortest cell, and its repetition at the end of the run, to see whether the machine has changed meanwhile."""
    if not settings.drift_cell or len(planned) < 2:
        return None
    shortest = min(planned, key=lambda cell: expected_s(cell, reply_s or 1.0))
    name = f"{number(len(planned) + 1, len(planned))}-drift"
    return shortest, replace(shortest, name=name, label=f"{shortest.label} (repeated)")


def expected_s(cell: Cell, reply_s: float) -> float:
    """Roughly how long a cell takes when one reply alone takes `reply_s` seconds.

    One at a time is a queue; for batches it takes the study's gain, 8 at once as fast as 2.1 and 64 as 3.5.
    """
    times = schedule(cell)
    free = 0.0
    gain = {"one": 1.0, "static": 2.1}.get(cell.policy.partition(":")[0], 3.5)
    for time in times:
        free = max(free, time) + reply_s / gain
    return START_UP_S + max(free, times[-1] + 2 * reply_s)


def schedule(cell: Cell) -> list[float]:
    """Intended times of the cell's requests, in seconds from zero."""
    return [seconds(time) for time in arrivals(cell)]


def arrivals(cell: Cell) -> tuple[int, ...]:
    """The same in nanoseconds."""
    if cell.trace is not None:
        return read_trace(cell.trace).times
    return arrival_times(
        ArrivalPlan("at-once" if cell.rate is None else cell.arrivals, cell.rate, cell.seed), cell.requests
    )


def prompts(cell: Cell) -> Sequence[Prompt]:
    """What the cell's requests ask, by id."""
    if cell.trace is not None:
        return TracePrompts(read_trace(cell.trace))
    file = Path(cell.prompts) if cell.prompts is not None else None
    return load_prompts(cell.workload, file, cell.requests, cell.max_tokens, cell.seed)


def minutes(total_s: float) -> str:
    """A duration in words, rounded up: nobody waits for a plan to the second."""
    return f"{math.ceil(total_s)} s" if total_s < 90 else f"{math.ceil(total_s / 60)} minutes"


def known_reply_s(settings: RushSettings) -> float | None:
    """One reply's time before anything was measured: from a profile, for a prompt as long as the study's."""
    if settings.server.engine != "paced":
        return None
    profile, prompt = load_profile(settings.server.profile), 60
    reply_s = profile.read_s(1, prompt) + settings.max_tokens * profile.decode_s(1, prompt)
    return reply_s or None
