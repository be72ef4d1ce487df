"""Nothing that a peer may send gets through `decode` unless it is a message."""

import math
import random
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocol import messages as m
from protocol.fields import MAX_ID, BadMessage
from protocol.messages import TAGS, VERSION, Message, decode, encode, readable_id
from tests.protocol.every_message import MESSAGES, RUN, any_message, packed, refused, submits


def conforms(value: object, hint: Any) -> bool:
    """Whether a decoded value is what its field declares: whole numbers are no bools, and real ones are finite."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is types.UnionType:
        return any(conforms(value, option) for option in inner)
    if kind is tuple:
        return type(value) is tuple and all(conforms(item, inner[0]) for item in value)
    if kind is dict:
        return type(value) is dict and all(type(name) is str and is_plain(item) for name, item in value.items())
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        inside = typing.get_type_hints(hint)
        return type(value) is hint and all(conforms(getattr(value, name), inside[name]) for name in inside)
    return type(value) is hint and is_plain(value)


def is_plain(value: object) -> bool:
    return type(value) in (str, int, bool, type(None)) or (type(value) is float and math.isfinite(value))


def check_refused_or_sound(data: bytes) -> None:
    """The promise of `decode`: BadMessage and nothing else, or a message whose every field holds what it declares."""
    try:
        message = decode(data, RUN)
    except BadMessage as error:
        assert "\n" not in str(error) and len(str(error)) < 300
        return
    assert conforms(message, type(message))
    assert decode(encode(message, RUN), RUN) == message


@given(any_message)
def test_what_is_valid_conforms(message: Message) -> None:
    assert conforms(message, type(message))


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    check_refused_or_sound(data)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(sorted(TAGS))
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**32))
)
keys = st.text(max_size=4) | st.integers(0, 9) | st.binary(max_size=4)
structures = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)


@given(structures)
def test_random_structures(structure: object) -> None:
    check_refused_or_sound(packed(structure))
    check_refused_or_sound(msgpack.packb(structure))


@given(st.sampled_from(sorted(TAGS)), st.lists(structures, max_size=12))
def test_random_fields_under_a_valid_head(tag: str, values: list[object]) -> None:
    check_refused_or_sound(packed(VERSION, tag, RUN, *values))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a structure: what a mutation can change."""
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    return [place for key, inner in items for place in ((value, key), *places(inner))]


@given(any_message, st.integers(0, 2**32), st.sampled_from(["replace", "delete", "repeat"]), structures)
def test_mutated_messages(message: Message, seed: int, how: str, new: object) -> None:
    raw = msgpack.unpackb(encode(message, RUN))
    container, key = random.Random(seed).choice(places(raw))
    if how == "replace":
        container[key] = new
    elif how == "delete":
        del container[key]
    elif isinstance(container, list):
        container.insert(key, container[key])
    check_refused_or_sound(msgpack.packb(raw))


@given(any_message, st.data())
def test_flipped_and_torn_bytes(message: Message, data: st.DataObject) -> None:
    sent = bytearray(encode(message, RUN))
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] = data.draw(st.integers(0, 255))
    check_refused_or_sound(bytes(sent))
    assert refused(encode(message, RUN)[:place])
    assert refused(encode(message, RUN) + bytes(sent[place:]))


HOSTILE: list[object] = [
    True, 1.0, -1, 2**63, 2**64 - 1, -(2**63), math.nan, math.inf, -math.inf, "", "7", b"", b"7", None, [], [None],
    [[]], [True], [math.nan], [-1], {}, {"a": 1}, msgpack.ExtType(5, b""), msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(1), [1] * 3, "x" * 70_000,
]  # fmt: skip


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
def test_every_field_withstands_every_hostile_value(kind: type[Message], data: st.DataObject) -> None:
    raw = msgpack.unpackb(encode(data.draw(MESSAGES[kind]), RUN))
    place = data.draw(st.integers(0, len(raw) - 1))
    for value in HOSTILE:
        check_refused_or_sound(packed(*raw[:place], value, *raw[place + 1 :]))


SUBMIT = [3, "ann", [5, 6], 9, False, ["x"], [0.5, 1.0, 0], None, 0, 2.0, False]
ROW = [1, [2, 3], "ab", None, None]


