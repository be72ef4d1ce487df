"""The crowd of a simulated cell: when requests come and what they ask, without a word of their prompts."""

from builtins import id as identity
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clients.traces import Trace
from clients.workloads import Prompt, expected_tokens, limits

REMEMBERED = 10_000


@dataclass(slots=True)
class Asked:
    """What the router and the machine must know of a request, named as in `protocol.messages.Submit`: a million of
    those, or of anything frozen, would take longer to make than to serve."""

    id: int
    user: str
    tokens: tuple[int, ...]
    max_tokens: int
    expected_tokens: int | None = None
    priority: int = 0
    deadline: float | None = None


class Crowd(Protocol):
    """Requests by id; `times` are their arrivals in nanoseconds, ascending."""

    @property
    def times(self) -> Sequence[int]: ...

    def requests(self) -> Iterator[Asked]: ...


@dataclass(frozen=True, slots=True)
class LikeCrowd:
    """Everyone asks for the same: a prompt and a reply of so many tokens."""

    times: Sequence[int]
    prompt_tokens: int
    max_tokens: int

    def requests(self) -> Iterator[Asked]:
        tokens = (0,) * self.prompt_tokens
        for id in range(len(self.times)):
            yield Asked(id, f"user-{id}", tokens, self.max_tokens)


@dataclass(frozen=True, slots=True)
class PromptedCrowd:
    """Everyone has a prompt; a token is a word. Replies are as long as they may be: there is no end of sequence."""

    times: Sequence[int]
    prompts: Sequence[Prompt]
    max_tokens: int

    def requests(self) -> Iterator[Asked]:
        tokens_of: dict[int, tuple[int, ...]] = {}  # by identity, as prompts come round again
        known: dict[int, tuple[Any, ...]] = {}
        for id, prompt in enumerate(self.prompts):
            asked = known.get(identity(prompt))
            if asked is None:
                asked = self._asked(prompt, tokens_of)
                if len(known) < REMEMBERED:
                    known[identity(prompt)] = asked
            tokens, most, expected, priority, deadline = asked
            yield Asked(id, prompt.user or f"user-{id}", tokens, most, expected, priority, deadline)

    def _asked(self, prompt: Prompt, tokens_of: dict[int, tuple[int, ...]]) -> tuple[Any, ...]:
        """What is the same whoever asks."""
        tokens = tokens_of.get(identity(prompt.turns))
        if tokens is None:
            tokens = tokens_of[identity(prompt.turns)] = (0,) * sum(len(t.content.split()) for t in prompt.turns)
        most, _ = limits(prompt, self.max_tokens, True)
        expected = expected_tokens(prompt, self.max_tokens, False)
        return tokens, most, expected, prompt.priority, prompt.deadline_s


@dataclass(frozen=True, slots=True)
class TraceCrowd:
    """Everyone in a trace."""

    trace: Trace

    @property
    def times(self) -> Sequence[int]:
        return self.trace.times

    def requests(self) -> Iterator[Asked]:
        longest = (0,) * max(request.prompt for request in self.trace.requests)
        for id, request in enumerate(self.trace.requests):
            yield Asked(id, f"user-{id}", longest[: request.prompt], request.reply, request.reply)
