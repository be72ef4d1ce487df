"""Whose turn is next among the waiting, by the order that a policy declares; each in O(log queue)."""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

from router.policies import Waiting

Request = TypeVar("Request", bound=Waiting)
Order = Callable[[Request, int], Any]


class Precedence(Generic[Request]):
    """The waiting in a heap for each user, and the first of each user in a heap of their own: what a user is served
    moves all of the user's requests at once.

    A user's place is looked up again when its turn comes, which is soon enough since an order only rises with what was
    served. Requests that no longer wait are dropped when their turn comes.
    """

    def __init__(self, order: Order[Request], waiting: Mapping[int, Request], served: Mapping[str, int]) -> None:
        """`waiting` by id and tokens `served` by user are the router's own, looked at again and again."""
        self._order, self._waiting, self._served = order, waiting, served
        self._new: list[Request] = []
        self._lines: dict[str, list[tuple[Any, int, Request]]] = {}
        self._fronts: list[tuple[Any, int, int, str, int]] = []
        self._shown: dict[str, int] = {}
        self._count = count()

    def add(self, request: Request) -> None:
        """One more waits. The policy is asked for its order when it next decides, not here."""
        self._new.append(request)

    def first(self, most: int) -> list[Request]:
        """The `most` that come first; of two alike, the one that came first."""
        for request in self._new:
            self._queue((self._order(request, 0), next(self._count), request))
        self._new.clear()
        found: list[tuple[Any, int, Request]] = []
        while len(found) < most and (place := self._take()) is not None:
            found.append(place)
        for place in found:
            self._queue(place)
        return [request for _, _, request in found]

    def _queue(self, place: tuple[Any, int, Request]) -> None:
        user = place[2].user
        line = self._lines.setdefault(user, [])
        heappush(line, place)
        if line[0] is place:
            self._show(user)

    def _take(self) -> tuple[Any, int, Request] | None:
        while self._fronts:
            _, _, shown, user, served = heappop(self._fronts)
            if self._shown.get(user) != shown:
                continue
            line = self._lines[user]
            gone = self._waiting.get(line[0][2].id) is not line[0][2]
            here = not gone and self._served.get(user, 0) == served
            place = heappop(line) if gone or here else None
            self._show(user)
            if here:
                return place
        return None

    def _show(self, user: str) -> None:
        """Put the first request of a user among those of the others, where it belongs now."""
        line = self._lines[user]
        if not line:
            del self._lines[user], self._shown[user]
            return
        _, arrival, request = line[0]
        served, self._shown[user] = self._served.get(user, 0), next(self._count)
        heappush(self._fronts, (self._order(request, served), arrival, self._shown[user], user, served))
