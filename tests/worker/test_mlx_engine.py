"""The engine on real models: what it says of a step, what it refuses, and that no failure outlives a reset."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.messages import ChatTurn, Sampling, Submit
from tests.worker.engines import LIGHTHOUSE, engine_on, request
from worker.engine import Engine
from worker.mlx_engine import MLXEngine, warm_up_cases
from worker.models import LoadedModel
from worker.serving import sampler_for

pytestmark = pytest.mark.alone

# --- what a step says ----------------------------------------------------------------------------------------


def test_a_step_tells_what_was_read_and_who_decoded(tiny: LoadedModel) -> None:
    engine = engine_on(tiny, prefill_step=4)
    engine.insert([request(5, "x", 2), request(6, "seven c", 2)])
    outcomes = [engine.step() for _ in range(6)]
    assert [outcome.read for outcome in outcomes] == [((5, 1), (6, 4)), ((6, 2),), ((6, 1),), (), (), ()]
    assert [outcome.decoding for outcome in outcomes] == [0, 1, 1, 1, 1, 0]
    assert [[row.id for row in outcome.rows] for outcome in outcomes] == [[], [5], [5], [6], [6], []]
    engine.close()


def test_an_idle_step_does_nothing(engine: MLXEngine) -> None:
    outcome = engine.step()
    assert (outcome.decoding, outcome.read, outcome.rows) == (0, (), ())


def test_margins_are_the_gap_between_the_two_best_candidates(engine: MLXEngine, tiny: LoadedModel, play: Any) -> None:
    import mlx.core as mx

    prompt = b"measure me"
    logits: Any = mx.sort(tiny.network(mx.array([list(prompt)]))[0, -1])
    replies = play(engine, [request(1, "measure me", margins=True), request(2, "measure me")])
    assert len(replies[1].margins) == len(replies[1].tokens) == 8
    assert replies[1].margins[0] == pytest.approx((logits[-1] - logits[-2]).item(), abs=1e-3)
    assert replies[2].margins == []
    assert replies[1].tokens == replies[2].tokens


# --- what is refused, and what breaks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (request(7, "x" * 200, 101), "request 7: 200 prompt tokens and 101 reply tokens are over .* context of 300"),
        (request(7, (), 5), "request 7 needs a prompt"),
        (request(7, "x", 0), "request 7 needs a prompt and a reply of at least 1 token"),
        (request(7, (3, 257)), "request 7 has a token outside of the model's vocabulary of 257"),
        (request(1, "twice"), "request 1 is in the engine already"),
        (request(5, "twice"), "request 5 is in the engine already"),
    ],
)
def test_a_request_that_cannot_be_taken_is_refused_before_anything_changes(
    engine: MLXEngine, bad: Submit, why: str
) -> None:
    engine.insert([request(5, "is here", 3)])
    with pytest.raises(ValueError, match=why):
        engine.insert([request(1), bad])
    assert engine.in_flight == 1
    assert {row.id for _ in range(9) for row in engine.step().rows} == {5}


def test_a_prompt_and_reply_that_just_fit_the_context_are_served(engine: MLXEngine, play: Any) -> None:
    assert len(play(engine, [request(1, "x" * 250, 50)])[1].tokens) == 50


def test_an_insert_of_nothing_is_nothing(engine: MLXEngine) -> None:
    engine.insert([])
    assert engine.in_flight == 0


def test_after_an_error_in_a_step_a_reset_serves_again(engine: MLXEngine, tiny: LoadedModel, play: Any) -> None:
    import mlx.core as mx

    before = play(engine, [request(1)])[1]
    engine.insert([request(1), request(2)])
    engine.step()
    broken = tiny.network.model.layers[0].mlp.down_proj
    whole, broken.weight = broken.weight, mx.zeros((3, 3))
    try:
        with pytest.raises(RuntimeError, match=r"MLX failed in a step: ValueError: .*matmul"):
            for _ in range(3):
                engine.step()
    finally:
        broken.weight = whole
    engine.reset()
    assert engine.in_flight == 0
    assert play(engine, [request(1)])[1] == before


def test_a_reset_forgets_what_was_in_flight(engine: MLXEngine, play: Any) -> None:
    engine.insert([request(1, LIGHTHOUSE[:200], 50), request(2)])
    for _ in range(4):
        engine.step()
    engine.reset()
    assert engine.in_flight == 0
    assert engine.step().rows == ()
    assert len(play(engine, [request(1), request(2)])) == 2


def test_memory_peaks_start_anew_at_a_reset(tiny: LoadedModel, play: Any) -> None:
    engine = engine_on(tiny)
    play(engine, [request(n, LIGHTHOUSE[:250], 20) for n in range(8)])
    peak = engine.peak_memory()
    engine.reset()
    assert 0 <= engine.peak_memory() < peak
    engine.close()
    engine.close()  # twice does no harm


# --- sampling, warm-up, facts --------------------------------------------------------------------------------


def test_rows_with_equal_sampling_share_one_sampler(tiny: LoadedModel) -> None:
    warm = Sampling(0.7, 0.9, 40)
    assert sampler_for(tiny, warm) is sampler_for(tiny, Sampling(0.7, 0.9, 40))
    assert sampler_for(tiny, warm) is not sampler_for(tiny, Sampling(0.8, 0.9, 40))


def test_sampling_from_one_candidate_is_greedy(engine: MLXEngine, play: Any) -> None:
    greedy = play(engine, [request(1)])[1].tokens
    for sampling in (Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.0), Sampling(0.0, 0.5, 3)):
        assert play(engine, [request(1, sampling=sampling)])[1].tokens == greedy


def test_sampled_replies_repeat_after_a_reset(engine: MLXEngine, play: Any) -> None:
    hot = Sampling(10.0, top_k=2**20)  # more candidates than there are tokens: all of them
    engine.reset()
    first = play(engine, [request(1, sampling=hot), request(2)])
    engine.reset()
    assert play(engine, [request(1, sampling=hot), request(2)]) == first
    assert first[2].tokens == play(engine, [request(2)])[2].tokens != first[1].tokens


@pytest.mark.parametrize(
    ("seats", "lengths", "together", "cases"),
    [
        (1, [], 1, [(1,)]),
        (5, [], 5, [(1,), (1, 1), (1,) * 4, (1,) * 5]),
        (4, [9], 2, [(1,), (1, 1), (1,) * 4, (9,), (9, 9)]),
        (2, [7, 3, 8, 3, 8], 2, [(1,), (1, 1), (3,), (3, 3), (7,), (7, 7), (8,), (8, 8), (3, 8)]),
    ],
)
def test_warm_up_covers_batch_sizes_and_prompt_shapes(
    seats: int, lengths: list[int], together: int, cases: list[tuple[int, ...]]
) -> None:
    assert warm_up_cases(seats, lengths, together) == cases


def test_a_warm_up_raises_the_seats_and_leaves_the_engine_empty(tiny: LoadedModel, play: Any) -> None:
    engine = engine_on(tiny, seats=1, prefill_batch=1)
    asked = [request(n, f"request {n}", 40) for n in range(4)]
    engine.insert(asked[:1])
    engine.warm_up(4, [3, 20, 1_000])
    assert engine.in_flight == 0
    engine.insert(asked)
    assert max(engine.step().decoding for _ in range(20)) == 4
    engine.close()


def test_what_is_warm_is_not_warmed_again(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(tiny)
    ran: list[int] = []
    monkeypatch.setattr(engine, "insert", lambda requests: ran.append(len(requests)))
    engine.warm_up(2, [5])
    engine.warm_up(2, [5])
    engine.warm_up(3, [5])
    assert ran == [1, 2, 1, 2, 3, 3]  # alone and together, of 1 token and of 5; then three
    engine.close()


def test_facts_are_flat_and_say_what_ran(engine: MLXEngine) -> None:
    served: Engine = engine
    facts = served.facts
    assert all(isinstance(value, str | int | float | bool | None) for value in facts.values())
    assert (facts["engine"], facts["context"], facts["mlx_lm"][:5]) == ("mlx", served.context, "0.32.")
    assert facts["dtype"] == ("float32" if facts["device"] == "cpu" else facts["dtype"])
    assert facts["weights"].startswith("sha256:")
    assert facts["blas_warning"] is None


# --- prompts -------------------------------------------------------------------------------------------------


def test_conversations_become_tokens_by_the_chat_template(engine: MLXEngine, tiny: LoadedModel) -> None:
    talks = [[ChatTurn("user", "Hi")], [ChatTurn("system", "Be brief"), ChatTurn("user", "Ho")]]
    texts = [bytes(tokens).decode() for tokens in engine.tokenize(talks)]
    assert texts == ["user: Hi\nassistant: ", "system: Be brief\nuser: Ho\nassistant: "]


def test_a_conversation_that_the_template_refuses_is_a_value_error(engine: MLXEngine) -> None:
    with pytest.raises(ValueError, match="the chat template does not take this conversation: no robots"):
        engine.tokenize([[ChatTurn("robot", "Hi")]])


@pytest.fixture
def altered(tiny_folder: Any, tmp_path: Any) -> Callable[..., LoadedModel]:
    """The tiny model again, with other template arguments or without a template."""
    import json
    import shutil

    from worker import models

    def load(args: dict[str, Any] | None = None, template: bool = True) -> LoadedModel:
        folder = shutil.copytree(tiny_folder, tmp_path / "altered")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        if not template:
            del config["chat_template"]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return models.load(str(folder), args)

    return load


def test_template_arguments_reach_the_template(altered: Callable[..., LoadedModel]) -> None:
    engine = engine_on(altered({"enable_thinking": True, "mood": "glad "}))
    (prompt,) = engine.tokenize([[ChatTurn("user", "Hi")]])
    assert bytes(prompt).decode() == "user: Hi\nhmm glad assistant: "
    assert engine.facts["chat_template_args"] == '{"enable_thinking": true, "mood": "glad "}'
    engine.close()


def test_a_model_without_a_chat_template_says_so(altered: Callable[..., LoadedModel]) -> None:
    engine = engine_on(altered(template=False))
    with pytest.raises(ValueError, match="has no chat template"):
        engine.tokenize([[ChatTurn("user", "Hi")]])
    engine.close()
