"""Emails to sort by four fields, each after the same long start: rules and ten worked examples, then the email."""

from datetime import datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any

import orjson

from protocol.messages import ChatTurn

# An order may also be a number, written with digits only.
FIELDS: dict[str, tuple[str, ...]] = {
    "category": ("delivery", "return", "defect", "billing", "question", "praise"),
    "urgency": ("low", "normal", "high"),
    "mood": ("calm", "annoyed", "happy"),
    "order": ("none",),
}
EMAILS, EXAMPLES = 20, 10
SHARED_TURNS = 1 + 2 * EXAMPLES

FIRST_STAMP = datetime(2026, 3, 2, 9, 14, 5)
BETWEEN_STAMPS = timedelta(days=1, minutes=67, seconds=13)


def conversation(number: int, stamp: bool = False) -> tuple[ChatTurn, ...]:
    """The rules as a system turn, the worked examples as turns of user and assistant, and email `number` modulo
    `EMAILS` as the user's last turn.

    The first `SHARED_TURNS` turns are the same for every number, unless `stamp`: then the time of the request is their
    first line. It is made from the number, from 0 to a million, and no two numbers have the same.
    """
    rules = f"{_time(number)}\n\n{_data()['rules']}" if stamp else _data()["rules"]
    return ChatTurn("system", rules), *_worked_examples(), _asked(_data()["emails"][number % EMAILS])


def labels(number: int) -> dict[str, str]:
    """The right answer to `conversation(number)`: one value for each of `FIELDS`."""
    return dict(_data()["emails"][number % EMAILS]["answer"])


def written(answer: dict[str, str]) -> str:
    """An answer as the model is taught to write it: a line for each of `FIELDS`, such as "Category: delivery"."""
    return "\n".join(f"{name.capitalize()}: {answer[name]}" for name in FIELDS)


def _time(number: int) -> str:
    # The day goes first: within a month, two stamps have at most one digit in common before they part.
    return f"{FIRST_STAMP + number * BETWEEN_STAMPS:%d/%m/%Y %H:%M:%S}"


@cache
def _worked_examples() -> tuple[ChatTurn, ...]:
    pairs = [(_asked(item), ChatTurn("assistant", written(item["answer"]))) for item in _data()["examples"]]
    return tuple(turn for pair in pairs for turn in pair)


def _asked(item: dict[str, Any]) -> ChatTurn:
    return ChatTurn("user", f"Email: {item['email']}")


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(resources.files("clients").joinpath("sorting.json").read_bytes())
    return data
