"""Whether the same prompts got the same answers twice, and where they part how close the choice was."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from protocol.records import RequestRecord

# Logits closer than this are decided by the order in which numbers were added up. Measured on float32; 16-bit logits of
# about 20 lie 0.016 to 0.125 apart, so a difference of few of their steps is nothing.
NEAR_TIE = {"float32": 0.01}
NEAR_TIE_16_BIT = 0.5


@dataclass(frozen=True, slots=True)
class Difference:
    """One prompt whose answers differ: at which token first (from 0), and the gap in logits between the two best
    candidates there; None where it was not recorded."""

    id: int
    token: int
    margin: float | None
    near_tie: bool | None


@dataclass(frozen=True, slots=True)
class Sameness:
    """Answers compared, how many were the same, and the others."""

    compared: int
    same: int
    differences: tuple[Difference, ...]


def compare(first: Sequence[RequestRecord], again: Sequence[RequestRecord], dtype: str | None) -> Sameness:
    """The answers to the same prompts, matched by request id; what did not complete in both is left out."""
    others = {request.id: request for request in again if request.end == "completed"}
    pairs = [(one, others[one.id]) for one in first if one.end == "completed" and one.id in others]
    found = [difference(one, other, dtype) for one, other in pairs]
    differences = tuple(each for each in found if each is not None)
    return Sameness(len(pairs), len(pairs) - len(differences), differences)


def difference(one: RequestRecord, other: RequestRecord, dtype: str | None) -> Difference | None:
    """Where two answers to one prompt part, None if they never do. The token that ends a reply counts."""
    tokens = zip_longest(one.tokens or (), other.tokens or ())
    place = next((i for i, (a, b) in enumerate(tokens) if a != b), None)
    if place is None:
        return None
    known = [margins[place] for margins in (one.margins or (), other.margins or ()) if len(margins) > place]
    margin = min(known, default=None)
    return Difference(one.id, place, margin, None if margin is None else margin < near_tie(dtype))


def near_tie(dtype: str | None) -> float:
    """The gap in logits below which a choice is a matter of rounding, for the type that a model computes in."""
    return NEAR_TIE.get((dtype or "").partition(",")[0], NEAR_TIE_16_BIT)


def parting(each: Difference) -> str:
    """Where two answers part, and how close it was, in words."""
    how = "margin not recorded" if each.margin is None else f"margin {each.margin:.3g}"
    tie = {True: ", a near-tie that rounding decides", False: ", more than rounding explains", None: ""}
    return f"prompt {each.id} parts at token {each.token} ({how}{tie[each.near_tie]})"
