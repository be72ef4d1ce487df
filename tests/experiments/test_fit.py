"""A profile fitted from steps is the one that made them, and noise does not make a cost of what is none."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.fit import FitError, durations, fit_profile, fit_reading
from protocol.clock import nanoseconds
from protocol.records import StepRecord
from worker.profile import ReadCost, as_json, load_profile, parse_profile

STUDY = load_profile("qwen3-4b-4bit-m4max")


def step(begin: float, end: float, decoding: int = 0, reading: int = 0, prompt_tokens: int = 0) -> StepRecord:
    ns = nanoseconds
    return StepRecord("cell", ns(begin), ns(end), decoding, reading, prompt_tokens, decoding, decoding + reading, 60)


def batch(rows: int, tokens: int = 8) -> list[StepRecord]:
    """The steps of a batch on the study's profile: one chunk, then every token."""
    at = STUDY.read_s(rows, rows * 59)
    tokens_read = rows * 59 + 7 * (rows % 3)  # no two batches alike, or a prompt's cost could be its tokens'
    steps = [step(0, at, reading=rows, prompt_tokens=tokens_read), step(at, at, reading=rows, prompt_tokens=rows)]
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
    mixed = [step(0.2, 5.0, decoding=1, reading=1, prompt_tokens=60)]
    fitted = fit_profile("", "", [batch(1), mixed])
    assert fitted.decode[0].s == pytest.approx(STUDY.decode_s(1, 0))


@pytest.mark.parametrize("steps", [[], [step(0, 1, decoding=1)], [step(0, 1, reading=1, prompt_tokens=9)]])
def test_too_little_is_said(steps: list[StepRecord]) -> None:
    with pytest.raises(FitError, match="steps that only decode, and steps that read"):
        fit_profile("", "", [steps])


COSTS = st.sampled_from([0.0, 0.01, 0.05, 0.3])


@given(COSTS, COSTS, st.sampled_from([0.0, 0.001, 0.004]), st.integers(0, 10))
def test_reading_costs_come_back(chunk: float, prompt: float, token: float, seed: int) -> None:
    """From prompts of many lengths; every chunk is predicted, and no part is below 0."""
    if chunk + prompt + token == 0:
        return
    truth, draw = ReadCost(chunk, prompt, token), random.Random(seed)
    shapes = [(prompts, prompts * draw.choice([16, 60, 300, 900])) for prompts in (1, 2, 4, 8, 8, 4, 2, 1)]
    chunks = [(n, t, truth.per_chunk_s + truth.per_prompt_s * n + truth.per_token_s * t) for n, t in shapes]
    fitted = fit_reading(chunks)
    assert min(fitted.per_chunk_s, fitted.per_prompt_s, fitted.per_token_s) >= 0
    for prompts, tokens, cost in chunks:
        predicted = fitted.per_chunk_s + fitted.per_prompt_s * prompts + fitted.per_token_s * tokens
        assert predicted == pytest.approx(cost, rel=0.05)
