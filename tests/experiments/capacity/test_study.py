"""A whole search with few requests: the seats that are chosen, targets, comparisons, and what is said of them."""

import io
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.capacity.confirm import planned, requests_needed
from experiments.capacity.findings import findings, seats_measured, show
from experiments.capacity.plan import CapacitySettings, fitting_seats, seatings
from experiments.capacity.search import Effort
from experiments.capacity.seats import memory_by_seats, rounded_down
from experiments.capacity.study import Study
from experiments.capacity.words import headline
from experiments.kv_families import kv_shape
from experiments.kv_size import cache_bytes
from experiments.memory import longest_request
from experiments.model_config import load_config, weights_bytes
from experiments.twin.cells import OutsideProfile, SimulatedServer
from worker.options import Server
from worker.profile import CostProfile, DecodePoint, ReadCost, load_profile

FLAT = SimulatedServer(CostProfile("flat", "", (DecodePoint(1, 0, 0.01), DecodePoint(8, 0, 0.01)), ReadCost(0, 0, 0)))
# Four at once cost no more than one, eight take four times as long: four seats are best.
BENDING = tuple(DecodePoint(rows, 0, s) for rows, s in ((1, 0.01), (4, 0.01), (8, 0.04)))
BENT = replace(FLAT, profile=replace(FLAT.profile, decode=BENDING))
SEEDS = 6
QUICK = Effort(fewest=125, most=500, seeds=SEEDS, within=0.25)


def asked(*objectives: str, **changes: Any) -> CapacitySettings:
    settings = CapacitySettings(
        Server(engine="paced"), objectives, ("one", "continuous"), (1, 2, 4, 8), None, "poisson", 10, "emails", None,
        tuple(range(12, 12 + SEEDS)), 4096, None,
    )  # fmt: skip
    return replace(settings, **changes)


def searched(settings: CapacitySettings, server: SimulatedServer = FLAT, effort: Effort = QUICK) -> dict[str, Any]:
    """What was found, as a run's findings have it."""
    manifest = {"searched": Study(settings, server, effort).run(), "settings": {"objectives": settings.objectives}}
    found = findings(manifest, {})
    assert found is not None
    return found


def shown(found: Mapping[str, Any]) -> str:
    console = Console(width=80, file=io.StringIO(), record=True, markup=False, highlight=False)
    show(console, found)
    return console.export_text()


@pytest.fixture(scope="module")
def bent() -> dict[str, Any]:
    return searched(asked("reply.p95<300ms"), BENT)


def test_the_fewest_seats_that_serve_the_most_are_chosen(bent: dict[str, Any]) -> None:
    one, continuous = bent["policies"]
    assert (one["seats"], continuous["seats"], bent["best"]) == (1, 4, 1)
    assert [row["seats"] for row in bent["seats"]["rows"]] == [1, 2, 4, 8]
    rates = [row["rate"] for row in bent["seats"]["rows"]]
    assert rates[0] < rates[1] < rates[2]
    assert rates[2] == continuous["rate"]
    assert [row["sure"] for row in bent["seats"]["rows"]] == [False, False, True, False]


def test_one_seat_is_one_at_a_time(bent: dict[str, Any]) -> None:
    assert bent["seats"]["rows"][0]["rate"] == pytest.approx(bent["policies"][0]["rate"], rel=0.05)


def test_the_headline_is_the_answer(bent: dict[str, Any]) -> None:
    said = headline(bent)
    assert said.startswith("Simulated: continuous with 4 seats serves up to ")
    assert "requests a second (95 % interval " in said
    assert "with reply.p95<300ms; one at a time " in said
    assert said.endswith("% fewer.")


def test_the_tables_fit_and_end_with_a_recommendation(bent: dict[str, Any]) -> None:
    text = shown(bent)
    assert max(map(len, text.splitlines())) <= 80
    assert "Recommended: continuous with 4 seats, the fewest seats that serve as many" in text
    assert "--decode-concurrency 4" in text
    assert "not tested there" in text
    assert "Peak memory: not measured" in text
    assert "None" not in text


