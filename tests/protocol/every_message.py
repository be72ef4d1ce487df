"""Every message there can be, as hypothesis strategies, and what decoding one that is none must do."""

import typing
from typing import Any

import msgpack
import pytest
from hypothesis import strategies as st

from protocol import messages as m
from protocol.fields import MAX_ID, MAX_TIME, BadMessage
from protocol.messages import Message, decode

RUN = "run-1"


short = st.text(max_size=30)
ids = st.integers(0, MAX_ID)
times = st.integers(0, MAX_TIME)
tokens = st.lists(st.integers(0, m.MAX_TOKEN_ID), max_size=6).map(tuple)
lengths = st.lists(st.integers(0, MAX_ID), max_size=6).map(tuple)
few_ids = st.lists(ids, max_size=6).map(tuple)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
facts = st.dictionaries(short, plain | short, max_size=5)
margins = st.none() | st.lists(st.floats(-1e30, 1e30), max_size=4).map(tuple)


def tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=3).map(tuple)


turns = st.builds(m.ChatTurn, short, short)
rows = st.builds(m.Row, ids, tokens, short, st.none() | st.sampled_from(m.FINISHES), margins)
samplings = st.builds(m.Sampling, st.floats(0, 10), st.floats(0, 1), st.integers(0, 2**20))
submits = st.builds(
    m.Submit,
    id=ids,
    user=short,
    tokens=tokens,
    max_tokens=st.integers(1, m.MAX_REPLY_TOKENS),
    ignore_eos=st.booleans(),
    stop=tuples(short),
    sampling=samplings,
    expected_tokens=st.none() | st.integers(0, m.MAX_REPLY_TOKENS),
    priority=st.integers(-1_000_000, 1_000_000),
    deadline=st.none() | st.floats(0, 1e9),
    margins=st.booleans(),
    prefix=st.integers(0, m.MAX_PROMPT_TOKENS),
)
some_rows = st.integers(0, 100_000)
reads = tuples(st.tuples(ids, ids))

MESSAGES: dict[type[Message], st.SearchStrategy[Any]] = {
    m.Hello: st.builds(
        m.Hello, st.sampled_from(["client", "worker"]), short, st.integers(0, 9_999), st.integers(1, 10_000)
    ),
    m.Welcome: st.builds(m.Welcome, short, short),
    m.Refused: st.builds(m.Refused, short, st.none() | ids),
    m.Ping: st.builds(m.Ping, times),
    m.Pong: st.builds(m.Pong, times, times),
    m.Beat: st.builds(m.Beat, short, ids, ids, st.floats(0, 1e9)),
    m.Bye: st.builds(m.Bye, short),
    m.Tokenize: st.builds(m.Tokenize, ids, tuples(tuples(turns))),
    m.Tokenized: st.builds(m.Tokenized, ids, tuples(tokens), st.none() | short),
    m.ClientReady: st.builds(m.ClientReady, ids, lengths),
    m.Prepare: st.builds(m.Prepare, st.integers(1, 100_000), lengths),
    m.WorkerReady: st.builds(m.WorkerReady, st.integers(1, 2**40), st.booleans(), facts),
    m.Start: st.builds(m.Start, times),
    m.Submit: submits,
    m.Cancel: st.builds(m.Cancel, few_ids),
    m.Admit: st.builds(m.Admit, tuples(submits)),
    m.Tokens: st.builds(m.Tokens, times, tuples(rows)),
    m.Ended: st.builds(m.Ended, ids, st.sampled_from(m.ENDS), short),
    m.Step: st.builds(m.Step, times, times, some_rows, some_rows, st.integers(0, 2**40), tuples(rows), reads, reads),
    m.Failed: st.builds(m.Failed, few_ids, short),
}
any_message = st.one_of(*MESSAGES.values())


def packed(*parts: object) -> bytes:
    return typing.cast(bytes, msgpack.packb(list(parts)))


def refused(data: bytes) -> str:
    """Why `decode` refuses; anything but a BadMessage fails the test."""
    with pytest.raises(BadMessage) as error:
        decode(data, RUN)
    return str(error.value)
