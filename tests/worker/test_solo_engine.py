"""One request at a time: the same answers as the batching engine, a smaller cache, and no way to be batched."""

from typing import Any

import pytest

from protocol.messages import Sampling
from tests.worker.engines import LIGHTHOUSE, engine_on, request
from worker.engine import CannotServe
from worker.models import LoadedModel
from worker.solo_engine import SoloEngine

pytestmark = pytest.mark.alone


def solo_on(model: LoadedModel, kv_bits: int = 16, prefill_step: int = 64) -> SoloEngine:
    return SoloEngine(model, kv_bits=kv_bits, prefill_step=prefill_step)


def test_unquantized_it_answers_like_the_batching_engine(tiny: LoadedModel, play: Any) -> None:
    batching, solo = engine_on(tiny), solo_on(tiny)
    for prompt in ("x", "once upon", LIGHTHOUSE[:200]):
        ours, theirs = (play(engine, [request(1, prompt, 20, margins=True)])[1] for engine in (solo, batching))
        assert (ours.tokens, ours.text, ours.finish) == (theirs.tokens, theirs.text, theirs.finish)
        assert ours.margins == pytest.approx(theirs.margins, abs=1e-3)
        assert ours.read == theirs.read == len(prompt)
    batching.close()
    solo.close()


def test_it_stops_where_the_batching_engine_does(scripted: Any, play: Any) -> None:
    batching, solo = engine_on(scripted.model), solo_on(scripted.model)
    for name, start in scripted.starts.items():
        for stop in ((), ("STOP",)):
            asked = request(1, (start,), 60, ignore_eos=False, stop=stop)
            ours, theirs = (play(engine, [asked])[1] for engine in (solo, batching))
            assert (ours.tokens, ours.text, ours.finish) == (theirs.tokens, theirs.text, theirs.finish), name
    batching.close()


@pytest.fixture
def wide_headed(tiny: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Heads of 64 numbers, which groups of 64 fit into."""
    from tests.worker.conftest import END, byte_level, write_llama, write_tokenizer
    from worker import models

    folder = tmp_path_factory.mktemp("models") / "wide-headed"
    tokens = [*(byte_level(bytes([byte])) for byte in range(256)), END]
    config = {
        "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 128,
        "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": len(tokens),
        "max_position_embeddings": 1_000, "tie_word_embeddings": False, "eos_token_id": len(tokens) - 1,
    }  # fmt: skip
    write_llama(folder, config, lambda network: None)
    write_tokenizer(folder, tokens)
    return models.load(str(folder))


def test_fewer_bits_make_the_cache_smaller(wide_headed: LoadedModel, play: Any) -> None:
    """A scale and a bias of 32 bits for 64 numbers: 9 and 5 bits in place of 32."""
    sizes = {}
    for bits in (16, 8, 4):
        engine = solo_on(wide_headed, bits)
        assert engine.facts["kv_bytes"] is None
        play(engine, [request(1, LIGHTHOUSE[:200], 4)])
        sizes[bits] = engine.facts["kv_bytes"]
        engine.reset()
        assert engine.facts["kv_bytes"] is None
    assert sizes[16] == 2 * 2 * 2 * 64 * 256 * 4  # k and v, layers, heads, numbers, 256 tokens allocated, bytes
    assert sizes[8] / sizes[16] == pytest.approx(9 / 32)
    assert sizes[4] / sizes[16] == pytest.approx(5 / 32)


def test_a_second_request_is_refused(tiny: LoadedModel) -> None:
    engine = solo_on(tiny)
    with pytest.raises(ValueError, match="2 requests at once: this engine serves one at a time"):
        engine.insert([request(1), request(2)])
    engine.insert([request(1)])
    with pytest.raises(ValueError, match="one at a time"):
        engine.insert([request(2)])
    assert engine.in_flight == 1


@pytest.mark.parametrize("bits", [16, 8])
def test_more_than_one_seat_is_refused_with_the_reason(wide_headed: LoadedModel, bits: int) -> None:
    engine = solo_on(wide_headed, bits)
    with pytest.raises(CannotServe, match=r"a quantized KV cache cannot be batched .* asked for 8 seats"):
        engine.warm_up(8, [10])
    engine.warm_up(1, [10])
    assert engine.in_flight == 0


def test_a_removed_request_leaves_nothing(tiny: LoadedModel, play: Any) -> None:
    engine = solo_on(tiny, prefill_step=4)
    fresh = play(engine, [request(1)])[1].tokens
    engine.insert([request(2, "something else")])
    engine.step()
    engine.remove([7])
    assert engine.in_flight == 1
    engine.remove([2])
    assert engine.in_flight == 0
    assert engine.step().rows == ()
    assert play(engine, [request(1)])[1].tokens == fresh


def test_sampling_repeats_after_a_reset(tiny: LoadedModel, play: Any) -> None:
    engine = solo_on(tiny)
    warm = request(1, "once", 20, sampling=Sampling(1.5))
    engine.reset()
    first = play(engine, [warm])[1].tokens
    engine.reset()
    assert play(engine, [warm])[1].tokens == first


def test_a_cache_that_slides_is_refused_by_name(tmp_path: Any) -> None:
    from tests.worker.conftest import END, byte_level, write_llama, write_tokenizer
    from worker import models

    folder = tmp_path / "sliding"
    tokens = [*(byte_level(bytes([byte])) for byte in range(256)), END]
    config = {
        "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 128,
        "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": len(tokens),
        "max_position_embeddings": 1_000, "tie_word_embeddings": False, "eos_token_id": len(tokens) - 1,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32,
    }  # fmt: skip
    write_llama(folder, config, lambda network: None)
    write_tokenizer(folder, tokens)
    model = models.load(str(folder))
    with pytest.raises(ValueError, match=r"the KV cache of .*sliding \(RotatingKVCache\) cannot be quantized"):
        solo_on(model, 8)
    solo_on(model, 16)
