"""The headline of every experiment: computed from its figures, and silent about nothing that matters."""

from dataclasses import replace
from typing import Any

import pytest

from experiments.analysis import CellSummary
from experiments.comparison import comparisons
from experiments.findings_headlines import HEADLINES
from experiments.headline import headline
from experiments.run_folder import FINDINGS, Summary
from experiments.statistics import Spread
from tests.experiments.test_seeds import TEMPLATE
from tests.experiments.test_tables import NOTHING, unmeasured

SETTINGS: dict[str, dict[str, Any]] = {
    "one": {},
    "static": {"n": 8, "wait": 0.5},
    "continuous": {"seats": 64},
    "shortest": {"seats": 64, "predictor": "noisy:0.5", "patience": 0.1},
}


def around(value: float, width: float = 0.1) -> Spread:
    """Forty values whose median lies within this share of `value`."""
    return Spread(40, value, 2 * value, None, 3 * value, (value * (1 - width), value * (1 + width)), None, None)


def cell(policy: str, ttft: float, reply: float, rate: float | None = 4.0, **changes: Any) -> CellSummary:
    spreads = {"ttft": around(ttft), "reply": around(reply)}
    named = replace(TEMPLATE, policy=policy, params=SETTINGS[policy], rate=rate, seed=12, label=f"{policy} at {rate}")
    return replace(named, requests=40, completed=40, **{**spreads, **changes})


def told(*cells: CellSummary, **changes: Any) -> str:
    whole = Summary(1, "rush", True, None, list(cells), None, None, None)
    line = headline(replace(whole, **changes))
    assert "\n" not in line
    assert "None" not in line
    return line


ONE, CONTINUOUS = cell("one", 13.8, 14.6), cell("continuous", 0.43, 6.4)
STUDY = (
    "Continuous batching cut the typical first word from 13.8 s to 0.43 s (32x); the whole reply only from 14.6 s to "
    "6.40 s at 4/s, against one at a time."
)


def test_the_studys_headline() -> None:
    assert told(ONE, cell("static", 4.6, 7.3), CONTINUOUS) == STUDY
    assert told(CONTINUOUS, ONE, cell("one", 0.2, 0.3, rate=1.0)) == STUDY, "the highest rate counts"


def test_an_incomplete_run_says_so_first() -> None:
    line = told(ONE, CONTINUOUS, complete=False, reason="the worker was lost: killed.")
    assert line == f"Incomplete: the worker was lost: killed. {STUDY}"
    assert told(complete=False, reason="interrupted") == "Incomplete: interrupted. Nothing was measured."


def test_nothing_completed_says_what_became_of_it() -> None:
    bad = [replace(unmeasured(each), failed=38, unsent=2) for each in (ONE, CONTINUOUS)]
    assert told(*bad) == "Nothing was completed at 4/s: of 80 requests 76 failed, 4 never sent."
    assert told(ONE, cell("static", 4.6, 7.3), bad[1]).endswith("; continuous batching completed nothing.")
    assert told(ONE, bad[1]).startswith("One at a time at 4/s: typical first word after 13.8 s, whole reply after 14.6")


def test_one_policy_is_compared_with_nothing() -> None:
    line = told(CONTINUOUS, cell("continuous", 0.16, 1.48, rate=1.0))
    assert line == (
        "Continuous batching at 4/s: typical first word after 0.43 s, whole reply after 6.40 s (at 1/s 0.16 s and "
        "1.48 s)."
    )


def test_settings_of_one_policy_are_told_apart() -> None:
    few = cell("continuous", 5.9, 7.8, params={"seats": 4})
    line = told(few, CONTINUOUS, cell("continuous", 2.0, 7.0, params={"seats": 16}))
    assert line.startswith("Continuous batching seats=64 cut the typical first word from 5.90 s to 0.43 s (14x)")
    assert " at 4/s, against continuous batching seats=4; " in line
    assert told(ONE, few).startswith("Continuous batching seats=4 cut"), "a setting that is not the default is named"


def test_settings_that_are_words_are_told_too() -> None:
    """With seats to spare shortest first is continuous batching, and no difference is claimed."""
    line = told(CONTINUOUS, cell("shortest", 0.42, 6.3))
    assert line.startswith(
        "No difference between shortest first predictor=noisy:0.5 and continuous batching could be shown with 40"
    )


