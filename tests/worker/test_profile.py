"""Cost profiles: right between the points, constant outside them, and one line for what is no profile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.profile import (
    CostProfile,
    DecodePoint,
    ProfileError,
    ReadCost,
    StartCost,
    as_json,
    load_profile,
    parse_profile,
    profile_names,
)

READ = ReadCost(0.5, 0.25, 0.001)
ONE_CURVE = CostProfile("p", "s", (DecodePoint(2, 0, 0.02), DecodePoint(4, 0, 0.03), DecodePoint(8, 0, 0.07)), READ)
TWO_CURVES = CostProfile(
    "p",
    "s",
    (DecodePoint(1, 100, 0.1), DecodePoint(8, 100, 0.8), DecodePoint(1, 300, 0.3), DecodePoint(4, 300, 0.9)),
    READ,
)
# The study's batch sweep: replies at once, seconds for every reply.
SWEEP = {1: 0.93, 2: 1.13, 4: 2.15, 8: 3.50, 16: 5.94, 32: 8.42, 64: 17.57}


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(2, 0.02), (4, 0.03), (8, 0.07), (3, 0.025), (5, 0.04), (7, 0.06), (1, 0.02), (9, 0.07), (1_000, 0.07)],
)
def test_a_curve_at_between_and_outside_its_points(rows: int, seconds: float) -> None:
    for context in (0, 1, 1_000_000):
        assert ONE_CURVE.decode_s(rows, context) == pytest.approx(seconds)
        assert ONE_CURVE.covers(rows, context) == (2 <= rows <= 8)


@pytest.mark.parametrize(
    ("rows", "context", "seconds", "covered"),
    [
        (1, 100, 0.1, True),
        (1, 300, 0.3, True),
        (1, 200, 0.2, True),
        (4, 150, 0.4 + 0.25 * 0.5, True),
        (4, 300, 0.9, True),
        (1, 99, 0.1, False),
        (1, 301, 0.3, False),
        (8, 100, 0.8, True),
        (8, 300, 0.9, False),
        (8, 200, (0.8 + 0.9) / 2, False),
        (9, 100, 0.8, False),
    ],
)
def test_two_contexts(rows: int, context: int, seconds: float, covered: bool) -> None:
    """A step is covered when every curve it is taken from was measured at that many rows."""
    assert TWO_CURVES.decode_s(rows, context) == pytest.approx(seconds)
    assert TWO_CURVES.covers(rows, context) is covered


def test_reading_costs_the_chunk_its_prompts_and_its_tokens() -> None:
    assert ONE_CURVE.read_s(0, 0) == 0
    assert ONE_CURVE.read_s(1, 0) == 0.75
    assert ONE_CURVE.read_s(3, 100) == pytest.approx(0.5 + 0.75 + 0.3)


def test_tokens_attend_to_those_of_their_own_prompt() -> None:
    """Twice the prompt has four times the pairs, two prompts twice."""
    read = replace(ONE_CURVE, read=ReadCost(0.0, 0.0, 0.0, per_pair_s=1e-6)).read_s
    assert read(1, 100) == pytest.approx(0.005)
    assert read(1, 200) == pytest.approx(0.02)
    assert read(2, 100) == pytest.approx(0.01)


def test_prompts_that_start_to_decode_cost_a_part_for_the_step_and_one_each() -> None:
    profile = replace(ONE_CURVE, start=StartCost(0.05, 0.01))
    assert [profile.start_s(prompts) for prompts in (0, 1, 3)] == pytest.approx([0, 0.06, 0.08])
    assert parse_profile(orjson.dumps(as_json(profile)), "file") == profile


@given(st.integers(0, 20), st.integers(0, 20))
def test_more_rows_never_cost_less_on_a_rising_curve(a: int, b: int) -> None:
    assert ONE_CURVE.decode_s(min(a, b), 0) <= ONE_CURVE.decode_s(max(a, b), 0)


def test_the_studys_profile_is_its_sweep_without_the_reading() -> None:
    profile = load_profile("qwen3-4b-4bit-m4max")
    assert {point.rows for point in profile.decode} == set(SWEEP)
    for rows, seconds in SWEEP.items():
        assert profile.decode_s(rows, 0) == pytest.approx((seconds - 0.12 * rows) / 128, abs=1e-12)
        assert profile.covers(rows, 60)
    assert profile.read == ReadCost(0.0, 0.12, 0.0)


def test_the_instant_profile_costs_nothing() -> None:
    profile = load_profile("instant")
    assert (profile.decode_s(1, 9), profile.decode_s(100_000, 9), profile.read_s(64, 9_999)) == (0, 0, 0)
    assert profile.covers(100_000, 9_999)


def test_every_shipped_profile_loads_under_its_name() -> None:
    assert {"instant", "qwen3-4b-4bit-m4max"} <= set(profile_names())
    for name in profile_names():
        assert load_profile(name).name == name
        assert load_profile(name).source


GOOD: dict[str, Any] = {
    "schema": 1,
    "name": "mine",
    "source": "measured",
    "decode": [{"rows": 4, "context": 0, "s": 0.2}, {"rows": 1, "context": 0, "s": 1}],
    "read": {"per_chunk_s": 0, "per_prompt_s": 0.1, "per_token_s": 0},
}


def test_points_are_sorted_as_they_are_read() -> None:
    profile = parse_profile(orjson.dumps(GOOD), "here")
    assert profile.decode == (DecodePoint(1, 0, 1.0), DecodePoint(4, 0, 0.2))
    assert profile.read == ReadCost(0.0, 0.1, 0.0)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


POINT = {"rows": 1, "context": 0, "s": 0.1}


@pytest.mark.parametrize(
    "content",
    [
        [],
        3,
        None,
        "profile",
        {},
        *[without(key) for key in GOOD],
        GOOD | {"schema": 2},
        GOOD | {"decode": []},
        GOOD | {"decode": {}},
        GOOD | {"decode": "points"},
        GOOD | {"decode": [[1, 0, 0.1]]},
        GOOD | {"decode": [POINT, POINT]},
        *[GOOD | {"decode": [POINT | {"rows": bad}]} for bad in (0, -1, 1.0, "1", None, True)],
        *[GOOD | {"decode": [POINT | {"context": bad}]} for bad in (-1, 0.5, None)],
        *[GOOD | {"decode": [POINT | {"s": bad}]} for bad in (-0.1, "0.1", None, False, [])],
        GOOD | {"read": None},
        GOOD | {"read": [0, 0, 0]},
        GOOD | {"read": {"per_chunk_s": 0, "per_prompt_s": 0}},
        GOOD | {"read": {"per_chunk_s": 0, "per_prompt_s": 0, "per_token_s": -1}},
    ],
)
def test_what_is_no_profile_is_said_in_one_line(content: Any) -> None:
    with pytest.raises(ProfileError) as error:
        parse_profile(orjson.dumps(content), "here.json")
    assert str(error.value).startswith("profile here.json: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"schema": 1, "decode": [NaN]}', b"[" * 5_000])
def test_what_is_no_json_is_said_in_one_line(data: bytes) -> None:
    with pytest.raises(ProfileError) as error:
        parse_profile(data, "here.json")
    assert "\n" not in str(error.value)


def test_a_profile_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(orjson.dumps(GOOD))
    assert load_profile(str(path)).name == "mine"


@pytest.mark.parametrize("name", ["no-such-profile", "", "x" * 300, "/", "qwen3-4b-4bit-m4max.json"])
def test_a_profile_that_is_not_there_is_said_in_one_line(name: str) -> None:
    with pytest.raises(ProfileError) as error:
        load_profile(name)
    assert "\n" not in str(error.value)
