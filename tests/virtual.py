"""A rush in virtual time for tests: the product's stepwise simulation of one policy, its records and its figures."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.analysis import CellRecords, CellSummary, by_cell, summarise
from experiments.cell import QUEUE, Cell
from experiments.twin.cells import SimulatedServer, Simulation
from experiments.twin.crowd import LikeCrowd
from protocol.records import ClientRecord
from router.policies import Policy
from worker.profile import CostProfile, load_profile

CELL = "virtual"
STUDY_PROFILE = "qwen3-4b-4bit-m4max"
STUDY_PROMPT, STUDY_TOKENS, PREFILL_BATCH, PREFILL_STEP = 60, 128, 8, 2048


class VirtualRush:
    """One policy, requests at `arrivals` (nanoseconds), one worker; nothing takes time but the worker's steps."""

    def __init__(
        self,
        spec: str,
        arrivals: Sequence[int],
        profile: CostProfile | None = None,
        max_tokens: int = STUDY_TOKENS,
        timeout: float | None = None,
        policy: Policy | None = None,
        queue: int = QUEUE,
    ) -> None:
        """`spec` names the policy, unless one is given; without a `profile` the study's is used."""
        server = SimulatedServer(profile or load_profile(STUDY_PROFILE), PREFILL_BATCH, PREFILL_STEP, extrapolate=True)
        crowd = LikeCrowd(tuple(arrivals), STUDY_PROMPT, max_tokens)
        cell = Cell(CELL, spec, spec, len(arrivals), max_tokens, timeout=timeout, queue=queue)
        self.kept: dict[str, list[Any]] = {"client-0": [], "router": [], "worker": []}
        self.simulation = Simulation(cell, crowd, server, write=self._keep, policy=policy)

    def run(self) -> CellSummary:
        """From the first arrival to the last word."""
        self.simulation.run()
        return summarise(CELL, self.cell)

    def _keep(self, role: str, record: Any) -> None:
        """Without a plan: what a test says of rates and seeds is in its labels."""
        self.kept[role].append(replace(record, plan={}) if isinstance(record, ClientRecord) else record)

    @property
    def records(self) -> list[Any]:
        """What was recorded, the client's first."""
        return [record for records in self.kept.values() for record in records]

    @property
    def cell(self) -> CellRecords:
        """The same, merged."""
        return by_cell(self.records).get(CELL, CellRecords())