def test_what_intervals_cannot_show_is_not_claimed() -> None:
    """Each within the other's interval; too few requests have none."""
    near = cell("continuous", 13.0, 14.0)
    assert told(ONE, near) == (
        "No difference between continuous batching and one at a time could be shown with 40 requests at 4/s: typical "
        "first word 13.0 s and 13.8 s, whole reply 14.0 s and 14.6 s."
    )
    mixed = told(ONE, cell("continuous", 0.43, 14.0))
    assert mixed == (
        "Continuous batching cut the typical first word from 13.8 s to 0.43 s (32x) at 4/s, against one at a time; the "
        "whole reply went from 14.6 s to 14.0 s, which 40 requests are too few to be sure of."
    )
    few = replace(CONTINUOUS, ttft=replace(CONTINUOUS.ttft, p50_interval=None))
    assert told(ONE, few) == STUDY.removesuffix(".") + "; too few requests to say how sure that is."


def test_what_got_worse_is_said() -> None:
    worse = told(cell("one", 0.2, 1.0), cell("continuous", 0.4, 3.0))
    assert worse.startswith("Continuous batching raised the typical first word from 0.20 s to 0.40 s (2.0x); the whole")
    assert "; it raised the whole reply from 1.00 s to 3.00 s" in told(cell("one", 9, 1.0), cell("continuous", 1, 3.0))
    same_word = told(cell("one", 1.0, 9.0), cell("continuous", 1.01, 3.0))
    assert "could be shown (1.01 s and 1.00 s); continuous batching cut the whole reply from 9.00 s" in same_word


def test_nothing_is_kept_quiet() -> None:
    line = told(ONE, replace(CONTINUOUS, completed=12, verdict="INVALID"))
    assert line.startswith("From INVALID measurements, not to be relied on: Continuous batching cut")
    assert line.endswith("; of completed requests only, 12 of 40 and 40 of 40.")


def seeds(policy: str, figures: list[float]) -> list[CellSummary]:
    return [replace(cell(policy, each, 10 + each), seed=seed) for seed, each in enumerate(figures)]


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ([1.0, 1.1, 0.9, 1.0, 1.05], "cut the typical first word from 3.00 s to 1.00 s (3.0x)"),
        ([1.0, 5.0, 0.5, 6.0, 3.5], "No difference between continuous batching and one at a time could be shown"),
        ([1.0, 1.1], "medians over 2 seeds; too few seeds to say how sure that is"),
    ],
)
def test_seeds_decide_where_there_are_several(figures: list[float], says: str) -> None:
    """By pairs: each seed's own interval is not looked at."""
    cells = [*seeds("one", [3.0] * len(figures)), *seeds("continuous", figures)]
    assert says in told(*cells, comparisons=comparisons(cells))


# --- the other experiments ---


def about(experiment: str, found: dict[str, Any]) -> str:
    return told(experiment=experiment, findings=found)


def test_every_experiment_has_one() -> None:
    assert {*HEADLINES} == {*FINDINGS}


def batch(replies: int, speed: float | None, weights: str = "native") -> dict[str, Any]:
    return {
        "weights": weights, "replies": replies, "tokens_per_s": speed,
        "tokens_per_s_per_reply": speed and speed / replies, "gain": speed and speed / 100.0,
    }  # fmt: skip


def test_sweep() -> None:
    rows = [batch(1, 100.0), batch(8, 210.0), batch(64, None)]
    assert about("sweep", {"rows": rows, "limits": [{}]}) == (
        "8 replies at once wrote 210 tokens/s in total, 2.1 times one alone; each reply 26.2 instead of 100."
    )
    both = {"rows": [*rows, batch(8, 350.0, "4bit")], "limits": [{}, {}]}
    assert about("sweep", both) == "8 replies at once with 4bit weights wrote 350 tokens/s in total, 43.8 each."
    assert "more at once wrote no more" in about("sweep", {"rows": [batch(1, 9.0), batch(8, 8.0)], "limits": [{}]})
    assert about("sweep", {"rows": [batch(1, None)], "limits": [{}]}) == "Nothing was measured."


def emails(label: str, ttft: float | None, **changes: Any) -> dict[str, Any]:
    known = {"label": label, "ttft_p50_s": ttft, "completed": 20, "shared_tokens": 1788, "prefix_hits": 19}
    return known | {"ttft_p50_interval_s": ttft and (0.9 * ttft, 1.1 * ttft)} | changes


