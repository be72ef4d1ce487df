"""What an engine is: something that reads prompts and writes replies for many requests at once, a step at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from protocol.messages import ChatTurn, Row, Submit


class CannotServe(Exception):
    """The engine cannot do what the router asks for; one line that says why."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step did: rows that decoded, prompts read in it (`(id, tokens read)`), what each request got, and
    prompt tokens that were found in the prefix cache (`(id, tokens)`)."""

    decoding: int
    read: tuple[tuple[int, int], ...]
    rows: tuple[Row, ...]
    reused: tuple[tuple[int, int], ...] = ()


class Engine(Protocol):
    """Built, driven and closed by one thread. Only `step` takes long."""

    @property
    def context(self) -> int:
        """Longest prompt plus reply, in tokens."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest should say: model, engine, device, type, BLAS; flat."""

    @property
    def in_flight(self) -> int:
        """Requests inserted and not yet finished or removed."""

    def tokenize(self, conversations: Sequence[Sequence[ChatTurn]]) -> list[list[int]]:
        """Prompt tokens of each conversation, chat template applied. Raises ValueError for one it cannot take."""

    def insert(self, requests: Sequence[Submit]) -> None:
        """Take these requests together. Raises ValueError, before anything changes, if one cannot be taken."""

    def remove(self, ids: Iterable[int]) -> None:
        """Forget these requests at once; unknown ids are ignored."""

    def step(self) -> StepOutcome:
        """One decode of every row and one chunk of prompt reading. Raises RuntimeError if the engine broke: every
        request in it is lost and `reset` must follow."""

    def warm_up(self, seats: int, prompt_lengths: Sequence[int]) -> None:
        """Do what the first real requests must not pay for; leaves the engine empty. Raises CannotServe when it
        cannot serve so many at once."""

    def reset(self) -> None:
        """Empty the engine: nothing in flight, no prefix kept, memory peaks forgotten."""

    def peak_memory(self) -> int | None:
        """Largest memory in use since `reset`, in bytes; None where the engine has no such figure."""

    def close(self) -> None:
        """Give back what the engine holds."""
