"""Messages survive the wire, and their bytes stay what they are."""

import typing

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import messages as m
from protocol.messages import TAGS, Message, decode, encode
from tests.protocol.every_message import MESSAGES, RUN, any_message

# On the wire for ever: a change here is a new VERSION.
TAG_TABLE = {
    "hello": "Hello",
    "welcome": "Welcome",
    "refused": "Refused",
    "ping": "Ping",
    "pong": "Pong",
    "beat": "Beat",
    "bye": "Bye",
    "tokenize": "Tokenize",
    "tokenized": "Tokenized",
    "client-ready": "ClientReady",
    "prepare": "Prepare",
    "worker-ready": "WorkerReady",
    "start": "Start",
    "submit": "Submit",
    "cancel": "Cancel",
    "admit": "Admit",
    "tokens": "Tokens",
    "ended": "Ended",
    "step": "Step",
    "failed": "Failed",
}


def test_every_message_has_a_strategy() -> None:
    assert set(MESSAGES) == set(TAGS.values()) == set(typing.get_args(Message))


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
def test_what_is_encoded_is_decoded(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert decode(encode(message, RUN), RUN) == message


@given(any_message, st.text(max_size=128))
def test_a_message_is_of_one_run(message: Message, run: str) -> None:
    assert decode(encode(message, run), run) == message


def test_tags_are_these_and_each_is_one_kinds() -> None:
    assert {tag: kind.__name__ for tag, kind in TAGS.items()} == TAG_TABLE
    assert len(set(TAGS.values())) == len(TAGS)


def test_bytes_on_the_wire_stay_the_same() -> None:
    assert encode(m.Ping(7), "r") == b"\x94\x01\xa4ping\xa1r\x07"
    submit = m.Submit(3, "ann", (5, 6), 9, stop=("x",), sampling=m.Sampling(0.5), deadline=2.0)
    assert msgpack.unpackb(encode(submit, "r")) == [
        1, "submit", "r", 3, "ann", [5, 6], 9, False, ["x"], [0.5, 1.0, 0], None, 0, 2.0, False, 0,
    ]  # fmt: skip


def test_what_has_no_place_in_a_message_is_not_sent() -> None:
    with pytest.raises(TypeError, match="set has no place in a message"):
        encode(m.WorkerReady(1, True, {"cores": {1, 2}}), RUN)
