"""Simulates one cell: a policy, a crowd and a cost profile in, records and figures out. Nothing here touches a disk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clients.traces import trace_facts
from experiments.analysis import CellRecords, CellSummary, by_cell, summarise
from experiments.cell import Cell
from experiments.load_state import load_state
from experiments.objectives import Objective
from experiments.twin.ahead import Ahead
from experiments.twin.costs import step_costs
from experiments.twin.crowd import Crowd
from experiments.twin.keeping import Columns, figures
from experiments.twin.machine import LeapingMachine
from experiments.twin.stepwise import Stepwise
from protocol.clock import seconds
from protocol.records import CellRecord, ClientRecord, QueueRecord, RouterRecord
from router.core import Core
from router.policies import Policy, params, parse_policy
from worker.paced import PacedMachine
from worker.profile import CostProfile, extended

# Up to so many tokens a cell is kept like a real run's: every step, every message, every word.
DETAILED_TOKENS = 100_000

Write = Callable[[str, Any], None]


class OutsideProfile(ValueError):
    """The simulation needs costs that were not measured; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """What serves in virtual time: as `worker.options.Server`, with the profile read. With `extrapolate` steps that the
    profile was not measured at cost what its outermost points lead to."""

    profile: CostProfile
    prefill_batch: int = 8
    prefill_step: int = 2048
    extrapolate: bool = False

    @property
    def costs(self) -> CostProfile:
        return extended(self.profile) if self.extrapolate else self.profile


@dataclass(slots=True)
class Simulation:
    """One cell: `write` gets (client-0, router or worker; record) for all but the requests of a large cell, which
    `write_requests` gets packed. A `policy` takes the place of the one that the cell names. `beyond` says
    afterwards what the profile was not measured at."""

    cell: Cell
    crowd: Crowd
    server: SimulatedServer
    objectives: Sequence[Objective] = ()
    write: Write = lambda role, record: None
    write_requests: Callable[[bytes], Any] | None = None
    policy: Policy | None = None
    beyond: str | None = field(default=None, init=False)

    def run(self) -> CellSummary:
        """The figures. Raises OutsideProfile, and PolicyFailed."""
        policy = self.policy or parse_policy(self.cell.policy)
        seats = max(policy.seats, self.server.prefill_batch)  # as the paced engine counts them
        return self._in_detail(policy, seats) if self.detailed else self._ahead(policy, seats)

    @property
    def detailed(self) -> bool:
        """Whether every token is kept."""
        if len(self.crowd.times) > DETAILED_TOKENS:
            return False
        return sum(request.max_tokens for request in self.crowd.requests()) <= DETAILED_TOKENS

    def _in_detail(self, policy: Policy, seats: int) -> CellSummary:
        """Step by step."""
        kept: dict[str, list[Any]] = {role: [] for role in ROLES}

        def write(role: str, record: Any) -> None:
            kept[role].append(record)
            self.write(role, record)

        core = Core(policy, self.cell.name, self.cell.queue, self.cell.timeout)
        server = self.server
        machine = PacedMachine(server.costs, seats, server.prefill_batch, server.prefill_step, server.profile)
        for role, head in self._heads(policy).items():
            write(role, head)
        driver = Stepwise(core, self.crowd, machine, write)
        driver.run()
        write("router", self._queue_record(core))
        write("worker", self._account(driver.steps, machine.clamped))
        cell = by_cell([record for records in kept.values() for record in records])[self.cell.name]
        return replace(summarise(self.cell.name, cell, self.objectives), load_state=load_state(cell))

    def _ahead(self, policy: Policy, seats: int) -> CellSummary:
        """From event to event."""
        heads = self._heads(policy)
        for role, head in heads.items():
            self.write(role, head)
        server, columns = self.server, Columns(self.cell.name, self.write_requests)
        costs = step_costs(server.costs, server.profile)
        machine = LeapingMachine(costs, seats, server.prefill_batch, server.prefill_step)
        driver = Ahead(policy, self.cell.name, self.crowd, machine, self.cell.queue, self.cell.timeout, columns.keep)
        driver.run()
        columns.flush()
        gap_s = seconds(machine.longest_gap) if machine.longest_gap else None
        queue = self._queue_record(driver.core)
        account = self._account(machine.steps, machine.unmeasured, held=machine.held, longest_gap_s=gap_s)
        self.write("router", queue)
        self.write("worker", account)
        cell = CellRecords(heads["router"], queue, [heads["client-0"]], account)
        return figures(self.cell.name, cell, columns, self.objectives)

    def _heads(self, policy: Policy) -> dict[str, Any]:
        """What the router and the one client write first."""
        cell, times = self.cell, self.crowd.times
        labels = {"label": cell.label, "rate": cell.rate, "seed": cell.seed, "requests": len(times)} | dict(cell.labels)
        router = RouterRecord(cell.name, policy.name, params(policy), cell.queue, cell.timeout, 1, "simulated", labels)
        client = ClientRecord(cell.name, 0, 1, len(times), 0, 0, _plan(cell), tuple(range(len(times))), tuple(times))
        return {"client-0": client, "router": router}

    def _queue_record(self, core: Core) -> QueueRecord:
        # A million waiting for a day are more than the 64 bits of a record's whole number.
        area: Any = core.queue_area if core.queue_area < 2**64 else float(core.queue_area)
        return QueueRecord(self.cell.name, area, core.longest_queue, 0, None)

    def _account(self, steps: int, unmeasured: int, **more: Any) -> CellRecord:
        """The worker's. Raises OutsideProfile."""
        if unmeasured:
            name, known = self.server.profile.name, self.server.profile.range
            share = f"{self.cell.label}: {unmeasured:,} of {steps:,} steps lie outside what"
            if not self.server.extrapolate:
                said = f"{share} {name} was measured at ({known}); measure more, or go on with --extrapolate"
                raise OutsideProfile(said)
            self.beyond = f"{share} was measured ({known}); their costs are extrapolated."
        facts = {"engine": "simulated", "model": self.server.profile.name, "device": "none"}
        return CellRecord(self.cell.name, steps, None, None, None, facts | {"clamped_steps": unmeasured} | more)


ROLES = ("client-0", "router", "worker")


def _plan(cell: Cell) -> dict[str, Any]:
    """How the schedule was made, as a client's head line says it."""
    if cell.trace is not None:
        return {**trace_facts(cell.trace), "max_tokens": cell.max_tokens}
    return {
        "arrivals": "at-once" if cell.rate is None else cell.arrivals, "rate": cell.rate, "seed": cell.seed,
        "workload": cell.prompts or cell.workload, "max_tokens": cell.max_tokens, "ignore_eos": cell.ignore_eos,
        "share_prefix": False,
    }  # fmt: skip
