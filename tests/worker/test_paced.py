"""The paced machine steps as mlx-lm's batch generator does, and every step costs what the profile says."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.clock import MS, SECOND
from protocol.messages import ChatTurn, Row, Submit
from worker.engine import StepOutcome
from worker.paced import CONTEXT, PacedEngine, PacedMachine
from worker.profile import CostProfile, DecodePoint, ReadCost, load_profile

pytestmark = pytest.mark.alone

# One row 0.01 s, eight rows 0.08 s, so b rows cost b hundredths; a chunk costs a part each for itself, prompts, tokens.
LINEAR = CostProfile("linear", "made up", (DecodePoint(1, 0, 0.01), DecodePoint(8, 0, 0.08)), ReadCost(1.0, 0.1, 0.001))


def machine(seats: int = 64, prefill_batch: int = 8, prefill_step: int = 2048) -> PacedMachine:
    return PacedMachine(LINEAR, seats, prefill_batch, prefill_step)


def ask(id: int, prompt: int, limit: int = 3) -> Submit:
    return Submit(id, "someone", tuple(range(prompt)), limit)


def steps_to_first_token(prompt: int, prefill_step: int = 2048) -> int:
    paced = machine(prefill_step=prefill_step)
    paced.insert([ask(0, prompt)])
    for count in range(1, 1_000):
        if paced.step()[1].rows:
            return count
    raise AssertionError("no token in 1,000 steps")


def drained(paced: PacedMachine) -> list[StepOutcome]:
    outcomes = []
    while paced.in_flight:
        outcomes.append(paced.step()[1])
    return outcomes


@pytest.mark.parametrize(
    ("prompt", "prefill_step", "steps"),
    [
        (1, 2048, 2),
        (2, 2048, 3),
        (60, 2048, 3),
        (2049, 2048, 3),  # the last token is not read: decoding feeds it
        (2050, 2048, 4),
        (5, 2, 4),
        (6, 2, 5),
        (7, 2, 5),
    ],
)
def test_steps_to_the_first_token(prompt: int, prefill_step: int, steps: int) -> None:
    assert steps_to_first_token(prompt, prefill_step) == steps


def test_every_step_of_a_short_request() -> None:
    paced = machine()
    paced.insert([ask(7, 60, limit=2)])
    assert paced.step() == (pytest.approx(1 + 0.1 + 0.059), StepOutcome(0, ((7, 59),), ()))
    assert paced.step() == (0.0, StepOutcome(0, ((7, 1),), ()))
    assert paced.step() == (pytest.approx(0.01), StepOutcome(1, (), (Row(7, (1,), "1"),)))
    assert paced.step() == (pytest.approx(0.01), StepOutcome(1, (), (Row(7, (2,), " 2", "length"),)))
    assert paced.in_flight == 0
    assert paced.step() == (0.0, StepOutcome(0, (), ()))


def test_a_step_costs_its_decoding_and_its_chunk() -> None:
    """Two rows decode while three prompts of 101 tokens are read, 50 tokens of each."""
    paced = machine(prefill_step=50)
    paced.insert([ask(0, 1, limit=9), ask(1, 1, limit=9)])
    paced.step()
    paced.insert([ask(id, 101) for id in (2, 3, 4)])
    duration, outcome = paced.step()
    assert duration == pytest.approx(2 * 0.01 + 1.0 + 3 * 0.1 + 150 * 0.001)
    assert outcome.decoding == 2
    assert outcome.read == ((2, 50), (3, 50), (4, 50))
    assert [row.id for row in outcome.rows] == [0, 1]


def test_prompts_are_read_so_many_at_once() -> None:
    paced = machine(prefill_batch=2)
    paced.insert([ask(id, 10) for id in range(5)])
    assert paced.step()[1].read == ((0, 9), (1, 9))
    # Whoever turns to decoding still held a place in the batch when the next ones would have boarded.
    assert paced.step()[1].read == ((0, 1), (1, 1))
    assert paced.step()[1].read == ((2, 9), (3, 9))


def test_with_every_seat_decoding_a_half_read_prompt_stands_still() -> None:
    paced = machine(seats=2, prefill_step=10)
    paced.insert([ask(0, 1, limit=4), ask(1, 11, limit=4), ask(2, 40, limit=1)])
    assert paced.step()[1].read == ((0, 1), (1, 10))
    assert paced.step()[1].read == ((1, 1), (2, 10))
    frozen = [paced.step() for _ in range(2)]
    assert [outcome.read for _, outcome in frozen] == [(), ()]
    assert [duration for duration, _ in frozen] == [pytest.approx(0.02)] * 2
    assert paced.ids == {0, 1, 2}
    thawed = paced.step()[1]
    assert [row.finish for row in thawed.rows] == ["length", None]
    assert thawed.read == ((2, 10),)


def test_the_seat_limit_is_soft_as_in_mlx_lm() -> None:
    """Four seats and four read together reach seven decoding rows: readers board while one seat is free, one a step,
    and all turn to decoding in the fifth."""
    paced = machine(seats=4, prefill_batch=4, prefill_step=10)
    paced.insert([ask(id, 1, limit=50) for id in range(3)])
    paced.insert([ask(3 + n, 41 - 10 * n, limit=50) for n in range(4)])
    outcomes = [paced.step()[1] for _ in range(6)]
    assert [outcome.decoding for outcome in outcomes] == [0, 3, 3, 3, 3, 7]
    assert [len(outcome.read) for outcome in outcomes] == [4, 2, 3, 4, 4, 0]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a_request_can_be_removed_wherever_it_is(steps: int) -> None:
    """Waiting, half read, read, decoding: it is gone, and the other writes all it was asked for."""
    paced = machine(prefill_batch=1, prefill_step=5)
    paced.insert([ask(0, 11, limit=4), ask(1, 3, limit=4)])
    before = [paced.step()[1] for _ in range(steps)]
    paced.remove([0, 99])
    assert paced.ids == {1}
    after = drained(paced)
    assert all(row.id == 1 for outcome in after for row in outcome.rows)
    assert sum(row.id == 1 for outcome in (*before, *after) for row in outcome.rows) == 4


def test_one_that_waits_can_be_removed() -> None:
    paced = machine(prefill_batch=1)
    paced.insert([ask(0, 10, limit=1), ask(1, 10, limit=1), ask(2, 10, limit=1)])
    paced.step()
    paced.remove([1])
    assert [row.id for outcome in drained(paced) for row in outcome.rows] == [0, 2]


def test_steps_outside_the_profile_are_counted() -> None:
    paced = machine(prefill_batch=16)
    paced.insert([ask(id, 1, limit=3) for id in range(9)])
    drained(paced)
    assert paced.clamped == 3
    paced = machine()
    paced.insert([ask(id, 1, limit=3) for id in range(8)])
    drained(paced)
    assert paced.clamped == 0


def test_context_is_the_longest_rows() -> None:
    """Costs by context: 0.1 s at 100 tokens, 0.2 s at 200; the row of 150 prompt tokens decides, one token a step."""
    points = (DecodePoint(1, 100, 0.1), DecodePoint(8, 100, 0.1), DecodePoint(1, 200, 0.2), DecodePoint(8, 200, 0.2))
    paced = PacedMachine(CostProfile("by context", "", points, ReadCost(0, 0, 0)), 8, 8, 2048)
    paced.insert([ask(0, 20, limit=2), ask(1, 150, limit=2)])
    durations = [paced.step()[0] for _ in range(4)]
    assert durations == [0, 0, pytest.approx(0.150), pytest.approx(0.151)]


PROMPTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12)


@given(PROMPTS, st.integers(1, 6), st.integers(1, 5), st.integers(1, 9))
def test_everything_is_read_and_written_once(
    asked: Sequence[tuple[int, int]], seats: int, prefill_batch: int, prefill_step: int
) -> None:
    paced = machine(seats, prefill_batch, prefill_step)
    paced.insert([ask(id, prompt, limit) for id, (prompt, limit) in enumerate(asked)])
    outcomes = drained(paced)
    read: Counter[int] = Counter()
    for outcome in outcomes:
        for id, tokens in outcome.read:
            read[id] += tokens
            assert 0 < tokens <= prefill_step
        assert len(outcome.rows) == outcome.decoding
    assert read == Counter({id: prompt for id, (prompt, _) in enumerate(asked)})
    rows = [row for outcome in outcomes for row in outcome.rows]
    for id, (_, limit) in enumerate(asked):
        mine = [row for row in rows if row.id == id]
        assert [row.tokens for row in mine] == [(n,) for n in range(1, limit + 1)]
        assert "".join(row.text for row in mine) == " ".join(str(n) for n in range(1, limit + 1))
        assert [row.finish for row in mine] == [None] * (limit - 1) + ["length"]


@given(PROMPTS, st.integers(1, 5))
def test_equal_replies_to_equal_prompts_finish_in_order(asked: Sequence[tuple[int, int]], prefill_batch: int) -> None:
    paced = machine(prefill_batch=prefill_batch)
    paced.insert([ask(id, 10, limit=5) for id in range(len(asked))])
    finished = [row.id for outcome in drained(paced) for row in outcome.rows if row.finish]
    assert finished == list(range(len(asked)))


def test_shorter_replies_finish_first() -> None:
    paced = machine()
    paced.insert([ask(0, 10, limit=9), ask(1, 10, limit=2), ask(2, 10, limit=5)])
    assert [row.id for outcome in drained(paced) for row in outcome.rows if row.finish] == [1, 2, 0]


# --- the engine around it ---


def engine() -> PacedEngine:
    return PacedEngine(load_profile("instant"), 8, 2048)


@pytest.mark.parametrize("request_", [ask(3, 0), ask(3, CONTEXT, limit=1), ask(1, 4)])
def test_what_cannot_be_taken_is_refused_before_anything_changes(request_: Submit) -> None:
    paced = engine()
    paced.insert([ask(1, 4)])
    with pytest.raises(ValueError, match=f"request {request_.id}"):
        paced.insert([ask(2, 4), request_])
    assert paced.in_flight == 1


def test_the_engine_steps_the_machine() -> None:
    paced = engine()
    paced.insert([ask(1, 4, limit=2)])
    outcomes = [paced.step() for _ in range(4)]
    assert [len(outcome.rows) for outcome in outcomes] == [0, 0, 1, 1]
    paced.insert([ask(2, 4)])
    paced.remove([2, 3])
    assert paced.in_flight == 0


def test_seats_below_what_is_read_together_do_not_hold_readers_back() -> None:
    """A router with one seat admits one; the machine's own limit must not bind before the router's."""
    paced = engine()
    paced.warm_up(1, (60,))
    paced.insert([ask(id, 1) for id in range(8)])
    assert [paced.step().decoding for _ in range(2)] == [0, 8]
    paced.reset()
    assert paced.in_flight == 0


def test_reset_forgets_the_clamped_steps() -> None:
    profile = CostProfile("narrow", "", (DecodePoint(1, 0, 0.0),), ReadCost(0, 0, 0))
    paced = PacedEngine(profile, 8, 2048)
    paced.insert([ask(0, 1), ask(1, 1)])
    while paced.in_flight:
        paced.step()
    assert paced.facts["clamped_steps"] == 3
    paced.reset()
    assert paced.facts["clamped_steps"] == 0


def test_words_are_tokens() -> None:
    first, second = engine().tokenize([[ChatTurn("system", "be brief"), ChatTurn("user", "be kind")], []])
    assert len(first) == 4
    assert first[0] == first[2] != first[1]
    assert second == []


# --- the time it keeps ---


@pytest.mark.parametrize("oversleep", [0.0, 0.06])
def test_what_steps_took_stands_beside_what_the_profile_says(monkeypatch: pytest.MonkeyPatch, oversleep: float) -> None:
    """On a machine that sleeps 6 % too long, a step of 0.1 s takes 0.106 s: later than the engine can make up for."""
    at = 0

    def slept(due: int) -> None:
        nonlocal at
        at += round(max(0, due - at) * (1 + oversleep))

    monkeypatch.setattr("worker.paced.now", lambda: at)
    monkeypatch.setattr("worker.paced.sleep_until", slept)
    paced = PacedEngine(CostProfile("even", "", (DecodePoint(1, 0, 0.1),), ReadCost(0, 0, 0)), 8, 2048)
    for id in range(3):
        at += SECOND  # idle: nobody's step
        paced.insert([ask(id, 1, limit=10)])
        while paced.in_flight:
            paced.step()
    assert paced.facts["profile_s"] == pytest.approx(3.0)
    assert paced.facts["took_s"] == pytest.approx(3.0 * (1 + oversleep))
    paced.insert([ask(9, 1, limit=10)])
    paced.remove([9])
    at += SECOND
    paced.insert([ask(9, 1, limit=1)])
    while paced.in_flight:
        paced.step()
    assert paced.facts["took_s"] == pytest.approx(3.1 * (1 + oversleep)), "one that was removed leaves no step open"
    paced.reset()
    assert (paced.facts["profile_s"], paced.facts["took_s"]) == (0, 0)


def test_a_late_wake_up_within_a_busy_stretch_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step ends 2 ms late, but the next one counts from when it should have ended: ten take 2 ms too long."""
    at = SECOND

    def slept(due: int) -> None:
        nonlocal at
        at = max(at, due + 2 * MS)

    monkeypatch.setattr("worker.paced.now", lambda: at)
    monkeypatch.setattr("worker.paced.sleep_until", slept)
    paced = PacedEngine(CostProfile("even", "", (DecodePoint(1, 0, 0.02),), ReadCost(0, 0, 0)), 8, 2048)
    paced.insert([ask(0, 1, limit=10)])
    while paced.in_flight:
        paced.step()
    assert (paced.facts["profile_s"], paced.facts["took_s"]) == (0.2, 0.202)
