"""Where two answers part, and whether rounding explains it."""

import pytest

from experiments.sameness import Difference, Sameness, compare, difference, near_tie, parting
from protocol.records import RequestRecord


def answer(id: int, *tokens: int, margins: tuple[float, ...] | None = None, end: str = "completed") -> RequestRecord:
    return RequestRecord("cell", id, tokens=tokens, margins=margins, end=end)


@pytest.mark.parametrize(
    ("one", "other", "place", "margin"),
    [
        (answer(1, 5, 6, 7, margins=(3.0, 0.001, 2.0)), answer(1, 5, 9, 7), 1, 0.001),
        (answer(1, 5), answer(1, 6), 0, None),
        (answer(1, 5, 6), answer(1, 5, 6, 7, margins=(3.0, 2.0, 0.5)), 2, 0.5),
        (answer(1), answer(1, 4, margins=(0.2,)), 0, 0.2),
    ],
)
def test_answers_part_at_the_first_token_that_differs(
    one: RequestRecord, other: RequestRecord, place: int, margin: float | None
) -> None:
    for found in (difference(one, other, "float32"), difference(other, one, "float32")):
        assert found is not None
        assert (found.id, found.token, found.margin) == (1, place, margin)
        assert found.near_tie == (None if margin is None else margin < 0.01)


def test_equal_answers_do_not_differ() -> None:
    assert difference(answer(1, 5, 6), answer(1, 5, 6), None) is None


def test_only_what_completed_in_both_is_compared() -> None:
    first = [answer(0, 1), answer(1, 2), answer(2, 3), answer(3, 4, end="failed")]
    again = [answer(2, 9, margins=(0.3,)), answer(0, 1), answer(1, 2, end="rejected"), answer(3, 4)]
    assert compare(first, again, "bfloat16") == Sameness(2, 1, (Difference(2, 0, 0.3, True),))


@pytest.mark.parametrize(
    ("dtype", "gap"), [("float32", 0.01), ("float32, 4-bit weights", 0.01), ("bfloat16", 0.5), (None, 0.5)]
)
def test_a_near_tie_depends_on_what_the_model_computes_in(dtype: str | None, gap: float) -> None:
    assert near_tie(dtype) == gap


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Difference(4, 7, 0.002, True), "prompt 4 parts at token 7 (margin 0.002, a near-tie that rounding decides)"),
        (Difference(5, 0, 2.5, False), "prompt 5 parts at token 0 (margin 2.5, more than rounding explains)"),
        (Difference(6, 1, None, None), "prompt 6 parts at token 1 (margin not recorded)"),
    ],
)
def test_a_person_reads_how_close_it_was(found: Difference, words: str) -> None:
    assert parting(found) == words
