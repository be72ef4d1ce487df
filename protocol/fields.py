"""What a field of a message may hold: checks that turn decoded msgpack into trusted values, or raise `BadMessage`.

msgpack's arrays come as tuples.
"""

import math
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], Any]

MAX_ID = 2**53
MAX_TIME = 2**63 - 1


class BadMessage(ValueError):
    """What a peer sent is not a message of this protocol."""


def integer(low: int = 0, high: int = MAX_TIME) -> Check:
    """A whole number in [low, high]; never a bool."""

    def check(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise BadMessage(f"not a whole number from {low} to {high}: {shown(value)}")

    return check


def real(low: float, high: float) -> Check:
    """A finite number in [low, high]; whole numbers are taken as floats."""

    def check(value: Any) -> float:
        if type(value) in (int, float) and low <= value <= high:
            return float(value)
        raise BadMessage(f"not a number from {low} to {high}: {shown(value)}")

    return check


def boolean() -> Check:
    """True or false."""

    def check(value: Any) -> bool:
        if type(value) is bool:
            return value
        raise BadMessage(f"not true or false: {shown(value)}")

    return check


def text(longest: int = 1024) -> Check:
    """A string of at most `longest` characters."""

    def check(value: Any) -> str:
        if type(value) is str and len(value) <= longest:
            return value
        raise BadMessage(f"not a text of at most {longest} characters: {shown(value)}")

    return check


def one_of(*words: str) -> Check:
    """One of the given words."""

    def check(value: Any) -> str:
        if type(value) is str and value in words:
            return value
        raise BadMessage(f"not one of {', '.join(words)}: {shown(value)}")

    return check


def optional(inner: Check) -> Check:
    """Nothing, or what `inner` takes."""

    def check(value: Any) -> Any:
        return None if value is None else inner(value)

    return check


def array(inner: Check, longest: int) -> Check:
    """A tuple of at most `longest` values that `inner` takes."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and len(value) <= longest:
            return tuple(map(inner, value))
        raise BadMessage(f"not a list of at most {longest} items: {shown(value)}")

    return check


def integers(longest: int, high: int = MAX_ID, shortest: int = 0) -> Check:
    """A tuple of `shortest` to `longest` whole numbers in [0, high], checked as a whole: token lists are long."""

    def check(value: Any) -> tuple[int, ...]:
        if type(value) is not tuple or not shortest <= len(value) <= longest:
            raise BadMessage(f"not a list of {shortest} to {longest} whole numbers: {shown(value)}")
        if len(value) == 1 and type(value[0]) is int and 0 <= value[0] <= high:
            return value  # the one token of a row: as nearly always, and much the quickest
        if value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) > high):
            raise BadMessage(f"not whole numbers from 0 to {high}: {shown(value)}")
        return value

    return check


def facts(most: int = 64) -> Check:
    """A flat map from names to plain values: what a role says about itself, for manifests."""
    name, plain = text(64), (str, int, float, bool, type(None))

    def check(value: Any) -> dict[str, Any]:
        if type(value) is not dict or len(value) > most:
            raise BadMessage(f"not a map of at most {most} facts: {shown(value)}")
        for key, item in value.items():
            name(key)
            if type(item) not in plain or (type(item) is str and len(item) > 4096):
                raise BadMessage(f"not a plain fact: {shown(item)}")
            if type(item) is float and not math.isfinite(item):
                raise BadMessage(f"not a finite fact: {shown(item)}")
        return value

    return check


def shown(value: Any) -> str:
    """A value from a peer, short enough for an error line."""
    words = repr(value) if isinstance(value, (int, float, bool, type(None))) else type(value).__name__
    return words if len(words) <= 60 else words[:57] + "..."
