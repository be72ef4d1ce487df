"""The engine on real models: replies do not depend on their neighbours, and no failure outlives a reset."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protocol.messages import ChatTurn, Sampling, Submit
from worker.engine import Engine
from worker.mlx_engine import MLXEngine, warm_up_cases
from worker.models import LoadedModel

LIGHTHOUSE = (
    "The lighthouse keeper had counted ships for forty years, and every evening he wrote their names into a book "
    "that nobody else was ever allowed to open. When the last ship of the season passed, he closed the book, put "
    "out the lamp, and walked down the long stairs to the harbour, where the fishermen were mending their nets and "
    "talking about the storm that had taken three boats and a church bell the winter before."
)


def engine_on(model: LoadedModel, seats: int = 8, prefill_step: int = 64, prefill_batch: int = 8) -> MLXEngine:
    return MLXEngine(model, seats=seats, prefill_step=prefill_step, prefill_batch=prefill_batch)


@pytest.fixture
def engine(tiny: LoadedModel) -> Iterator[MLXEngine]:
    made = engine_on(tiny)
    yield made
    made.close()


@pytest.fixture
def reciter(scripted: Any) -> Iterator[MLXEngine]:
    made = engine_on(scripted.model)
    yield made
    made.close()


def request(number: int, prompt: str | tuple[int, ...] = "once upon", limit: int = 8, **more: Any) -> Submit:
    """A request for the tiny model, whose tokens are bytes; it does not stop before its limit unless it may."""
    tokens = tuple(prompt.encode()) if isinstance(prompt, str) else prompt
    return Submit(number, "user", tokens, limit, **{"ignore_eos": True, **more})


# --- replies and their neighbours ----------------------------------------------------------------------------


@pytest.mark.model
def test_one_prompt_four_times_gives_four_identical_replies(embedded: LoadedModel, play: Any) -> None:
    engine = engine_on(embedded)
    (prompt,) = engine.tokenize([[ChatTurn("user", "What is the capital of France?")]])
    replies = play(engine, [Submit(n, "user", tuple(prompt), 24) for n in range(4)])
    assert [reply == replies[0] for reply in replies.values()] == [True] * 4
    assert "Paris" in replies[0].text
    assert replies[0].finish == "stop"
    engine.close()


@pytest.mark.model
@pytest.mark.timeout(400)
def test_prompts_of_all_lengths_get_together_what_each_gets_alone(embedded: LoadedModel, play: Any) -> None:
    engine, story = engine_on(embedded), embedded.tokenizer.encode(LIGHTHOUSE)
    prompts = [story[:1], *(story[-length:] for length in (2, 9, 33, 70))]
    asked = [request(number, tuple(prompt), 64) for number, prompt in enumerate(prompts)]
    together = play(engine, asked)
    for alone in asked:
        assert play(engine, [alone])[alone.id].tokens == together[alone.id].tokens
    assert [reply.read for reply in together.values()] == [1, 2, 9, 33, 70]
    engine.close()


def test_prompts_longer_than_a_chunk_get_what_whole_ones_get(tiny: LoadedModel, play: Any) -> None:
    whole, chunked = engine_on(tiny), engine_on(tiny, prefill_step=7, prefill_batch=2)
    asked = [request(number, LIGHTHOUSE[:length]) for number, length in enumerate((1, 2, 8, 9, 33, 70))]
    expected = play(whole, asked)
    replies = play(chunked, asked)
    assert [reply.tokens for reply in replies.values()] == [reply.tokens for reply in expected.values()]
    assert [reply.read for reply in replies.values()] == [1, 2, 8, 9, 33, 70]
    whole.close()
    chunked.close()


def test_replies_that_end_early_do_not_disturb_those_that_go_on(engine: MLXEngine, play: Any) -> None:
    limits = [1, 200, 2, 3, 200, 4, 5, 6, 7, 8]
    asked = [request(n, LIGHTHOUSE[n * 9 : n * 11 + 5], limit) for n, limit in enumerate(limits)]
    replies = play(engine, asked)
    assert [len(reply.tokens) for reply in replies.values()] == limits
    assert {reply.finish for reply in replies.values()} == {"length"}
    for one in asked:
        assert play(engine, [one])[one.id].tokens == replies[one.id].tokens


def test_requests_that_come_later_get_what_they_get_alone(engine: MLXEngine, play: Any) -> None:
    early, late = request(1, "the first one", 40), request(2, "somebody else, later", 20)
    alone = {**play(engine, [early]), **play(engine, [late])}
    got: dict[int, list[int]] = {1: [], 2: []}
    engine.insert([early])
    for step in range(100):
        if step == 9:
            engine.insert([late])
        for row in engine.step().rows:
            got[row.id] += row.tokens
    assert (got[1], got[2]) == (alone[1].tokens, alone[2].tokens)
    assert engine.in_flight == 0


def test_a_removed_request_is_gone_at_the_next_step_and_the_others_go_on(engine: MLXEngine, play: Any) -> None:
    asked = [request(n, f"number {n}", 30) for n in range(3)]
    alone = {one.id: play(engine, [one])[one.id].tokens for one in asked}
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}
    engine.insert(asked)
    while len(got[1]) < 5:
        for row in engine.step().rows:
            got[row.id] += row.tokens
    engine.remove([1, 1, 77])
    assert engine.in_flight == 2
    while engine.in_flight:
        outcome = engine.step()
        assert 1 not in {row.id for row in outcome.rows}
        assert outcome.decoding <= 2
        for row in outcome.rows:
            got[row.id] += row.tokens
    assert got == {0: alone[0], 1: alone[1][:5], 2: alone[2]}


def test_requests_can_be_removed_before_and_while_their_prompts_are_read(tiny: LoadedModel, play: Any) -> None:
    engine = engine_on(tiny, prefill_step=4, prefill_batch=2)
    stays = request(3, "the one that stays")
    expected = play(engine, [stays])[3].tokens
    engine.insert([request(1, LIGHTHOUSE[:60]), stays, request(2, LIGHTHOUSE[:50])])
    assert engine.step().read == ((1, 4), (3, 4))
    engine.remove([1, 2])
    got: list[int] = []
    while engine.in_flight:
        for row in engine.step().rows:
            assert row.id == 3
            got += row.tokens
    assert got == expected
    engine.insert([request(1, LIGHTHOUSE[:60])])  # the number is free again
    engine.close()


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


# --- how replies end -----------------------------------------------------------------------------------------


def recital(scripted: Any, number: int, name: str, limit: int = 100, **more: Any) -> Submit:
    return request(number, (scripted.starts[name],), limit, **{"ignore_eos": False, **more})


def test_the_stop_token_ends_a_reply_and_is_not_part_of_it(reciter: MLXEngine, scripted: Any, play: Any) -> None:
    reply = play(reciter, [recital(scripted, 1, "count", margins=True)])[1]
    assert reply.text.encode() == b"".join(scripted.scripts["count"])
    assert (reply.finish, len(reply.tokens), len(reply.margins), reply.rows) == ("stop", 30, 30, 31)


def test_ignoring_the_stop_token_it_is_a_token_like_any_other(reciter: MLXEngine, scripted: Any, play: Any) -> None:
    reply = play(reciter, [recital(scripted, 1, "stops", 9, ignore_eos=True)])[1]
    assert (reply.finish, len(reply.tokens)) == ("length", 9)
    assert reply.tokens[5] == scripted.model.tokenizer.eos_token_id


def test_characters_cut_by_the_limit_come_out_as_the_beginning_of_the_whole(
    reciter: MLXEngine, scripted: Any, play: Any
) -> None:
    pieces = scripted.scripts["signs"]
    replies = play(reciter, [recital(scripted, n, "signs", n) for n in range(1, len(pieces) + 2)])
    for limit, reply in replies.items():
        assert reply.text == b"".join(pieces[:limit]).decode(errors="ignore")
    assert replies[len(pieces)].text == "Grüße 👩‍👧 e\u0301 漢字カナ 🇩🇪!"
    assert replies[len(pieces) + 1].finish == "stop"


def test_a_stop_string_over_three_tokens_is_cut_and_the_neighbours_go_on(reciter: MLXEngine, scripted: Any) -> None:
    reciter.insert([recital(scripted, 1, "stops", stop=("STOP",)), recital(scripted, 2, "count")])
    stopped, heard = [], {1: "", 2: ""}
    while reciter.in_flight == 2:
        for row in reciter.step().rows:
            heard[row.id] += row.text
            if row.id == 1:
                stopped.append((row.text, row.finish))
    assert stopped == [("Hel", None), ("lo ", None), ("", None), ("", "stop")]
    while reciter.in_flight:
        outcome = reciter.step()
        assert [row.id for row in outcome.rows] == [2]
        heard[2] += outcome.rows[0].text
    assert heard[2].encode() == b"".join(scripted.scripts["count"])


def test_the_tokens_of_a_stop_string_count_though_its_text_is_cut(reciter: MLXEngine, scripted: Any, play: Any) -> None:
    reply = play(reciter, [recital(scripted, 1, "stops", stop=("STOP",), margins=True)])[1]
    assert (reply.text, reply.finish, len(reply.tokens), len(reply.margins)) == ("Hello ", "stop", 4, 4)
    at_the_limit = play(reciter, [recital(scripted, 1, "stops", 4, stop=("STOP",))])[1]
    assert (at_the_limit.text, at_the_limit.finish) == ("Hello ", "stop")


@pytest.mark.parametrize(("limit", "finish"), [(100, "stop"), (5, "length"), (3, "length")])
def test_what_only_began_like_a_stop_string_is_part_of_the_reply(
    reciter: MLXEngine, scripted: Any, play: Any, limit: int, finish: str
) -> None:
    reply = play(reciter, [recital(scripted, 1, "almost", limit, stop=("STOP", "S?"))])[1]
    assert reply.text.encode() == b"".join(scripted.scripts["almost"][:limit])
    assert reply.finish == finish


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


def test_rows_with_equal_sampling_share_one_sampler(engine: MLXEngine) -> None:
    warm = Sampling(0.7, 0.9, 40)
    assert engine._sampler(warm) is engine._sampler(Sampling(0.7, 0.9, 40))
    assert engine._sampler(warm) is not engine._sampler(Sampling(0.8, 0.9, 40))


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
