"""Objectives: how they are spelled, what every request says of one, and that failing never looks like serving well."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.arrivals import poisson
from experiments.analysis import CellRecords, by_cell, promised, summarise
from experiments.objectives import METRICS, Goodput, Objective, Outcome, goodput, outcome, parse_objective
from experiments.statistics import PERCENTILES
from protocol.clock import MS, SECOND
from protocol.records import ClientRecord, RequestRecord
from tests.virtual import CELL, VirtualRush

FIRST_WORD = parse_objective("ttft.p95<1s")
PER_TOKEN = parse_objective("tpot.p50<40ms")
RANK = {"missed": 0, "not determined": 1, "met": 2}


# --- spelling ---


@pytest.mark.parametrize(
    ("text", "metric", "percentile", "limit_s"),
    [
        ("ttft.p95<1s", "ttft", "p95", 1.0),
        ("tpot.p50<40ms", "tpot", "p50", 0.04),
        (" reply.p99 < 2.5 s ", "reply", "p99", 2.5),
        ("queue_wait.p50<.5s", "queue_wait", "p50", 0.5),
    ],
)
def test_an_objective(text: str, metric: str, percentile: str, limit_s: float) -> None:
    assert parse_objective(text) == Objective(text.strip(), metric, percentile, pytest.approx(limit_s))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("first.p95<1s", "unknown metric 'first'; choose from ttft, reply, tpot, gap, queue_wait, writing"),
        ("ttft.p90<1s", "unknown percentile 'p90'; choose from p50, p95, p99"),
        ("ttft.p95<1h", "unknown unit 'h'; choose from ms, s"),
        ("ttft.p95<0s", "above 0"),
        ("ttft.p95<1", "METRIC.PERCENTILE<LIMIT"),
        ("ttft.p95>1s", "METRIC.PERCENTILE<LIMIT"),
        ("ttft.p95<-1s", "METRIC.PERCENTILE<LIMIT"),
        ("ttft.p95<nans", "METRIC.PERCENTILE<LIMIT"),
        ("ttft.p95<" + "9" * 400 + "s", "above 0"),
        ("", "METRIC.PERCENTILE<LIMIT"),
    ],
)
def test_what_is_none_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_objective(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(max_size=30))
def test_any_text_is_an_objective_or_a_value_error(text: str) -> None:
    try:
        made = parse_objective(text)
    except ValueError:
        return
    assert made.metric in METRICS
    assert made.percentile in PERCENTILES
    assert made.limit_s > 0


# --- one objective ---


def test_what_misses() -> None:
    """The limit itself is not below it; a failed request is infinitely slow; no data is no request."""
    found = outcome(FIRST_WORD, [0.5, 0.999, 1.0, math.inf, None])
    assert (found.misses, found.n) == (2, 4)


def test_met_missed_or_not_determined() -> None:
    assert outcome(FIRST_WORD, [0.5] * 90) == Outcome("ttft.p95<1s", "met", 0, 90, 90)
    assert outcome(FIRST_WORD, [0.5] * 89 + [2.0]) == Outcome("ttft.p95<1s", "not determined", 1, 90, 130)
    assert outcome(FIRST_WORD, [2.0] * 5 + [0.5] * 15).state == "missed"


def test_no_data_determines_nothing() -> None:
    """Replies of one token have no time per token."""
    assert outcome(PER_TOKEN, [None] * 200) == Outcome("tpot.p50<40ms", "not determined", 0, 0, 7)
    assert outcome(PER_TOKEN, []).state == "not determined"


# --- goodput ---


def test_goodput_is_the_share_that_met_every_objective() -> None:
    rows = [(0.5, 0.01), (0.5, 0.05), (2.0, 0.01), (math.inf, math.inf)]
    assert goodput([FIRST_WORD, PER_TOKEN], rows, 2.0) == Goodput(1, 4, 0.25, 0.5)


def test_a_request_is_judged_by_what_it_has() -> None:
    assert goodput([FIRST_WORD, PER_TOKEN], [(0.5, None), (None, None)], 0.0) == Goodput(1, 2, 0.5, None)
    assert goodput([PER_TOKEN], [(None,), (None,)], 1.0) is None
    assert goodput([PER_TOKEN], [], 1.0) is None


# --- from records ---


def record(**changes: object) -> RequestRecord:
    """A reply of 5 tokens: queued 0.2 s, first word after 1 s, then gaps of 0.1, 0.1, 0.1 and 0.5 s."""
    times = (1000, 1100, 1200, 1300, 1800)
    whole = RequestRecord(
        CELL,
        0,
        intended=0,
        received=0,
        admitted=200 * MS,
        first_received=1000 * MS,
        last_received=1800 * MS,
        messages=tuple((time * MS, 1) for time in times),
        tokens=(1, 2, 3, 4, 5),
        end="completed",
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "value"),
    [("ttft", 1.0), ("reply", 1.8), ("tpot", 0.2), ("gap", 0.5), ("queue_wait", 0.2), ("writing", 0.8)],
)
def test_every_metric_of_a_request(metric: str, value: float) -> None:
    assert promised(record(), metric) == pytest.approx(value)
    for end in ("failed", "rejected", "cancelled", "unfinished", None):
        assert promised(record(end=end), metric) == math.inf


def test_a_reply_of_one_token_says_nothing_of_time_per_token() -> None:
    one = record(tokens=(1,), messages=((1000 * MS, 1),), last_received=1000 * MS)
    assert [promised(one, metric) for metric in METRICS] == [1.0, 1.0, None, None, 0.2, 0.0]
    assert promised(record(first_received=None), "ttft") is None


def test_a_cell_says_what_became_of_its_objectives() -> None:
    cell = CellRecords(
        clients=[ClientRecord(CELL, 0, 1, 4, 0, 0, {}, (0, 1, 2, 3), (0, SECOND, 2 * SECOND, 4 * SECOND))],
        requests=[
            record(sent=0),
            replace(record(sent=0), id=1, end="failed"),
            replace(record(sent=0), id=2, first_received=900 * MS),
        ],
    )
    found = summarise(CELL, cell, [FIRST_WORD, parse_objective("queue_wait.p50<1s")])
    assert [(each.objective, each.misses, each.n) for each in found.objectives] == [
        ("ttft.p95<1s", 3, 4),
        ("queue_wait.p50<1s", 2, 4),
    ], "one had its first word after a second, one failed, one was never sent"
    assert found.goodput == Goodput(1, 4, 0.25, 0.25)
    plain = summarise(CELL, cell)
    assert (plain.objectives, plain.goodput) == ([], None)


@pytest.fixture(scope="module")
def served() -> CellRecords:
    """Eighty requests that one at a time cannot keep up with, in virtual time."""
    rush = VirtualRush("one", poisson(80, 4.0, 12), max_tokens=32)
    rush.run()
    return by_cell(rush.records)[CELL]


LIMITS = st.sampled_from(["1ms", "20ms", "300ms", "3s", "30s", "300s"])
OBJECTIVES = st.builds(
    lambda metric, percentile, limit: parse_objective(f"{metric}.{percentile}<{limit}"),
    st.sampled_from(METRICS),
    st.sampled_from([*PERCENTILES]),
    LIMITS,
)


@given(
    st.lists(OBJECTIVES, min_size=1, max_size=3),
    st.dictionaries(
        st.integers(0, 79), st.sampled_from(["failed", "rejected", "cancelled", "unfinished", None, "lost"])
    ),
)
def test_an_overloaded_server_with_failures_never_looks_healthier_than_one_without(
    served: CellRecords, objectives: list[Objective], fates: dict[int, str | None]
) -> None:
    """Whatever becomes of whichever requests, and however many never left: a failed request has the times it got as
    far as it came, and no later ones."""
    requests = [
        replace(r, end=fates[r.id], last_received=None) if r.id in fates else r
        for r in served.requests
        if fates.get(r.id) != "lost"
    ]
    whole = summarise(CELL, served, objectives)
    failing = summarise(CELL, replace(served, requests=requests), objectives)
    assert whole.goodput is not None
    assert failing.goodput is not None
    assert failing.goodput.requests <= whole.goodput.requests
    assert failing.goodput.share <= whole.goodput.share
    assert (failing.goodput.per_s or 0) <= (whole.goodput.per_s or 0)
    for before, after in zip(whole.objectives, failing.objectives, strict=True):
        assert RANK[after.state] <= RANK[before.state]
        assert after.misses >= before.misses
        assert after.n == before.n == 80
