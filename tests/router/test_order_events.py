"""The router's core under any order of events, with policies that do not take requests as they come."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from router.core import Core
from router.policies import parse_policy
from tests.router.test_core_events import CoreEvents

SPECS = (
    "shortest:seats=2,predictor=noisy:1",
    "priority:seats=1",
    "deadline:seats=2",
    "fair:seats=2",
    "budget:tokens=9",
)


class OrderEvents(CoreEvents):
    """All that holds for the others, but that the first to come is the first to board."""

    @initialize(spec=st.sampled_from(SPECS), queue=st.integers(1, 4), timeout=st.sampled_from([None, 0.7, 3.0]))
    def build(self, spec: str, queue: int, timeout: float | None) -> None:
        self.core = Core(parse_policy(spec), "cell", queue, timeout)
        self.come()

    def board(self, ids: list[int]) -> None:
        assert self.core.worker
        assert not set(ids) & (set(self.departed) | set(self.ends))
        for id in ids:
            self.departed[id] = self.aboard[id] = (self.now, self.admissions)
        self.admissions += 1


OrderEvents.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestOrderEvents = OrderEvents.TestCase