def prefix_of(*rows: dict[str, Any], compared: int = 20) -> str:
    return about("prefix", {"rows": rows, "sameness": {"compared": compared, "same": compared - 1}})


def test_prefix() -> None:
    cold = emails("no prefix cache", 20.9, prefix_hits=0)
    assert prefix_of(cold, emails("prefix cached", 1.02)) == (
        "Caching the 1,788 shared tokens cut the typical first word from 20.9 s to 1.02 s (20x); 19 of 20 answers "
        "stayed the same."
    )
    few = emails("prefix cached", 1.02, ttft_p50_interval_s=None, completed=5)
    assert "(20x); 5 emails are too few to say how sure that is; 4 of 5 answers" in prefix_of(cold, few, compared=5)
    assert "no difference in the typical first word could be shown (20.9 s without and 20.0 s with it)" in prefix_of(
        cold, emails("prefix cached", 20.0)
    )
    stamped = prefix_of(cold, emails("prefix cached", 20.8, prefix_hits=0))
    assert stamped == "Nothing could be reused: typical first word 20.9 s without, 20.8 s with cache."
    lost = prefix_of(cold, emails("prefix cached", None))
    assert lost == "Only one of two was measured: no prefix cache, typical first word 20.9 s."
    assert prefix_of(emails("a", None), emails("b", None)) == "Nothing was measured."


def pile(bits: int, found: int | None, saved: float | None, dtype: str = "bfloat16") -> dict[str, Any]:
    return {"kv_bits": bits, "found": found, "asked": 10, "saved": saved, "dtype": dtype}


def test_kv_quant() -> None:
    """Six answers that differ are the fewest that a sign test can take for more than chance."""
    whole = [pile(16, 9, None), pile(16, 8, None)]
    near = about("kv-quant", {"rows": [*whole, pile(4, 8, 0.72), pile(4, 4, 0.70)]})
    assert near == (
        "A KV cache of 16 bits found 17 of 20, of 4 bits (72% smaller) found 12 of 20 names: no difference in what is "
        "found could be shown."
    )
    far = about("kv-quant", {"rows": [*whole, pile(4, 7, 0.72), pile(4, 4, 0.70)]})
    assert far.endswith("found 11 of 20 names.")
    wide = about("kv-quant", {"rows": [pile(16, 9, 0.0, "float32")]})
    assert wide == "A KV cache of 32 bits found 9 of 10 names.", "as the model computes"
    assert about("kv-quant", {"rows": [pile(16, None, None)]}) == "Nothing was measured."


def test_kv_size() -> None:
    figures = {
        "context": 32_768, "users": 32, "all_users_bytes": 154_618_822_656, "tokens_to_pass_weights": 111_094,
        "users_that_fit": 6, "memory_bytes": 48_000_000_000,
    }  # fmt: skip
    assert about("kv-size", {"model": "Qwen3-8B", "figures": figures}) == (
        "Qwen3-8B keeps 154.6 GB for 32 users of 32,768 tokens; its cache passes its weights at 111,094 tokens; 6 such "
        "users fit into 48.0 GB."
    )


def test_repeat() -> None:
    same = {"compared": 8, "same": 8, "differences": []}
    differ = {"compared": 8, "same": 7, "differences": [{"near_tie": True}]}
    assert about("repeat", {"rows": [same, same]}) == "All 16 repeated answers were identical to the first."
    assert about("repeat", {"rows": [same, differ]}).startswith("1 of 16 repeated answers differ from the first, 1 of")
    assert about("repeat", {"rows": []}) == "Nothing was measured."


def test_selftest() -> None:
    lag = {"name": "send lag p99, idle", "value": 0.14, "unit": "ms", "goal": 0.1}
    properties = [lag | {"passed": False}, lag | {"passed": True}, lag | {"passed": None, "value": None}]
    line = about("selftest", {"properties": [*properties, {"goal": None, "passed": None}]})
    assert line == (
        "The instrument met 1 of 3 goals on this machine; missed: send lag p99, idle 0.14 ms; 1 not measured."
    )


def test_a_figure_that_is_missing_is_not_made_up() -> None:
    half = replace(CONTINUOUS, reply=NOTHING)
    assert told(ONE, half).endswith("; continuous batching completed nothing.")
