"""Who reads a prompt's shared start, and who brings its cache along: read once for all, however many come at once."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.messages import Submit
from worker.prefix_cache import PrefixCache, Tokens


@dataclass(frozen=True, slots=True)
class Boarding:
    """A request on its way into the engine. The first `reused` tokens of its prompt are in `cache`, which is shared
    and holds `surplus` tokens more than that; the first `keep` tokens are to be kept once they are read."""

    request: Submit
    reused: int = 0
    cache: Any = None
    surplus: int = 0
    keep: int = 0


@dataclass(slots=True)
class SharedPrefixes:
    """The prefix cache, and the requests that wait until another one has read what they share. Pure."""

    kept: PrefixCache
    hits: int = field(default=0, init=False)
    misses: int = field(default=0, init=False)
    _waiting: dict[Tokens, list[Submit]] = field(default_factory=dict, init=False)

    @property
    def waiting(self) -> set[int]:
        """Ids of the requests that wait for another one to read."""
        return {request.id for requests in self._waiting.values() for request in requests}

    def board(self, requests: Iterable[Submit]) -> list[Boarding]:
        """Those of the requests that go in now, in order; the others wait for one that reads their start."""
        return [boarding for request in requests for boarding in self._board(request)]

    def _board(self, request: Submit) -> list[Boarding]:
        shared = shared_start(request)
        if not shared or not self.kept.capacity:
            return [Boarding(request)]
        if shared in self._waiting:
            self._waiting[shared].append(request)
            return []
        found = self.kept.find(request.tokens)
        if found.length < len(shared):
            self.misses += 1
            self._waiting[shared] = []
            return [_bringing(request, found.length, found.cache, keep=len(shared))]
        self.hits += 1
        return [_bringing(request, found.length, found.cache)]

    def read(self, shared: Sequence[int], cache: Any, size: int) -> list[Boarding]:
        """A shared start has been read: keep its cache of `size` bytes; whoever waited for it goes in."""
        self.kept.put(shared, cache, size)
        waited = self._waiting.pop(tuple(shared), [])
        self.hits += len(waited)
        return [_bringing(request, len(shared), cache) for request in waited]

    def given_up(self, shared: Sequence[int]) -> list[Boarding]:
        """The request that read this start has left before it was done; of those that waited one reads it now."""
        return self.board(self._waiting.pop(tuple(shared), []))

    def remove(self, ids: Collection[int]) -> None:
        """Forget these, if they wait."""
        for shared, requests in self._waiting.items():
            self._waiting[shared] = [request for request in requests if request.id not in ids]

    def clear(self) -> None:
        """Forget every request, every cache and every count."""
        self.kept.clear()
        self._waiting.clear()
        self.hits = self.misses = 0


def shared_start(request: Submit) -> Tokens:
    """The tokens that a request shares with others; its last one never counts, because it has to be decoded."""
    return request.tokens[: min(request.prefix, len(request.tokens) - 1)]


def _bringing(request: Submit, length: int, cache: Any, keep: int = 0) -> Boarding:
    """Whatever was found, the last token of the prompt is left to decode."""
    reused = min(length, len(request.tokens) - 1)
    return Boarding(request, reused, cache, length - reused, keep)
