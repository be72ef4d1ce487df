"""A reused start changes nothing: the same answers as a cold run, alone or together, and never a changed cache."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.engines import LIGHTHOUSE, engine_on, request
from worker.mlx_engine import MLXEngine
from worker.models import LoadedModel

START = LIGHTHOUSE[:150]
ENDS = ["the storm", "a bell", "his book", "mending nets", "winter", "a lamp", "the harbour", "long stairs"]


@pytest.fixture
def sharing(tiny: LoadedModel) -> Iterator[MLXEngine]:
    engine = engine_on(tiny, prefix_bytes=10**9)
    yield engine
    engine.close()


def asked(number: int, share: int = len(START), text: str | None = None, limit: int = 12) -> Any:
    prompt = START + ENDS[number] if text is None else text
    return request(number, prompt, limit, prefix=share, margins=True)


def alone(engine: MLXEngine, play: Any) -> dict[int, Any]:
    """Answers of a cold run, one after another, nothing shared."""
    return {n: play(engine, [asked(n, share=0)])[n] for n in range(len(ENDS))}


def test_a_hit_answers_as_a_cold_run_and_reads_the_rest_alone(sharing: MLXEngine, play: Any) -> None:
    cold = alone(sharing, play)
    assert sharing.facts["prefix_misses"] == 0
    for n in range(len(ENDS)):
        warm = play(sharing, [asked(n)])[n]
        assert (warm.tokens, warm.text) == (cold[n].tokens, cold[n].text)
        assert warm.read == len(START + ENDS[n]) if n == 0 else len(ENDS[n])
    facts = sharing.facts
    assert (facts["prefix_hits"], facts["prefix_misses"], facts["prefix_evicted"]) == (7, 1, 0)
    assert facts["prefix_bytes"] == 2 * 2 * 2 * 16 * 4 * len(START)  # k and v, layers, kv heads, head size, float32


def test_eight_at_once_read_the_start_once_and_answer_as_alone(sharing: MLXEngine, play: Any) -> None:
    cold = alone(sharing, play)
    together = play(sharing, [asked(n) for n in range(len(ENDS))])
    assert {n: reply.tokens for n, reply in together.items()} == {n: reply.tokens for n, reply in cold.items()}
    assert sum(reply.read for reply in together.values()) == len(START) + sum(map(len, ENDS))
    assert (sharing.facts["prefix_hits"], sharing.facts["prefix_misses"]) == (7, 1)


def test_a_step_tells_what_was_reused(sharing: MLXEngine, play: Any) -> None:
    play(sharing, [asked(0)])
    sharing.insert([asked(1), asked(2, share=0)])
    outcome = sharing.step()
    assert outcome.reused == ((1, len(START)),)
    assert dict(outcome.read) == {1: len(ENDS[1]) - 1, 2: 64}
    assert sharing.step().reused == ()


def test_a_kept_cache_is_never_changed(sharing: MLXEngine, play: Any) -> None:
    """The same request again and again, others with the same start between, long replies."""
    first = play(sharing, [asked(0, limit=40)])[0].tokens
    for _ in range(3):
        play(sharing, [asked(n, limit=30) for n in range(1, 5)])
        assert play(sharing, [asked(0, limit=40)])[0].tokens == first


def test_an_exact_hit_answers_normally(sharing: MLXEngine, play: Any) -> None:
    cold = play(sharing, [asked(0, share=0, text=START)])[0].tokens
    play(sharing, [asked(1)])
    assert play(sharing, [asked(0, share=len(START) - 20, text=START)])[0].tokens == cold
    assert sharing.facts["prefix_hits"] == 1
    assert play(sharing, [asked(0, text=START)])[0].tokens == cold
    assert play(sharing, [asked(1)])[1].read == len(ENDS[1])


def test_a_longer_start_goes_on_from_a_shorter_one(sharing: MLXEngine, play: Any) -> None:
    cold = alone(sharing, play)
    play(sharing, [asked(0, share=100)])
    longer = play(sharing, [asked(1)])[1]
    assert longer.tokens == cold[1].tokens
    assert longer.read == len(START + ENDS[1]) - 100
    assert play(sharing, [asked(2)])[2].read == len(ENDS[2])


def test_if_the_reader_leaves_another_one_reads(sharing: MLXEngine, play: Any) -> None:
    cold = alone(sharing, play)
    sharing.insert([asked(n) for n in range(3)])
    sharing.step()
    assert sharing.in_flight == 3
    sharing.remove([0, 2])
    assert sharing.in_flight == 1
    tokens: list[int] = []
    while sharing.in_flight:
        tokens += [token for row in sharing.step().rows for token in row.tokens]
    assert tokens == cold[1].tokens


def test_the_least_recently_used_start_is_given_up(tiny: LoadedModel, play: Any) -> None:
    size = 2 * 2 * 2 * 16 * 4
    engine = engine_on(tiny, prefix_bytes=2 * 40 * size)
    starts = [LIGHTHOUSE[i : i + 40] for i in (0, 60, 120)]

    def ask(which: int) -> Any:
        return play(engine, [asked(0, share=40, text=starts[which] + " and", limit=2)])[0].read

    assert [ask(0), ask(1), ask(0), ask(2), ask(0), ask(1)] == [44, 44, 4, 44, 4, 44]
    assert engine.facts["prefix_evicted"] == 2
    engine.close()


def test_a_reset_forgets_every_start(sharing: MLXEngine, play: Any) -> None:
    play(sharing, [asked(0)])
    sharing.reset()
    assert (sharing.facts["prefix_bytes"], sharing.facts["prefix_misses"]) == (0, 0)
    assert play(sharing, [asked(1)])[1].read == len(START + ENDS[1])


def test_no_more_than_the_prompt_can_be_shared(sharing: MLXEngine) -> None:
    with pytest.raises(ValueError, match="request 0 shares 500 of its"):
        sharing.insert([asked(0, share=500)])
    assert sharing.in_flight == 0
