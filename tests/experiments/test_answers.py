"""A right answer is found right however it is written, a wrong one never, and no reply breaks the scoring."""

import json
import re
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients import needle
from clients.sorting import EMAILS, FIELDS, conversation, labels, written
from experiments.answers import found, parse, right

Answer = dict[str, str]

DELIVERY = {"category": "delivery", "urgency": "low", "mood": "calm", "order": "10482"}
NOTHING = dict.fromkeys(FIELDS)

ORDERS = st.just("none") | st.integers(1, 10**12).map(str)
ANSWERS = st.fixed_dictionaries(
    {name: ORDERS if name == "order" else st.sampled_from(values) for name, values in FIELDS.items()}
)


def lines(pattern: str) -> Callable[[Answer], str]:
    return lambda answer: "\n".join(pattern.format(name.capitalize(), value) for name, value in answer.items())


def joined(between: str, pattern: str = "{}: {}") -> Callable[[Answer], str]:
    return lambda answer: between.join(pattern.format(name, value) for name, value in answer.items())


def as_json(answer: Answer) -> str:
    order = answer["order"]
    return json.dumps({**answer, "order": None if order == "none" else int(order)}, indent=1)


STYLES: dict[str, Callable[[Answer], str]] = {
    "as taught": lines("{}: {}"),
    "no space": lines("{}:{}"),
    "spaced": lines("  {} :   {}  \n"),
    "bold name and colon": lines("**{}:** {}"),
    "bold name": lines("**{}**: {}"),
    "bold, no colon": lines("**{}** {}"),
    "bold value": lines("{}: **{}**"),
    "underlined": lines("__{}__: _{}_"),
    "bullets": lines("- {}: {}"),
    "bullets of stars": lines("* **{}** - {}"),
    "numbered": lines("1. {}: `{}`"),
    "hyphen": lines("{} - {}"),
    "dash": lines("{} – {}"),
    "arrow": lines("{} -> {}"),
    "equals": lines("{}={}"),
    "table": lines("| {} | {} |"),
    "quoted": lines("{}: '{}'"),
    "headings": lines("### {}:\n{}\n"),
    "full width": lines("{}：{}"),
    "more words": lines("{}: {} (because the parcel of this order is late)"),
    "more clauses": lines("{}: {}, since the customer's order-related mood is what it is"),
    "commas": joined(", "),
    "semicolons": joined("; "),
    "commas and dashes": joined(", ", "{} - {}"),
    "bars": joined(" | "),
    "spaces": joined(" "),
    "with a preamble": lambda answer: f"Sure! Here is my answer to this email:\n\n{written(answer)}\n\nAnything else?",
    "fenced": lambda answer: f"```\n{written(answer)}\n```",
    "json": as_json,
    "json of texts": json.dumps,
    "fenced json": lambda answer: f"```json\n{as_json(answer)}\n```",
}


@pytest.mark.parametrize("style", STYLES)
@given(ANSWERS, st.permutations(list(FIELDS)), st.sampled_from([str, str.upper, str.lower, str.title]))
def test_an_answer_is_read_back_in_any_style(style: str, answer: Answer, names: list[str], case: type[str]) -> None:
    text = case(STYLES[style]({name: answer[name] for name in names}))
    assert parse(text) == answer
    assert right(text, answer)


@given(ANSWERS, ANSWERS)
def test_only_the_same_answer_is_right(one: Answer, two: Answer) -> None:
    assert right(written(one), two) == (one == two)


@given(ANSWERS, st.sampled_from(list(FIELDS)))
def test_a_missing_field_is_none_and_never_right(answer: Answer, name: str) -> None:
    text = "\n".join(line for line in written(answer).splitlines() if not line.lower().startswith(name))
    assert parse(text) == {**answer, name: None}
    assert not right(text, answer)
    assert parse(written({**answer, name: ""})) == {**answer, name: None}


@given(ANSWERS, ANSWERS)
def test_the_first_mention_counts(one: Answer, two: Answer) -> None:
    assert parse(f"{written(one)}\n{written(two)}") == one


@pytest.mark.parametrize("value", ["#10482", "# 10482", "No. 10482", "number 10482", "order #10482", "10482 and 20931"])
def test_order_numbers_are_compared_as_digits(value: str) -> None:
    assert right(written({**DELIVERY, "order": value}), DELIVERY)


@pytest.mark.parametrize("name", ["Order number: ", "Order No.: ", "order_number = ", "Order - ", "Order: #"])
def test_names_of_the_order(name: str) -> None:
    assert parse(f"{name}10482") == {**NOTHING, "order": "10482"}