def with_(values: list[Any], place: int, value: object) -> list[Any]:
    return [*values[:place], value, *values[place + 1 :]]


@pytest.mark.parametrize(
    ("tag", "values"),
    [
        ("ping", [True]),
        ("ping", [7.0]),
        ("ping", [-1]),
        ("ping", [2**63]),
        ("ping", []),
        ("ping", [7, 8]),
        ("ping", [[7]]),
        ("hello", ["router", "i", 0, 1]),
        ("hello", ["client", "i", 0, 0]),
        ("hello", ["client", b"i", 0, 1]),
        ("beat", ["i", 0, 0, math.nan]),
        ("beat", ["i", 0, 0, math.inf]),
        ("beat", ["i", 0, 0, False]),
        ("worker-ready", [100, 1, {}]),
        ("worker-ready", [100, True, {"a": math.nan}]),
        ("worker-ready", [100, True, {"a": -math.inf}]),
        ("worker-ready", [100, True, {"a": [1]}]),
        ("worker-ready", [100, True, {"a": b"x"}]),
        ("worker-ready", [100, True, {7: 1}]),
        ("submit", with_(SUBMIT, 0, MAX_ID + 1)),
        ("submit", with_(SUBMIT, 2, [5, True])),
        ("submit", with_(SUBMIT, 2, [5, -1])),
        ("submit", with_(SUBMIT, 2, [5, 2**31])),
        ("submit", with_(SUBMIT, 2, [5, 6.0])),
        ("submit", with_(SUBMIT, 2, [[5]])),
        ("submit", with_(SUBMIT, 3, 0)),
        ("submit", with_(SUBMIT, 6, [math.nan, 1.0, 0])),
        ("submit", with_(SUBMIT, 6, [0.5, 1.0])),
        ("submit", with_(SUBMIT, 9, math.inf)),
        ("submit", SUBMIT[:-1]),
        ("ended", [3, "vanished", ""]),
        ("tokens", [1, [with_(ROW, 3, "tired")]]),
        ("tokens", [1, [with_(ROW, 4, [math.nan])]]),
        ("tokens", [1, [ROW[:-1]]]),
        ("step", [1, 2, 1, 0, 0, [ROW], [[7]]]),
        ("step", [1, 2, 1, 0, 0, [ROW], [[]]]),
        ("step", [1, 2, 1, 0, 0, [ROW], [[7, 8, 9]]]),
    ],
)
def test_wrong_values_are_refused(tag: str, values: list[object]) -> None:
    assert refused(packed(VERSION, tag, RUN, *values))


def many(item: Any) -> Callable[[int], Any]:
    return lambda count: (item,) * count


def letters(count: int) -> str:
    return "x" * count


@pytest.mark.parametrize(
    ("most", "make", "filling"),
    [
        (64, lambda name: m.Hello("client", name), letters),
        (256, lambda cell: m.Welcome("r", cell), letters),
        (4_096, m.Bye, letters),
        (1_024, lambda stop: m.Submit(1, "u", (), 1, stop=(stop,)), letters),
        (16, lambda stops: m.Submit(1, "u", (), 1, stop=stops), many("x")),
        (65_536, lambda text: m.Tokens(1, (m.Row(1, (), text),)), letters),
        (4 * 2**20, lambda text: m.Tokenize(1, ((m.ChatTurn("user", text),),)), letters),
        (1_024, lambda turns: m.Tokenize(1, (turns,)), many(m.ChatTurn("user", "hi"))),
        (4_096, lambda prompts: m.Tokenize(1, prompts), many(())),
        (2**20, lambda prompt: m.Submit(1, "u", prompt, 1), many(5)),
        (1_000_000, m.Cancel, many(5)),
        (100_000, lambda read: m.Step(1, 2, 0, 0, 0, (), read), many((1, 2))),
        (64, lambda name: m.WorkerReady(1, True, {name: 1}), letters),
        (64, lambda count: m.WorkerReady(1, True, {str(n): n for n in range(len(count))}), letters),
        (4_096, lambda fact: m.WorkerReady(1, True, {"a": fact}), letters),
    ],
)
def test_texts_and_lists_have_a_longest(
    most: int, make: Callable[[Any], Message], filling: Callable[[int], Any]
) -> None:
    longest = make(filling(most))
    assert decode(encode(longest, RUN), RUN) == longest
    assert refused(encode(make(filling(most + 1)), RUN))


