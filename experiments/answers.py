"""Whether what a model wrote is right: an email's four fields, or the one name that was asked for."""

import re
import unicodedata
from collections.abc import Mapping

from clients.sorting import FIELDS

_MARKS = re.compile(r"[_\"'`#]")
# A field is its name with a sign behind it; a hyphen before a letter is none ("an order-related question").
_MENTION = re.compile(rf"\b({'|'.join(FIELDS)})\b(?: (?:number|no)\b\.?)? *(?:[:=|>*–—]|-(?!\w))")
_WORD = re.compile(r"\W*(\w+)")
_ORDER = re.compile(r"\W*(?:(?:order|number|no)\b\W*)*(n[/.]a|\w+)")
_DASH = re.compile(r"[\s*]*[-–—]+[ *.]*(?:[\n,;|}]|$)")


def parse(text: str) -> dict[str, str | None]:
    """The value of each of `FIELDS` in a reply, from where the field is first named; an order in digits, or "none".

    Case, markdown, JSON, the order of fields and words after a value do not matter. None for a field that is not
    there or has another value than `FIELDS` allows. Never raises.
    """
    plain = _MARKS.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    starts: dict[str, int] = {}
    for mention in _MENTION.finditer(plain):
        starts.setdefault(mention[1], mention.end())
    return {name: _value(name, plain[starts[name] :]) if name in starts else None for name in FIELDS}


def _value(name: str, rest: str) -> str | None:
    if name == "order":
        return _order(rest)
    word = _WORD.match(rest)
    return word[1] if word and word[1] in FIELDS[name] else None


def _order(rest: str) -> str | None:
    word = _ORDER.match(rest)
    if _DASH.match(rest) or (word and word[1] in ("none", "null", "n/a", "n.a", "na")):
        return "none"
    return word[1] if word and word[1].isascii() and word[1].isdigit() else None


def fields_right(text: str, labels: Mapping[str, str]) -> int:
    """How many of the values of `labels` a reply has."""
    read = parse(text)
    return sum(read[field] == value for field, value in labels.items())


def right(text: str, labels: Mapping[str, str]) -> bool:
    """Whether a reply has all the values of `labels`, one for each of `FIELDS`."""
    return parse(text) == labels


def found(text: str, name: str) -> bool:
    """Whether the whole name stands in a reply, whatever its case, accents, spaces and punctuation.

    It may not be part of a longer word: "Ann Berg" is not in "Joann Bergman". Raises ValueError for a name without a
    letter.
    """
    letters = [letter for letter in _decomposed(name) if letter.isalnum()]
    if not letters:
        raise ValueError(f"not a name: {name!r}")
    whole = r"[\W_]*".join(letters)
    return re.search(rf"(?<![^\W_]){whole}(?![^\W_])", _decomposed(text)) is not None


def _decomposed(text: str) -> str:
    """In lower case, accents as signs of their own behind their letters."""
    return unicodedata.normalize("NFKD", text).casefold()
