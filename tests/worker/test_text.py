"""Streamed text: whole characters, and nothing of a stop string."""

import codecs
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models import LoadedModel
from worker.text import StopCutter, TextStream

pytestmark = pytest.mark.alone


class Pieces:
    """A detokenizer for tokens that are positions in a list of byte strings."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.unread = ""

    def add_token(self, token: int) -> None:
        self.unread += self.decoder.decode(self.pieces[token])

    def finalize(self) -> None:
        self.unread += self.decoder.decode(b"", final=True)

    @property
    def last_segment(self) -> str:
        segment, self.unread = self.unread, ""
        return segment


def stream(pieces: Sequence[bytes], stops: Sequence[str] = (), limit: int | None = None) -> tuple[list[str], bool]:
    """What came out after each token and at the end, and whether a stop string ended it."""
    text, out = TextStream(Pieces(pieces), stops), []
    for token in range(len(pieces) if limit is None else limit):
        out.append(text.add(token))
        if text.stopped:
            return out, True
    out.append(text.finish())
    return out, text.stopped


def cut_at_first(whole: str, stops: Sequence[str]) -> str:
    """The text before the stop string that is complete first, found the slow way: character by character."""
    for end in range(len(whole) + 1):
        starts = [end - len(stop) for stop in stops if stop and whole[:end].endswith(stop)]
        if starts:
            return whole[: min(starts)]
    return whole


letters = st.text(alphabet="ab€", max_size=6)


@given(st.lists(letters, max_size=12), st.lists(letters, max_size=3))
def test_streamed_text_is_the_whole_text_cut_at_the_first_stop_string(chunks: list[str], stops: list[str]) -> None:
    cutter = StopCutter(stops)
    streamed = "".join([cutter.push(chunk) for chunk in chunks])
    streamed += cutter.flush()
    whole = "".join(chunks)
    assert streamed == cut_at_first(whole, stops)
    assert cutter.stopped == any(stop in whole for stop in stops if stop)


whole_characters = st.text(st.characters(codec="utf-8", exclude_characters="�"), max_size=30)


@given(whole_characters, st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_tokens_that_cut_characters_change_nothing(whole: str, stops: list[str], data: st.DataObject) -> None:
    raw = whole.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    out, _ = stream([raw[begin:end] for begin, end in pairwise(cuts)], stops)
    assert "".join(out) == cut_at_first(whole, stops)


@given(st.text(min_size=1, max_size=20), st.data())
def test_text_that_has_been_streamed_is_never_taken_back(whole: str, data: st.DataObject) -> None:
    pieces = [bytes([byte]) for byte in whole.encode()]
    limit = data.draw(st.integers(0, len(pieces)))
    shorter = "".join(stream(pieces, limit=limit)[0])
    assert whole.startswith(shorter)


def test_a_stop_string_split_over_three_tokens_is_cut_and_nothing_of_it_leaks() -> None:
    assert stream([b"Hel", b"lo ST", b"O", b"P now", b"more"], ["STOP"]) == (["Hel", "lo ", "", ""], True)


def test_what_only_began_like_a_stop_string_comes_out() -> None:
    assert stream([b"a ST", b"OX S", b"TO"], ["STOP"]) == (["a ", "STOX ", "", "STO"], False)


def test_the_stop_string_that_is_complete_first_counts_and_then_the_longest() -> None:
    assert stream([b"xabcd"], ["abcd", "bc"]) == (["xa"], True)
    assert stream([b"xab", b"cd"], ["abcd", "bc"]) == (["x", "a"], True)
    assert stream([b"xabc"], ["bc", "abc", "c"]) == (["x"], True)


def test_a_stop_string_can_complete_in_what_the_end_sets_free() -> None:
    class Late(Pieces):
        def add_token(self, token: int) -> None:
            self.decoder.decode(b"")

        def finalize(self) -> None:
            self.unread = "so STOP it"

    text = TextStream(Late([b""]), ["STOP"])
    assert (text.add(0), text.finish(), text.stopped) == ("", "so ", True)


def test_nothing_comes_after_a_stop() -> None:
    cutter = StopCutter(["."])
    assert (cutter.push("One. Two"), cutter.push(" three"), cutter.flush()) == ("One", "", "")


def test_a_character_that_the_limit_cuts_is_left_out() -> None:
    pieces = [b"\xf0\x9f", b"\x91", b"\xa9 ok"]
    assert [stream(pieces, limit=n)[0] for n in (1, 2, 3)] == [["", ""], ["", "", ""], ["", "", "👩 ok", ""]]


SIGNS = "Grüße 👩‍👩‍👧 aus Köln: e\u0301, ñ, 漢字とカタカナ, 🇩🇪 und 🏴‍☠️!"


@pytest.mark.model
def test_every_cut_of_real_tokens_gives_the_beginning_of_the_text(embedded: LoadedModel) -> None:
    tokens = embedded.tokenizer.encode(SIGNS, add_special_tokens=False)
    lengths = []
    for limit in range(len(tokens) + 1):
        text = TextStream(embedded.tokenizer.detokenizer)
        shorter = "".join([text.add(token) for token in tokens[:limit]]) + text.finish()
        assert SIGNS.startswith(shorter)
        lengths.append(len(shorter))
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(SIGNS)