def test_a_target_needs_fewer_seats_than_the_most() -> None:
    found = searched(asked("reply.p95<300ms", rate=8.0, seats=(1, 2, 4)))
    assert [row["target"] for row in found["policies"]] == ["missed", "met"]
    assert found["policies"][found["best"]]["seats"] == 2
    assert found["seats"]["offered"] == 8
    assert headline(found).startswith("Simulated: continuous with 2 seats is enough for 8/s with reply.p95<300ms: it ")
    assert "the fewest seats that are enough" in " ".join(shown(found).split())


def test_a_target_that_one_at_a_time_reaches_needs_no_more() -> None:
    found = searched(asked("reply.p95<300ms", rate=3.0, seats=(1, 4)))
    assert (found["best"], found["policies"][0]["target"]) == (0, "met")


def test_a_target_beyond_all_is_missed() -> None:
    found = searched(asked("reply.p95<300ms", rate=500.0, seats=(1, 4)))
    assert {row["target"] for row in found["policies"]} == {"missed"}
    assert headline(found).startswith(
        "Simulated: nothing that was tried serves 500/s with reply.p95<300ms: continuous "
    )
    assert "users who" not in shown(found)


def test_what_fails_alone_has_no_rate_and_says_why() -> None:
    found = searched(asked("reply.p95<90ms"))
    assert {(row["state"], row["reason"]) for row in found["policies"]} == {("none", "even alone, reply.p95 is 0.10 s")}
    assert headline(found) == (
        "Simulated: no policy meets reply.p95<90ms at any rate: even alone, reply.p95 is 0.10 s (one at a time)."
    )
    assert "Nothing can be recommended." in shown(found)


def test_an_objective_that_never_limits_ends_where_nothing_more_gets_done() -> None:
    found = searched(asked("tpot.p95<1s", policies=("one",)))
    (row,) = found["policies"]
    assert row["bounded"]
    assert row["rate"] == pytest.approx(10, rel=0.015)
    assert "which is all that it gets done" in headline(found)


def test_too_few_requests_determine_nothing() -> None:
    found = searched(
        asked("reply.p99<300ms", policies=("one",)), effort=Effort(fewest=50, most=100, seeds=SEEDS, within=0.01)
    )
    (row,) = found["policies"]
    assert (row["state"], found["best"]) == ("not determined", None)
    assert "with 100 requests for each of 6 seeds" in row["reason"]
    assert row["interval"][0] < row["rate"] < row["interval"][1]
    assert headline(found).startswith(
        "Simulated: the highest rate with reply.p99<300ms is not determined: one at a time"
    )
    assert f"({row['rate']:#.3g})" in shown(found)


def test_shortest_first_serves_more_where_lengths_differ() -> None:
    """Three of four replies take an eighth of the longest: one seat that takes them first keeps a median low."""
    policies = ("continuous:seats=1", "shortest:seats=1,patience=60")
    found = searched(asked("reply.p50<300ms", policies=policies, workload="mixed", max_tokens=64))
    (versus,) = found["comparisons"]
    assert versus["policy"].startswith("shortest")
    assert versus["shown"] and versus["interval"][0] > 1
    assert "Continuous serves" in shown(found) and "fewer than shortest first" in " ".join(shown(found).split())
    assert not found["same_lengths"]


def test_shortest_first_has_nothing_to_go_by_where_all_are_alike() -> None:
    found = searched(asked("reply.p95<300ms", policies=("continuous:seats=2", "shortest:seats=2")))
    (versus,) = found["comparisons"]
    assert (versus["ratio"], versus["shown"], found["best"]) == (1, False, 0)
    text = " ".join(shown(found).split())
    assert "Shortest first serves exactly as many as continuous, seed by seed." in text
    assert "nothing to go by" in text


def test_more_than_was_measured_is_refused_or_named() -> None:
    read = ReadCost(0, 0, 0, most_tokens=2)
    narrow = replace(FLAT, profile=replace(FLAT.profile, read=read))
    with pytest.raises(OutsideProfile, match=r"^one: .* chunks of up to 2 tokens"):
        searched(asked("reply.p95<300ms"), narrow)
    found = searched(asked("reply.p95<300ms", policies=("one",)), replace(narrow, extrapolate=True))
    assert "their costs are extrapolated" in " ".join(shown(found).split())


