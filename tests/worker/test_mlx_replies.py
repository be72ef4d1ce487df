"""What a request is answered does not depend on its neighbours, and ends where it must."""

from typing import Any

import pytest

from protocol.messages import ChatTurn, Submit
from tests.worker.engines import LIGHTHOUSE, engine_on, request
from worker.mlx_engine import MLXEngine
from worker.models import LoadedModel

pytestmark = pytest.mark.alone

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
