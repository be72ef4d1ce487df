"""Precedence against looking at everybody: whatever comes, leaves and is served in between."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from router.precedence import Precedence
from tests.router.test_policies import Request

USERS = ("ann", "bob", "cyd")


@dataclass(frozen=True)
class Ordered:
    """By what was served, rising, and within that by class and time of receipt."""

    request: Request
    served: int

    @property
    def key(self) -> tuple[int, int, int]:
        return self.served, -self.request.priority, self.request.received


class Moves(RuleBasedStateMachine):
    """Keeps the waiting in order of arrival beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, Request] = {}
        self.served: dict[str, int] = {}
        self.came = 0
        self.precedence = Precedence[Request](
            lambda request, served: Ordered(request, served).key, self.waiting, self.served
        )

    @rule(user=st.sampled_from(USERS), priority=st.integers(0, 1), again=st.booleans())
    def come(self, user: str, priority: int, again: bool) -> None:
        """Also with the id of one that has left."""
        self.came += 1
        id = next((id for id in range(self.came) if id not in self.waiting), 0) if again else 1_000 + self.came
        self.waiting[id] = Request(id, self.came, user, priority)
        self.precedence.add(self.waiting[id])

    @rule(user=st.sampled_from(USERS), tokens=st.integers(1, 5))
    def serve(self, user: str, tokens: int) -> None:
        self.served[user] = self.served.get(user, 0) + tokens

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        del self.waiting[data.draw(st.sampled_from([*self.waiting]))]

    @rule(most=st.integers(-1, 3), admit=st.booleans())
    def look(self, most: int, admit: bool) -> None:
        everybody = sorted(
            self.waiting.values(), key=lambda r: (Ordered(r, self.served.get(r.user, 0)).key, r.received)
        )
        assert self.precedence.first(most) == everybody[: max(0, most)]
        for request in everybody[: max(0, most)] if admit else ():
            del self.waiting[request.id]


Moves.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMoves = Moves.TestCase