def test_seats_are_tried_where_they_are_not_given() -> None:
    assert seatings("continuous", (2, 4)) == ["continuous:seats=2", "continuous:seats=4"]
    assert seatings("continuous:seats=3", (2, 4)) == ["continuous:seats=3"]
    assert seatings("static", (2, 4)) == ["static:n=8,wait=0.5"]
    assert fitting_seats(load_profile("qwen3-4b-4bit-m4max")) == (1, 2, 4, 8, 16, 32, 64)
    assert fitting_seats(FLAT.profile) == (1, 2, 4, 8)


@pytest.mark.parametrize(("rate", "down"), [(1.0969, 1.09), (69.96, 69.9), (0.25, 0.25), (1234.0, 1230.0), (1.0, 1.0)])
def test_a_promise_is_rounded_down(rate: float, down: float) -> None:
    assert rounded_down(rate) == pytest.approx(down, rel=1e-12)


def test_memory_is_weights_and_a_cache_on_every_seat() -> None:
    settings = asked("reply.p95<1s", model="Qwen3-4B")
    named = load_config("Qwen3-4B")
    one = cache_bytes(kv_shape(named.config), longest_request(settings.cell()))
    found = memory_by_seats(settings, [1, 8])
    assert found[1]["peak_memory_bytes"] == (weights_bytes(named).bytes or 0) + one
    assert found[8]["peak_memory_bytes"] - found[1]["peak_memory_bytes"] == 7 * one
    assert memory_by_seats(replace(settings, model=None), [1])[1]["peak_memory_bytes"] is None


def test_real_runs_are_long_enough_to_tell(bent: dict[str, Any]) -> None:
    """A median takes few requests, of which the first find the server empty."""
    settings = asked("reply.p50<300ms")
    found = {**bent, "objectives": list(settings.objectives)}
    below, above = planned(settings, BENT, found)
    assert (below.expected, above.expected) == ("met", "missed")
    assert below.cell.requests == requests_needed(settings) == 17
    assert above.cell.requests > 17 and above.decided
    low, high = bent["policies"][1]["interval"]
    assert below.cell.rate == pytest.approx(0.8 * low, rel=0.05)
    assert above.cell.rate == pytest.approx(1.2 * high, rel=0.05)


@pytest.mark.parametrize(
    ("states", "verdict", "said"),
    [
        (("met", "missed"), "VALID", "; a real run met them at 8/s."),
        (("met", "met"), "SUSPECT", "; a real run met them at 8/s."),
        (("missed", "missed"), "VALID", "; a real run at 8/s did not meet them."),
        (("not determined", "missed"), "VALID", "; real runs could not tell."),
        ((None, None), None, "; real runs could not tell."),
        (("met", "missed"), "INVALID", "; its real runs are INVALID, not to be relied on."),
    ],
)
def test_the_headline_says_what_real_runs_came_to(
    bent: dict[str, Any], states: tuple[str | None, str | None], verdict: str | None, said: str
) -> None:
    runs = [
        {"rate": rate, "expected": expected, "verdict": verdict, "objectives": [{"objective": "a", "state": state}]}
        for rate, expected, state in zip((8.0, 20.0), ("met", "missed"), states, strict=True)
    ]
    assert headline({**bent, "confirmed": runs}).endswith(said)


def test_memory_that_was_measured_is_not_mixed_with_what_was_computed(bent: dict[str, Any]) -> None:
    run = {
        "cell": "c01", "rate": 1.0, "expected": "met", "requests": 9, "verdict": "VALID", "load_state": "stable",
        "peak_memory_bytes": 5 * 10**9, "objectives": [],
    }  # fmt: skip
    rows = [row | {"peak_memory_bytes": 10**9, "memory_from": "configuration"} for row in bent["seats"]["rows"]]
    table = seats_measured({**bent, "seats": {**bent["seats"], "rows": rows}}, [run])
    assert table is not None
    assert [row["peak_memory_bytes"] for row in table["rows"]] == [None, None, 5 * 10**9, None]


def test_the_flags_are_those_of_the_other_server(bent: dict[str, Any]) -> None:
    spec = find_spec("mlx_lm")
    assert spec is not None and spec.submodule_search_locations
    source = (Path(spec.submodule_search_locations[0]) / "server.py").read_text()
    named = [word for word in bent["flags"] if word.startswith("--")]
    assert len(named) == 3
    assert all(f'"{flag}"' in source for flag in named)
