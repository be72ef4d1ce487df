"""Who may enter, and when to look again: the admission policies. Pure: a decision follows from `now` and the view."""

import math
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol, get_type_hints

from protocol.clock import nanoseconds
from router import policy_files

Setting = int | float | str


class Waiting(Protocol):
    """A request in the queue, as a policy sees it; times in nanoseconds, lengths in tokens."""

    @property
    def id(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def received(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def expected_tokens(self) -> int | None: ...


class Running(Waiting, Protocol):
    """A request that was admitted and has not ended."""

    @property
    def written(self) -> int: ...
    @property
    def unread(self) -> int: ...


class View(Protocol):
    """What a policy may look at: the router's own state, read only, never a copy."""

    @property
    def waiting(self) -> Collection[Waiting]:
        """The queue, in order of arrival; the oldest is the first of its iteration, in constant time."""

    def first(self, most: int) -> Sequence[Waiting]:
        """The `most` waiting requests whose turn is next: by the policy's `order` if it has one, else by arrival."""

    @property
    def running(self) -> Collection[Running]:
        """Everyone who was admitted and has not ended, in order of admission."""

    @property
    def free(self) -> int:
        """Seats that can still be given out."""

    @property
    def served(self) -> Mapping[str, int]:
        """Tokens written so far for each user."""


class Decision(NamedTuple):
    """Ids to admit together, in this order; ids to reject, with the reason; when to ask again if nothing happens."""

    admit: tuple[int, ...] = ()
    reject: tuple[tuple[int, str], ...] = ()
    wake_at: int | None = None


NOTHING = Decision()


class Policy(Protocol):
    """One way to admit. `seats` is how many requests it ever has running at once.

    One that does not take requests as they come has also `order(request, served)`: of two waiting requests the one for
    which it is smaller comes first in `View.first`. `served` is the tokens written for the request's user; with it an
    order may rise, the same for all requests of the user. It depends on nothing else that changes: ageing is an order
    that begins at the time of receipt, so that two requests never change places.
    """

    name: ClassVar[str]

    @property
    def seats(self) -> int: ...

    def decide(self, now: int, view: View) -> Decision: ...


_id: Callable[[Waiting], int] = attrgetter("id")


def ids(requests: Iterable[Waiting]) -> tuple[int, ...]:
    """Their ids, in the same order."""
    return tuple(map(_id, requests))


# --- in order of arrival ---


@dataclass(frozen=True, slots=True)
class OneAtATime:
    """One at a time: the next request starts when the last one has finished."""

    name: ClassVar[str] = "one"
    seats: ClassVar[int] = 1

    def decide(self, now: int, view: View) -> Decision:
        return NOTHING if view.running else Decision(ids(view.first(1)))


@dataclass(frozen=True, slots=True)
class Static:
    """Static batches: leaves with `n` requests or when the oldest has waited `wait` seconds, and takes nobody new
    until every reply aboard has ended."""

    name: ClassVar[str] = "static"
    n: int = 8
    wait: float = 0.5

    @property
    def seats(self) -> int:
        return self.n

    def decide(self, now: int, view: View) -> Decision:
        if view.running or not view.waiting:
            return NOTHING
        if len(view.waiting) >= self.n:
            return Decision(ids(view.first(self.n)))
        leaves = next(iter(view.waiting)).received + nanoseconds(self.wait)
        return Decision(ids(view.first(self.n))) if now >= leaves else Decision(wake_at=leaves)


@dataclass(frozen=True, slots=True)
class Continuous:
    """Continuous batching: whoever waits joins before the next step, as long as one of the `seats` is free."""

    name: ClassVar[str] = "continuous"
    seats: int = 64

    def decide(self, now: int, view: View) -> Decision:
        first = view.first(view.free)
        return Decision(ids(first)) if first else NOTHING


@dataclass(frozen=True, slots=True)
class Budget(Continuous):
    """Reading budget: continuous, but prompts that are being read have at most `tokens` left to read in all, unless it
    is one alone."""

    name: ClassVar[str] = "budget"
    tokens: int = 2_048

    def decide(self, now: int, view: View) -> Decision:
        unread, admitted = sum([request.unread for request in view.running]), []
        for request in view.first(view.free):
            if unread and unread + request.prompt_tokens > self.tokens:
                break
            unread += request.prompt_tokens
            admitted.append(request)
        return Decision(ids(admitted))


# --- in an order of their own ---


@dataclass(frozen=True, slots=True)
class Shortest(Continuous):
    """Shortest first: continuous, but short replies go first, by `predictor`: oracle (the length that the client knows,
    else the longest allowed), noisy:SIGMA (that with a lognormal error) or prompt (the prompt's length); a token more
    outweighs `patience` seconds of waiting.

    Nobody starves: of a request predicted to write n tokens only those get ahead that come less than `patience` x n
    seconds after it.
    """

    name: ClassVar[str] = "shortest"
    predictor: str = "oracle"
    patience: float = 0.1

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown predictor."""
        if not re.fullmatch(r"oracle|prompt|noisy:\d{1,2}(\.\d+)?", self.predictor):
            raise ValueError(f"predictor is oracle, prompt or noisy:SIGMA such as noisy:0.5, not {self.predictor!r}")

    def order(self, request: Waiting, served: int) -> int:
        return request.received + round(nanoseconds(self.patience) * self.predicted(request))

    def predicted(self, request: Waiting) -> float:
        """Tokens. The error follows from the request's id: the same in every run, and in virtual time."""
        if self.predictor == "prompt":
            return request.prompt_tokens
        sigma = float(self.predictor.partition(":")[2] or 0)
        error = random.Random(request.id).lognormvariate(0, sigma) if sigma else 1
        return likely_tokens(request) * error


@dataclass(frozen=True, slots=True)
class Priority(Continuous):
    """By class: continuous, but the highest `priority` goes first; a class more outweighs `patience` seconds waited.

    Nobody starves: of a request only those get ahead that come less than `patience` seconds after it for each class
    that they are above it.
    """

    name: ClassVar[str] = "priority"
    patience: float = 10.0

    def order(self, request: Waiting, served: int) -> int:
        return request.received - request.priority * nanoseconds(self.patience)


@dataclass(frozen=True, slots=True)
class Deadline(Continuous):
    """By deadline: continuous, but whoever must start soonest goes first, and whoever cannot make it any more is
    rejected at once; a token takes `pace` seconds at best.

    With a pace of 0 this is the earliest deadline first, and only a deadline that is over is hopeless. Requests without
    a deadline come last.
    """

    name: ClassVar[str] = "deadline"
    pace: float = 0.0

    def order(self, request: Waiting, served: int) -> float:
        return self.latest_start(request)

    def decide(self, now: int, view: View) -> Decision:
        hopeless = self._hopeless(now, view)
        rest = view.first(len(hopeless) + view.free + 1)[len(hopeless) :]
        return Decision(
            admit=ids(rest[: view.free]),
            reject=tuple([(request.id, self._words(request)) for request in hopeless]),
            wake_at=self._after(rest[view.free :]),
        )

    def latest_start(self, request: Waiting) -> float:
        """In nanoseconds; never over without a deadline."""
        if request.deadline is None:
            return math.inf
        return request.received + nanoseconds(request.deadline) - nanoseconds(self.pace) * likely_tokens(request)

    def _hopeless(self, now: int, view: View) -> list[Waiting]:
        """They are the first of the queue; nearly always there is none, so few are looked at before many."""
        looked_at = 1
        while True:
            late = [request for request in view.first(looked_at) if self.latest_start(request) < now]
            if len(late) < looked_at:
                return late
            looked_at *= 2

    def _after(self, next_one: Sequence[Waiting]) -> int | None:
        """When the first that is left behind becomes hopeless."""
        latest = self.latest_start(next_one[0]) if next_one else math.inf
        return None if latest == math.inf else int(latest) + 1

    def _words(self, request: Waiting) -> str:
        at_pace = f" with {self.pace:g} s for each of {likely_tokens(request)} tokens" if self.pace else ""
        return f"hopeless: its deadline, {request.deadline:g} s after receipt, cannot be met any more{at_pace}"


@dataclass(frozen=True, slots=True)
class Fair(Continuous):
    """Fair shares: continuous, but a free seat goes to the user for whom the fewest tokens were written so far.

    While two users both have requests waiting, none gets further ahead of the other than by the longest replies in all
    `seats`. One who comes late goes first until that is made up for.
    """

    name: ClassVar[str] = "fair"

    def order(self, request: Waiting, served: int) -> tuple[int, int]:
        return served, request.received


def likely_tokens(request: Waiting) -> int:
    """The length of the reply as far as it was announced, else the longest allowed."""
    return request.max_tokens if request.expected_tokens is None else request.expected_tokens


POLICIES: dict[str, type[Any]] = {
    policy.name: policy for policy in (OneAtATime, Static, Continuous, Shortest, Priority, Deadline, Fair, Budget)
}
LIMITS = {
    "n": (1, 100_000),
    "seats": (1, 100_000),
    "wait": (0, 86_400),
    "tokens": (1, 2**20),
    "patience": (0, 86_400),
    "pace": (0, 3_600),
}
UNLIMITED = (-math.inf, math.inf)


class PolicyError(ValueError):
    """A policy that cannot be had, or that decided what it may not; one line that says what to do."""


def parse_policy(spec: str) -> Policy:
    """A policy from `NAME`, `NAME:key=value,key=value` or, of a user's own, `FILE.py:CLASS:key=value`. Raises
    PolicyError naming what is known."""
    kind, rest = _kind(spec)
    name, known = kind.name, settings(kind)
    values: dict[str, Setting] = {}
    for key, _, text in [pair.partition("=") for pair in rest.split(",")] if rest is not None else []:
        if key not in known:
            raise PolicyError(f"policy {name} has no {key!r}; it takes {', '.join(known) or 'no settings'}")
        if key in values:
            raise PolicyError(f"policy {name}: {key} is given twice")
        values[key] = _word(name, key, text) if known[key] is str else _number(name, key, text, known[key] is int)
    try:
        made: Policy = kind(**values)
    except ValueError as error:
        raise PolicyError(f"policy {name}: {error}") from None
    return made


def _kind(spec: str) -> tuple[type[Any], str | None]:
    """The class that is meant, and its settings as they were given, if any."""
    file, name = policy_file(spec), spec
    if file is not None:
        name = spec.removeprefix(f"{file}:")
    name, colon, rest = name.partition(":")
    if file is not None:
        return _own(file, name), rest if colon else None
    if name not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}; choose from {', '.join(POLICIES)}, or write FILE.py:CLASS")
    return POLICIES[name], rest if colon else None


def _own(file: str, name: str) -> type[Any]:
    try:
        kind = policy_files.load(file, name)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    if kind.name in POLICIES:
        raise PolicyError(f"{file}: class {name} has the name {kind.name!r}, which is taken; give it another")
    return kind


def policy_file(spec: str) -> str | None:
    """The file of a user's own policy; None for one that is named."""
    file, own, _ = spec.partition(".py:")
    return f"{file}.py" if own else None


def settings(kind: type[Any]) -> dict[str, type]:
    """A policy's settings by name, with their types."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def params(policy: Policy) -> dict[str, Setting]:
    """A policy's settings by name, as `parse_policy` takes them."""
    return {field.name: getattr(policy, field.name) for field in fields(type(policy))}  # type: ignore[arg-type]


def label(policy: Policy) -> str:
    """A policy in one word: its name and the settings that differ from the default."""
    default = params(type(policy)())
    return written(policy.name, {key: value for key, value in params(policy).items() if value != default[key]})


def spec(policy: Policy) -> str:
    """A policy as `parse_policy` takes it, with every setting."""
    kind = type(policy)
    known = POLICIES.get(policy.name) is kind
    return written(policy.name if known else f"{policy_files.file_of(kind)}:{kind.__name__}", params(policy))


def written(name: str, settings: Mapping[str, Setting]) -> str:
    """A policy's name with these settings. Numbers are written in full: the router reads them back."""
    words = [f"{key}={value if isinstance(value, str) else repr(value)}" for key, value in settings.items()]
    return name + (":" + ",".join([word.removesuffix(".0") for word in words]) if words else "")


def _word(name: str, key: str, text: str) -> str:
    if not re.fullmatch(r"[\w.:+-]+", text):
        raise PolicyError(f"policy {name}: {key} is a word, not {text!r}")
    return text


def _number(name: str, key: str, text: str, whole: bool) -> int | float:
    low, high = LIMITS.get(key, UNLIMITED)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        bounds = f" from {low} to {high}" if key in LIMITS else ""
        raise PolicyError(f"policy {name}: {key} is {kind}{bounds}, not {text!r}")
    return value
