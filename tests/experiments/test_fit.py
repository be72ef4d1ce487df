"""A profile fitted from steps is the one that made them, and noise does not make a cost of what is none."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.fit import FitError, durations, fit_profile, fit_reading, residuals
from protocol.clock import nanoseconds
from protocol.messages import Submit
from protocol.records import StepRecord
from worker.paced import PacedMachine
from worker.profile import CostProfile, DecodePoint, ReadCost, StartCost, as_json, load_profile, parse_profile

STUDY = load_profile("qwen3-4b-4bit-m4max")


def step(begin: float, end: float, decoding: int = 0, reading: int = 0, longest: int = 0) -> StepRecord:
    figures = (decoding, reading, reading * longest, decoding, decoding + reading, 60, longest)
    return StepRecord("cell", nanoseconds(begin), nanoseconds(end), *figures)


def batch(rows: int, tokens: int = 8) -> list[StepRecord]:
    """The steps of a batch on the study's profile: one chunk, then every token."""
    at = STUDY.read_s(rows, 59)
    longest = 59 + 7 * (rows % 3)  # no two batches alike, or a prompt's cost could be its tokens'
    steps = [step(0, at, reading=rows, longest=longest), step(at, at, reading=rows, longest=1)]
    for _ in range(tokens):
        cost = STUDY.decode_s(rows, 0)
        steps.append(step(at + 1e-4, at + cost, decoding=rows))
        at += cost
    return steps


def test_the_profile_that_made_the_steps_comes_back() -> None:
    fitted = fit_profile("again", "a test", [batch(rows) for rows in (1, 2, 4, 8, 16, 32, 64)])
    assert fitted.read.per_prompt_s == pytest.approx(0.12)
    assert fitted.read.per_chunk_s == fitted.read.per_token_s == 0
    for ours, theirs in zip(fitted.decode, STUDY.decode, strict=True):
        assert (ours.rows, ours.context) == (theirs.rows, theirs.context)
        assert ours.s == pytest.approx(theirs.s, abs=1e-8)


def test_a_profile_survives_its_file() -> None:
    import orjson

    fitted = fit_profile("again", "a test", [batch(2)])
    assert parse_profile(orjson.dumps(as_json(fitted)), "file") == fitted


def test_a_step_costs_from_the_end_of_the_one_before_unless_the_worker_had_nothing_to_do() -> None:
    steps = [step(0.0, 0.1, 1), step(0.101, 0.2, 1), step(1.0, 1.05, 1)]
    assert [cost for _, cost in durations(steps)] == pytest.approx([0.1, 0.1, 0.05])
    assert durations([]) == []


def test_a_step_that_reads_too_is_no_decode_step() -> None:
    mixed = [step(0.2, 5.0, decoding=1, reading=1, longest=60)]
    fitted = fit_profile("", "", [batch(1), mixed])
    assert fitted.decode[0].s == pytest.approx(STUDY.decode_s(1, 0))


@pytest.mark.parametrize("steps", [[], [step(0, 1, decoding=1)], [step(0, 1, reading=1, longest=9)]])
def test_too_little_is_said(steps: list[StepRecord]) -> None:
    with pytest.raises(FitError, match="steps that only decode, and steps that read"):
        fit_profile("", "", [steps])


COSTS = st.sampled_from([0.0, 0.01, 0.05, 0.3])


@given(COSTS, COSTS, st.sampled_from([0.0, 0.001, 0.004]), st.sampled_from([0.0, 1e-5]), st.integers(0, 10))
def test_reading_costs_come_back(chunk: float, prompt: float, token: float, pair: float, seed: int) -> None:
    """From prompts of many lengths; every chunk is predicted, and no part is below 0."""
    if chunk + prompt + token + pair == 0:
        return
    truth, draw = CostProfile("", "", (), ReadCost(chunk, prompt, token, pair)), random.Random(seed)
    shapes = [(prompts, draw.choice([16, 60, 300, 900])) for prompts in (1, 2, 4, 8, 8, 4, 2, 1)]
    chunks = [(prompts, longest, truth.read_s(prompts, longest)) for prompts, longest in shapes]
    fitted = fit_reading(chunks)
    assert min(fitted.per_chunk_s, fitted.per_prompt_s, fitted.per_token_s, fitted.per_pair_s) >= 0
    for prompts, longest, cost in chunks:
        assert CostProfile("", "", (), fitted).read_s(prompts, longest) == pytest.approx(cost, rel=0.05)


def test_the_machine_that_made_the_steps_comes_back() -> None:
    """With a cost for everything: rows that come and go, prompts of many lengths, several of them together."""
    truth = CostProfile(
        *("all", "a test", tuple(DecodePoint(rows, 0, 0.01 + 0.002 * rows) for rows in (1, 8))),
        *(ReadCost(0.02, 0.003, 0.0004, 2e-6), StartCost(0.011, 0.0013)),
    )
    draw = random.Random(3)
    requests = [Submit(id, "u", (0,) * draw.choice([9, 40, 150, 400]), draw.randint(2, 30)) for id in range(60)]
    cells = [paced(truth, requests[first : first + size]) for first in range(0, 60, 10) for size in (1, 2, 3, 6, 10)]
    fitted = fit_profile("all", "a test", cells)
    for rows, prompts in ((1, 1), (3, 2), (8, 4)):
        assert fitted.decode_s(rows, 0) == pytest.approx(truth.decode_s(rows, 0), rel=0.01)
        assert fitted.start_s(prompts) == pytest.approx(truth.start_s(prompts), rel=0.01)
        assert fitted.read_s(prompts, 200) == pytest.approx(truth.read_s(prompts, 200), rel=0.07)
    # The smallest part of reading does not earn its place.
    assert max(each.median for each in residuals(fitted, cells)) < 0.03


def paced(profile: CostProfile, requests: Sequence[Submit]) -> list[StepRecord]:
    """The steps of the paced machine for requests that come together."""
    machine = PacedMachine(profile, seats=8, prefill_batch=4, prefill_step=2048)
    machine.insert(requests)
    steps, at = [], 0.0
    while machine.in_flight:
        held = machine.in_flight
        duration, did = machine.step()
        read = [tokens for _, tokens in did.read]
        figures = (did.decoding, len(read), sum(read), len(did.rows), held, 60, max(read, default=0))
        steps.append(StepRecord("cell", nanoseconds(at), nanoseconds(at + duration), *figures))
        at += duration
    return steps
