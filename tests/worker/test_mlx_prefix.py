"""A reused start changes nothing: the same answers as a cold run, alone or together, and never a changed cache."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.engines import LIGHTHOUSE, engine_on, request
from worker.mlx_engine import MLXEngine
from worker.models import LoadedModel

pytestmark = pytest.mark.alone

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


def test_a_hit_that_leaves_before_its_first_step_is_told_of_no_more(sharing: MLXEngine, play: Any) -> None:
    play(sharing, [asked(0)])
    sharing.insert([asked(1)])
    sharing.remove([1])
    assert sharing.step().reused == ()
    sharing.insert([asked(2), asked(3)])
    sharing.remove([2])
    assert sharing.step().reused == ((3, len(START)),)


def test_two_starts_at_once_are_each_read_once(sharing: MLXEngine, play: Any) -> None:
    other = LIGHTHOUSE[40:140]
    plain = {n: play(sharing, [asked(n, share=0, text=other + ENDS[n])])[n].tokens for n in (4, 5)}
    cold = alone(sharing, play)
    requests = [asked(0), asked(4, share=len(other), text=other + ENDS[4]), asked(1)]
    requests.append(asked(5, share=len(other), text=other + ENDS[5]))
    together = play(sharing, requests)
    assert {n: together[n].tokens for n in (4, 5)} == plain
    assert {n: together[n].tokens for n in (0, 1)} == {n: cold[n].tokens for n in (0, 1)}
    assert (sharing.facts["prefix_hits"], sharing.facts["prefix_misses"]) == (2, 2)


def test_an_engine_that_breaks_forgets_who_waited(
    sharing: MLXEngine, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing.insert([asked(n) for n in range(3)])

    def broken() -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(sharing._generator, "next", broken)
    with pytest.raises(RuntimeError, match="no memory left"):
        sharing.step()
    sharing.reset()
    assert sharing.in_flight == 0
    assert len(play(sharing, [asked(n) for n in range(3)])) == 3


def test_cutting_a_kept_cache_of_caches_leaves_it_whole() -> None:
    """Some models keep several caches a layer, in a list that trims its members."""
    import mlx.core as mx
    from mlx_lm.models.cache import CacheList, KVCache

    from worker.mlx_engine import _own
    from worker.shared_prefixes import Boarding

    layer = CacheList(KVCache(), KVCache())
    for inner in layer.caches:
        inner.update_and_fetch(mx.ones((1, 1, 4, 2)), mx.ones((1, 1, 4, 2)))
    kept = [layer, KVCache()]
    kept[1].update_and_fetch(mx.ones((1, 1, 4, 2)), mx.ones((1, 1, 4, 2)))
    cut = _own(Boarding(request(1), 3, kept, surplus=1))
    assert [inner.offset for inner in cut[0].caches] == [3, 3]
    assert [inner.offset for inner in layer.caches] == [4, 4]
    assert kept[1].offset == 4
