"""Who may enter, and when to look again: the admission policies. Pure: a decision follows from `now` and the view."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, ClassVar, Protocol

from protocol.clock import nanoseconds


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

    @property
    def running(self) -> Collection[Running]:
        """Everyone who was admitted and has not ended, in order of admission."""

    @property
    def free(self) -> int:
        """Seats that can still be given out."""

    @property
    def served(self) -> Mapping[str, int]:
        """Tokens written so far for each user."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids to admit together, in this order; ids to reject, with the reason; when to ask again if nothing happens."""

    admit: tuple[int, ...] = ()
    reject: tuple[tuple[int, str], ...] = ()
    wake_at: int | None = None


NOTHING = Decision()


class Policy(Protocol):
    """One way to admit. `seats` is how many requests it ever has running at once."""

    name: ClassVar[str]

    @property
    def seats(self) -> int: ...

    def decide(self, now: int, view: View) -> Decision: ...


def oldest(view: View, most: int) -> tuple[int, ...]:
    """Ids of the `most` requests that have waited longest."""
    return tuple([request.id for request in islice(view.waiting, most)])


@dataclass(frozen=True, slots=True)
class OneAtATime:
    """One at a time: the next request starts when the last one has finished."""

    name: ClassVar[str] = "one"
    seats: ClassVar[int] = 1

    def decide(self, now: int, view: View) -> Decision:
        return NOTHING if view.running else Decision(oldest(view, 1))


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
            return Decision(oldest(view, self.n))
        leaves = next(iter(view.waiting)).received + nanoseconds(self.wait)
        return Decision(oldest(view, self.n)) if now >= leaves else Decision(wake_at=leaves)


@dataclass(frozen=True, slots=True)
class Continuous:
    """Continuous batching: whoever waits joins before the next step, as long as one of the `seats` is free."""

    name: ClassVar[str] = "continuous"
    seats: int = 64

    def decide(self, now: int, view: View) -> Decision:
        return Decision(oldest(view, view.free))


POLICIES: dict[str, type[Any]] = {policy.name: policy for policy in (OneAtATime, Static, Continuous)}
LIMITS = {"n": (1, 100_000), "seats": (1, 100_000), "wait": (0, 86_400)}


class PolicyError(ValueError):
    """A policy that cannot be had, or that decided what it may not; one line that says what to do."""


def parse_policy(spec: str) -> Policy:
    """A policy from `NAME` or `NAME:key=value,key=value`. Raises PolicyError naming what is known."""
    name, colon, rest = spec.partition(":")
    kind = POLICIES.get(name)
    if kind is None:
        raise PolicyError(f"unknown policy {name!r}; choose from {', '.join(POLICIES)}")
    pairs = [pair.partition("=") for pair in rest.split(",")] if colon else []
    known = {field.name: field.type for field in fields(kind)}
    values: dict[str, int | float] = {}
    for key, _, text in pairs:
        if key not in known:
            raise PolicyError(f"policy {name} has no {key!r}; it takes {', '.join(known) or 'no settings'}")
        if key in values:
            raise PolicyError(f"policy {name}: {key} is given twice")
        values[key] = _number(name, key, text, whole=known[key] is int)
    made: Policy = kind(**values)
    return made


def params(policy: Policy) -> dict[str, int | float]:
    """A policy's settings by name, as `parse_policy` takes them."""
    return {field.name: getattr(policy, field.name) for field in fields(type(policy))}  # type: ignore[arg-type]


def label(policy: Policy) -> str:
    """A policy in one word: its name and the settings that differ from the default."""
    default = params(type(policy)())
    return _written(policy, {key: value for key, value in params(policy).items() if value != default[key]})


def spec(policy: Policy) -> str:
    """A policy as `parse_policy` takes it, with every setting."""
    return _written(policy, params(policy))


def _written(policy: Policy, settings: Mapping[str, int | float]) -> str:
    """Numbers are written in full: the router reads them back."""
    words = [f"{key}={value!r}".removesuffix(".0") for key, value in settings.items()]
    return policy.name + (":" + ",".join(words) if words else "")


def _number(name: str, key: str, text: str, whole: bool) -> int | float:
    low, high = LIMITS[key]
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise PolicyError(f"policy {name}: {key} is {kind} from {low} to {high}, not {text!r}")
    return value
