"""What was read once and is needed again: the caches of prompts' shared starts, the least recently used given up."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The longest kept start of a prompt: how many of its tokens, and their cache, which nobody may change."""

    length: int
    cache: Any


NOTHING = Found(0, None)


@dataclass(slots=True)
class PrefixCache:
    """Caches by the tokens that they stand for, `capacity` bytes of them at most. A hit makes an entry the newest."""

    capacity: int
    bytes: int = field(default=0, init=False)
    evicted: int = field(default=0, init=False)
    _entries: OrderedDict[Tokens, tuple[Any, int]] = field(default_factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, tokens: Sequence[int]) -> Found:
        """The longest entry with which `tokens` begins, `NOTHING` if there is none."""
        prompt = tuple(tokens)
        for length in sorted({len(key) for key in self._entries}, reverse=True):
            key = prompt[:length]
            if key in self._entries:
                self._entries.move_to_end(key)
                return Found(len(key), self._entries[key][0])
        return NOTHING

    def put(self, tokens: Sequence[int], cache: Any, size: int) -> None:
        """Keep a cache of `size` bytes, and give up the entries longest unused to make room; one that is larger than
        the whole capacity is not kept."""
        key = tuple(tokens)
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
        if size > self.capacity:
            return
        while self.bytes + size > self.capacity:
            self.bytes -= self._entries.popitem(last=False)[1][1]
            self.evicted += 1
        self._entries[key] = (cache, size)
        self.bytes += size

    def clear(self) -> None:
        """Forget everything, counts too."""
        self._entries.clear()
        self.bytes = self.evicted = 0
