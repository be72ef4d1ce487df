"""The emails to sort are of many kinds, their answers follow the rules, and their prompts start alike, or stamped."""

import re
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from itertools import combinations
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.sorting import EMAILS, FIELDS, SHARED_TURNS, conversation, labels, written
from clients.workloads import emails
from protocol.messages import ChatTurn

DATA: dict[str, Any] = orjson.loads(resources.files("clients").joinpath("sorting.json").read_bytes())
ITEMS = [*DATA["examples"], *DATA["emails"]]
TEXTS = [item["email"] for item in ITEMS]
ANSWERS = [labels(number) for number in range(EMAILS)]


# --- the emails and their answers ---


def test_ten_examples_and_twenty_emails() -> None:
    assert DATA.keys() == {"rules", "examples", "emails"}
    assert len(DATA["examples"]) == 10
    assert len(DATA["emails"]) == EMAILS == 20
    for text in TEXTS:
        assert text.isascii()
        assert text == " ".join(text.split())


def test_no_email_is_there_twice_or_among_the_rush_s() -> None:
    assert len({*TEXTS, *(prompt.turns[0].content for prompt in emails(72))}) == 30 + 72


def test_the_emails_are_of_one_length() -> None:
    assert all(55 <= len(item["email"].split()) <= 75 for item in DATA["emails"])


@pytest.mark.parametrize("item", ITEMS)
def test_every_answer_has_the_fields_and_their_values(item: dict[str, Any]) -> None:
    answer = item["answer"]
    assert list(answer) == list(FIELDS)
    for name, values in FIELDS.items():
        assert answer[name] in values or (name == "order" and re.fullmatch("[0-9]{5}", answer[name]))


@pytest.mark.parametrize("item", ITEMS)
def test_the_order_is_the_first_that_the_email_names(item: dict[str, Any]) -> None:
    named = re.findall(r"\border (\d+)", item["email"], re.IGNORECASE)
    assert item["answer"]["order"] == (named[0] if named else "none")


def test_some_emails_name_two_orders_or_another_number() -> None:
    orders = [len(re.findall(r"\border \d", text, re.IGNORECASE)) for text in TEXTS]
    assert orders.count(2) >= 2
    others = [
        item["answer"]["order"] == "none" and re.search(r"\b\d{5}\b", item["email"]) is not None for item in ITEMS
    ]
    assert others.count(True) >= 4


def test_the_rules_name_every_value_and_the_examples_show_it() -> None:
    for name, values in FIELDS.items():
        for value in values:
            assert re.search(rf"\b{value}\b", DATA["rules"])
            assert value in [example["answer"][name] for example in DATA["examples"]]


def test_no_constant_answer_is_right_often() -> None:
    whole = Counter(tuple(answer.values()) for answer in ANSWERS)
    assert max(whole.values()) <= 5
    but_for_the_order = Counter(tuple(answer.values())[:3] for answer in ANSWERS)
    assert max(but_for_the_order.values()) <= 5
    for name, values in FIELDS.items():
        counts = Counter(answer[name] for answer in ANSWERS)
        assert all(2 <= counts[value] <= 10 for value in values)


# --- the prompts ---


def test_a_prompt_is_the_rules_the_examples_and_an_email() -> None:
    system, *examples, user = conversation(3)
    assert system == ChatTurn("system", DATA["rules"])
    for example, asked, answered in zip(DATA["examples"], examples[::2], examples[1::2], strict=True):
        assert asked == ChatTurn("user", f"Email: {example['email']}")
        assert answered == ChatTurn("assistant", written(example["answer"]))
    assert user == ChatTurn("user", f"Email: {DATA['emails'][3]['email']}")
    assert len(examples) + 1 == SHARED_TURNS


def test_an_answer_is_four_lines() -> None:
    assert written(labels(0)) == "Category: delivery\nUrgency: high\nMood: annoyed\nOrder: 48213"


@given(st.integers(0, 1_000_000))
def test_the_emails_come_back_after_twenty(number: int) -> None:
    assert conversation(number) == conversation(number % EMAILS)
    assert labels(number) == labels(number % EMAILS) == DATA["emails"][number % EMAILS]["answer"]


def test_a_caller_may_change_what_it_got() -> None:
    labels(0).clear()
    assert labels(0) == ANSWERS[0]


def test_prompts_share_all_turns_but_the_last() -> None:
    prompts = [conversation(number) for number in range(EMAILS)]
    assert len({prompt[:SHARED_TURNS] for prompt in prompts}) == 1
    assert len({prompt[SHARED_TURNS:] for prompt in prompts}) == EMAILS


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_a_stamp_is_a_line_of_its_own_for_every_number(one: int, two: int) -> None:
    stamped, plain = conversation(one, stamp=True), conversation(one)
    line, start = stamped[0].content.split("\n\n", 1)
    assert re.fullmatch(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d", line)
    assert start == plain[0].content
    assert stamped[1:] == plain[1:]
    assert stamped == conversation(one, stamp=True)
    assert (stamped[0] == conversation(two, stamp=True)[0]) == (one == two)


def test_stamped_starts_part_after_one_character() -> None:
    starts = [conversation(number, stamp=True)[0].content for number in range(EMAILS)]
    assert all(one[:2] != two[:2] for one, two in combinations(starts, 2))


@pytest.mark.model
def test_the_prompts_have_the_study_s_shape() -> None:
    from tokenizers import Tokenizer

    from worker import gguf

    tokenizer = Tokenizer.from_file(str(gguf.model_folder() / "tokenizer.json"))

    def tokens(turns: Sequence[ChatTurn], end: str = "") -> int:
        spoken = "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns)
        return len(tokenizer.encode(spoken + end).ids)

    assert tokens(conversation(0)[:SHARED_TURNS]) == pytest.approx(1_777, rel=0.02)
    mails = [tokens(conversation(number)[-1:], "<|im_start|>assistant\n") for number in range(EMAILS)]
    assert min(mails) >= 75
    assert max(mails) <= 95
    assert sum(mails) / EMAILS == pytest.approx(87, abs=3)