@pytest.mark.parametrize("version", [0, 2, -1, True, 1.0, "1", None, [1], 2**64 - 1])
def test_other_versions_are_refused(version: object) -> None:
    assert refused(packed(version, "ping", RUN, 7)) == "not a message of this version"


@pytest.mark.parametrize("tag", ["", "Ping", "ping ", "Message", "__class__", "sampling", b"ping", 1, None, ["ping"]])
def test_unknown_tags_are_refused(tag: object) -> None:
    assert refused(packed(VERSION, tag, RUN, 7)) == "an unknown kind of message"


@pytest.mark.parametrize("run", ["", "run-2", "RUN-1", "run-1 ", "x" * 128])
def test_foreign_runs_are_refused(run: str) -> None:
    assert refused(encode(m.Ping(7), run)) == f"a message of another run ({run[:40]!r})"
    assert decode(encode(m.Ping(7), run), run) == m.Ping(7)


@pytest.mark.parametrize("run", [b"run-1", 1, None, ["run-1"], "x" * 129])
def test_what_is_no_run_id_is_refused(run: object) -> None:
    assert refused(packed(VERSION, "ping", run, 7))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x91\x01", b"\x92\x01\xa4ping", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_too_short_or_no_msgpack_is_refused(data: bytes) -> None:
    assert refused(data)


@pytest.mark.parametrize("depth", [10, 600, 100_000, 2_000_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff", b"\xdf\x00\x00\x00\x01\xa1a"])
def test_nesting_is_refused_at_any_depth(opening: bytes, depth: int) -> None:
    assert refused(opening * depth + b"\xc0")
    assert refused(b"\x94\x01\xa4ping\xa5run-1" + opening * depth + b"\xc0")


@pytest.mark.parametrize("header", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
def test_lengths_that_the_data_cannot_hold_are_refused(header: bytes) -> None:
    assert refused(header + b"\x01" * 100)


def test_text_that_is_not_utf8_is_refused() -> None:
    assert refused(b"\x94\x01\xa3bye\xa5run-1\xa2\xff\xfe")
    assert refused(b"\x94\x01\xa3bye\xa5run-1\xa3\xed\xa0\x80")


# --- the id in a bad message ---


@given(submits, st.integers(4, 13), structures)
def test_the_id_of_a_bad_submit_can_be_read(submit: m.Submit, place: int, value: object) -> None:
    raw = msgpack.unpackb(encode(submit, RUN))
    raw[place] = value
    data = msgpack.packb(raw)
    try:
        decode(data, RUN)
    except BadMessage as error:
        assume(not str(error).startswith("not msgpack"))  # where nothing can be read
        assert readable_id(data) == submit.id


def test_the_id_of_a_bad_end_can_be_read() -> None:
    assert readable_id(packed(VERSION, "ended", RUN, 8, "vanished", "")) == 8
    assert readable_id(packed(2, "submit", "run-2", 8)) == 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        packed(VERSION, "submit", RUN),
        packed(VERSION, "submit", RUN, True),
        packed(VERSION, "submit", RUN, -1),
        packed(VERSION, "submit", RUN, 2**60),
        packed(VERSION, "submit", RUN, 8.0),
        packed(VERSION, "submit", RUN, "8"),
        packed(VERSION, "ping", RUN, 8),
        packed(VERSION, ["submit"], RUN, 8),
        msgpack.packb({"a": 1}),
        msgpack.packb("submit"),
        msgpack.packb(8),
    ],
)
def test_there_may_be_no_id(data: bytes) -> None:
    assert readable_id(data) is None


@given(st.binary(max_size=100) | structures.map(msgpack.packb) | st.lists(structures, max_size=6).map(msgpack.packb))
def test_looking_for_an_id_never_fails(data: bytes) -> None:
    found = readable_id(data)
    assert found is None or (type(found) is int and 0 <= found <= MAX_ID)
