"""A long pile of emails that hides one odd remark, and the question who wrote it: what a KV cache must keep."""

from functools import cache
from importlib import resources
from itertools import cycle, product
from random import Random

import orjson

from protocol.messages import ChatTurn

MIN_TOKENS = 200
MAX_TOKENS = 100_000  # beyond, the customers' names run out

# Measured with the embedded model's tokenizer: an email of the pile, with its name, is 113 characters long, and 3.62 of
# them are a token. The emails differ so little in length that counting them is as exact as adding up their characters.
EMAIL_TOKENS = 113 / 3.62
# The same tokenizer's count of the task, the needle and the question; a chat template adds some 10 to 30.
FRAME_TOKENS = 65

TASK = "These are the emails that an outdoor gear shop has received. Read them all; a question follows the last one."

# Multiples of it, modulo 1, lie evenly however many there are, and no two are the same.
GOLDEN_RATIO = 0.6180339887498949


def conversation(number: int, tokens: int, seed: int) -> tuple[ChatTurn, ...]:
    """Question `number` about a pile: one user turn of about `tokens` tokens.

    Each email is of another customer; one is the needle, which the question is about. Up
    to 600 numbers in a row ask about different things, and their needles lie evenly over the pile. Raises ValueError
    unless `tokens` is from `MIN_TOKENS` to `MAX_TOKENS`.
    """
    if not MIN_TOKENS <= tokens <= MAX_TOKENS:
        raise ValueError(f"a pile has {MIN_TOKENS} to {MAX_TOKENS} tokens, not {tokens}")
    writer, (guest, home) = name(number, seed), _thing(number, seed)
    needle = _written(writer, f"This may make you laugh: a {guest} has moved into my {home} and will not leave.")
    question = f'Who wrote "a {guest} has moved into my {home}"?'
    pile = _pile(round((tokens - FRAME_TOKENS) / EMAIL_TOKENS), writer, Random(f"pile {number} {seed}"))
    pile.insert(int(_depth(number, seed) * (len(pile) + 1)), needle)
    return (ChatTurn("user", "\n\n".join([TASK, *pile, question])),)


def name(number: int, seed: int) -> str:
    """The customer who wrote the needle of `conversation(number, ..., seed)`: first and last name."""
    writers = _shuffled("names", seed)
    return writers[number % len(writers)]


def first_named(text: str) -> str | None:
    """The first customer whom a reply names, of all there are: one that lists everybody has found nobody."""
    lower = text.casefold()
    places = {place: name for name in _names() if (place := lower.find(name.casefold())) >= 0}
    return places[min(places)] if places else None


def _thing(number: int, seed: int) -> tuple[str, str]:
    """Who moved in, and where. The lists have 25 and 24 entries, so a pair comes back after 600 numbers."""
    guests, homes = _shuffled("guests", seed), _shuffled("homes", seed)
    return guests[number % len(guests)], homes[number % len(homes)]


def _depth(number: int, seed: int) -> float:
    """Where in the pile the needle lies: from 0, the first email, to 1."""
    return (Random(f"depth {seed}").random() + number * GOLDEN_RATIO) % 1


def _pile(n: int, writer: str, draw: Random) -> list[str]:
    """`n` emails, each of another customer, none of them `writer`."""
    signers = draw.sample([other for other in _names() if other != writer], n)
    bodies = cycle(draw.sample(_bodies(), len(_bodies())))
    return [_written(signer, body) for body, signer in zip(bodies, signers, strict=False)]


def _written(writer: str, body: str) -> str:
    # The name first, as small models find it: what was said last is what they go on from.
    return f"{writer} wrote: {body}"


@cache
def _shuffled(kind: str, seed: int) -> list[str]:
    items = _names() if kind == "names" else _data()[kind]
    return Random(f"{kind} {seed}").sample(items, len(items))


@cache
def _names() -> list[str]:
    return [" ".join(pair) for pair in product(_data()["first"], _data()["last"])]


@cache
def _bodies() -> list[str]:
    return list(orjson.loads(resources.files("clients").joinpath("emails.json").read_bytes()))


@cache
def _data() -> dict[str, list[str]]:
    return dict(orjson.loads(resources.files("clients").joinpath("needle.json").read_bytes()))