@pytest.mark.parametrize(
    "value", ["none", "None.", "N/A", "n.a.", "null", "-", "--", "—", "**-**", "(none)", "none given"]
)
def test_no_order(value: str) -> None:
    answer = {**DELIVERY, "order": "none"}
    assert right(written({**DELIVERY, "order": value}), answer)
    assert right(f"Order: {value}\nCategory: delivery\nUrgency: low\nMood: calm", answer)
    assert right(f"- Order: {value}\n- Category: delivery\n- Urgency: low\n- Mood: calm", answer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("delivery low calm 10482", {}),
        ("Category: shipping", {}),
        ("Category: shipping\nCategory: delivery", {}),
        ("Category: deliveryman", {}),
        ("Category:\nUrgency: low", {"urgency": "low"}),
        ("Subcategory: delivery", {}),
        ("Mood: not happy", {}),
        ("Order: unknown", {}),
        ("Order: 10482b", {}),
        ("Order: ١٠٤٨٢", {}),
        ("Order:\n- Mood: calm", {"mood": "calm"}),
        ("An order-related mood: calm", {"mood": "calm"}),
        ('{"category": "defect", "order": ""}', {"category": "defect"}),
    ],
)
def test_what_is_no_answer(text: str, expected: Answer) -> None:
    assert parse(text) == {**NOTHING, **expected}


PIECES = st.sampled_from(
    [*FIELDS, *(value for values in FIELDS.values() for value in values), *":=|>*_-–—#\"'`{}[],;. \n\t1", "no", "n/a"]
)


@given(st.text() | st.lists(PIECES).map("".join) | st.text(st.characters(categories=["Cs", "Mn", "Nd", "Pd"])))
def test_hostile_text_never_raises(text: str) -> None:
    values = parse(text)
    assert list(values) == list(FIELDS)
    for name, value in values.items():
        assert value is None or value in FIELDS[name] or (name == "order" and re.fullmatch("[0-9]+", value))
    assert right(text, DELIVERY) in (True, False)
    assert not found("", "Rosa Voss")
    assert found(text, "Rosa Voss") == found(text.upper(), "Rosa Voss")


@pytest.mark.parametrize(
    "piece", ["order", "order ", "order:", "order: no ", "order*", "*", "-", "_", " ", "category: "]
)
def test_long_text_is_read_in_one_go(piece: str) -> None:
    assert parse(piece * 100_000) == NOTHING
    assert not found(piece * 100_000, "Rosa Voss")


# --- the shipped emails ---


def test_every_worked_example_reads_as_itself() -> None:
    examples = [turn.content for turn in conversation(0) if turn.role == "assistant"]
    assert len(examples) == 10
    for answer in examples:
        assert None not in parse(answer).values()
        assert written({name: value or "" for name, value in parse(answer).items()}) == answer


def test_every_right_answer_is_right_for_its_own_email_alone() -> None:
    for number in range(EMAILS):
        assert [right(written(labels(other)), labels(number)) for other in range(EMAILS)].count(True) == 1


# --- a name ---


@pytest.mark.parametrize(
    "text",
    [
        "José O'Brien-Ångström",
        "jose obrien angstrom",
        "The email was written by **José O’Brien Ångström**.",
        "JOSÉ OBRIEN ÅNGSTRÖM!",
        "Jose\u0301 O'Brien\nA\u030angstro\u0308m",
        "_JoséO'BrienÅngström_",
        "José O'Brien-Ångström's",
    ],
)
def test_a_name_is_found(text: str) -> None:
    assert found(text, "José O'Brien-Ångström")


@pytest.mark.parametrize(
    "text",
    ["", "Ann", "Berg", "Berg, Ann", "Ann Bergman", "Joann Berg", "Ann van Berg", "Anna Berg", "Ann B.", "Ann 1 Berg"],
)
def test_a_name_is_not_found(text: str) -> None:
    assert not found(text, "Ann Berg")


@pytest.mark.parametrize("name", ["", " ", "-", "\u0301"])
def test_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^not a name: "):
        found("Rosa Voss", name)


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.text(string.punctuation + " ", max_size=5))
def test_a_needle_s_name_is_found_and_no_other(one: int, two: int, sign: str) -> None:
    mine, other = needle.name(one, 1), needle.name(two, 1)
    reply = f"It was{sign} {mine.replace(' ', sign)}{sign}"
    assert found(reply.upper(), mine)
    assert found(reply, other) == (mine == other)
