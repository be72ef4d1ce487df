"""A pile has the length that was asked for and one needle, in a place of its own; the question does not tell who."""

import re

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients import needle
from clients.needle import MAX_TOKENS, MIN_TOKENS, conversation, name
from clients.workloads import emails

NUMBERS = st.integers(0, 10_000)
SEEDS = st.integers(0, 2**32)
SIZES = st.integers(MIN_TOKENS, 5_000)

EMAIL = re.compile(r"(\w+ \w+) wrote: (.+)")
QUESTION = re.compile(r'Who wrote "(a \w+ has moved into my .+)"\?')


def parts(number: int, tokens: int, seed: int) -> tuple[list[tuple[str, str]], str]:
    """The emails of a pile, as body and writer, and the question at its end."""
    (turn,) = conversation(number, tokens, seed)
    assert turn.role == "user"
    task, *mails, question = turn.content.split("\n\n")
    assert task == needle.TASK
    found = [EMAIL.fullmatch(mail) for mail in mails]
    assert all(found)
    return [(match[2], match[1]) for match in found if match], question


def asked(question: str) -> str:
    """The words of the needle that a question is about."""
    match = QUESTION.fullmatch(question)
    assert match
    return match[1]


def place(number: int, tokens: int, seed: int) -> int:
    mails, _ = parts(number, tokens, seed)
    return [signer for _, signer in mails].index(name(number, seed))


@given(NUMBERS, SIZES, SEEDS)
def test_one_email_answers_the_question_and_is_signed_by_the_right_name(number: int, tokens: int, seed: int) -> None:
    mails, question = parts(number, tokens, seed)
    writer = name(number, seed)
    assert [signer for body, signer in mails if asked(question) in body] == [writer]
    assert conversation(number, tokens, seed)[0].content.count(writer) == 1
    assert writer not in question


@given(NUMBERS, SIZES, SEEDS)
def test_the_others_are_shipped_emails_each_of_another_customer(number: int, tokens: int, seed: int) -> None:
    mails, question = parts(number, tokens, seed)
    assert len({signer for _, signer in mails}) == len(mails)
    shipped = {prompt.turns[0].content for prompt in emails(72)}
    assert [body in shipped for body, _ in mails].count(False) == 1
    assert sum(word in body for body, _ in mails for word in asked(question).split()[1:2]) == 1


@given(NUMBERS, SIZES, SEEDS)
def test_a_pile_is_a_matter_of_its_arguments_alone(number: int, tokens: int, seed: int) -> None:
    assert conversation(number, tokens, seed) == conversation(number, tokens, seed)
    assert conversation(number, tokens, seed) != conversation(number + 1, tokens, seed)
    assert conversation(number, tokens, seed) != conversation(number, tokens, seed + 1)


@given(st.integers(-50, 10_000), SEEDS)
def test_the_right_name_does_not_depend_on_the_length(number: int, seed: int) -> None:
    for tokens in (MIN_TOKENS, 1_024):
        assert name(number, seed) in [signer for _, signer in parts(number, tokens, seed)[0]]


@settings(max_examples=10)
@given(SEEDS)
def test_numbers_differ_in_writer_thing_and_place(seed: int) -> None:
    things = {asked(parts(number, MIN_TOKENS, seed)[1]) for number in range(100)}
    assert len(things) == 100
    assert len({name(number, seed) for number in range(100)}) == 100
    assert len({place(number, 4_000, seed) for number in range(12)}) == 12


def test_600_different_things() -> None:
    assert len({needle._thing(number, 1) for number in range(600)}) == 600
    assert needle._thing(600, 1) == needle._thing(0, 1)


@given(st.integers(0, 1_000), SEEDS, st.sampled_from([512, 1_024, 4_000]))
def test_twelve_numbers_in_a_row_reach_every_third(first: int, seed: int, tokens: int) -> None:
    size = len(parts(0, tokens, seed)[0])
    thirds = {place(number, tokens, seed) * 3 // size for number in range(first, first + 12)}
    assert thirds == {0, 1, 2}


def test_a_needle_may_be_the_first_email_or_the_last() -> None:
    size = len(parts(0, 512, 1)[0])
    assert {place(number, 512, 1) for number in range(100)} == set(range(size))


def test_the_names() -> None:
    names = needle._names()
    assert len(set(names)) == len(names) >= 700
    assert all(re.fullmatch("[A-Z][a-z]+ [A-Z][a-z]+", whole) for whole in names)


def test_no_name_hides_in_another() -> None:
    first, last = needle._data()["first"], needle._data()["last"]
    assert not [(a, b) for a in first for b in first if a != b and b.lower().endswith(a.lower())]
    assert not [(a, b) for a in last for b in last if a != b and b.startswith(a)]


def test_no_other_email_speaks_of_a_needle_s_things() -> None:
    shipped = orjson.dumps([prompt.turns[0].content for prompt in emails(72)]).decode()
    for thing in [*needle._data()["guests"], *needle._data()["homes"]]:
        assert not re.search(rf"\b{thing}", shipped, re.IGNORECASE)


@pytest.mark.parametrize("tokens", [-1, 0, MIN_TOKENS - 1, MAX_TOKENS + 1])
def test_a_size_that_cannot_be_is_refused(tokens: int) -> None:
    with pytest.raises(ValueError, match=rf"^a pile has 200 to 100000 tokens, not {tokens}$"):
        conversation(0, tokens, 1)


def test_the_smallest_pile_has_some_emails() -> None:
    assert len(parts(7, MIN_TOKENS, 1)[0]) >= 4


@pytest.mark.parametrize("number", range(8))
def test_a_pile_of_most_customers_has_each_of_them_once(number: int) -> None:
    signers = [signer for _, signer in parts(number, MAX_TOKENS, 1)[0]]
    assert len(set(signers)) == len(signers) > 2_000


@pytest.mark.model
@pytest.mark.parametrize("tokens", [512, 1_024, 4_000, 16_500])
def test_the_prompt_has_about_the_tokens_that_were_asked_for(tokens: int) -> None:
    from tokenizers import Tokenizer

    from worker import gguf

    tokenizer = Tokenizer.from_file(str(gguf.model_folder() / "tokenizer.json"))
    for number in range(10):
        content = conversation(number, tokens, 12)[0].content
        bare, framed = content, f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        for text in (bare, framed):
            assert len(tokenizer.encode(text).ids) == pytest.approx(tokens, rel=0.1)


def test_of_the_customers_in_a_reply_the_first_one_counts() -> None:
    first, second = name(0, 12), name(1, 12)
    assert needle.first_named(f"It was {first.upper()}, not {second}.") == first
    assert needle.first_named(f"{second}, {first}") == second
    assert needle.first_named("I do not know.") is None
