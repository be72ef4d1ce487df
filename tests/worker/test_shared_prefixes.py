"""A shared start is read once, however many requests come with it at once, and by another one if its reader leaves."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Submit
from worker.prefix_cache import PrefixCache
from worker.shared_prefixes import Boarding, SharedPrefixes, shared_start

START = (1, 2, 3)


def request(id: int, tokens: tuple[int, ...] = (*START, 9), prefix: int = 3) -> Submit:
    return Submit(id, "user", tokens, 1, prefix=prefix)


def desk(capacity: int = 100) -> SharedPrefixes:
    return SharedPrefixes(PrefixCache(capacity))


def test_the_first_reads_and_the_others_wait_for_it() -> None:
    shared = desk()
    first, second, third = request(1), request(2), request(3, (*START, 8, 8))
    assert shared.board([first, second, third]) == [Boarding(first, keep=3)]
    assert shared.waiting == {2, 3}
    assert shared.read(START, "cache", 10) == [Boarding(second, 3, "cache"), Boarding(third, 3, "cache")]
    assert (shared.hits, shared.misses, shared.waiting) == (2, 1, set())
    assert shared.board([request(4)]) == [Boarding(request(4), 3, "cache")]


def test_whoever_waits_gets_the_cache_even_if_there_is_no_room_to_keep_it() -> None:
    shared = desk(capacity=5)
    shared.board([request(1), request(2)])
    assert shared.read(START, "cache", 10) == [Boarding(request(2), 3, "cache")]
    assert shared.board([request(3)]) == [Boarding(request(3), keep=3)]


def test_another_one_reads_if_the_reader_leaves() -> None:
    shared = desk()
    shared.board([request(1), request(2), request(3)])
    shared.remove({2})
    assert shared.given_up(START) == [Boarding(request(3), keep=3)]
    assert shared.waiting == set()
    assert shared.given_up(START) == []


def test_who_shares_nothing_boards_at_once_and_brings_nothing() -> None:
    shared = desk()
    shared.board([request(1)])
    shared.read(START, "cache", 10)
    assert shared.board([request(2, prefix=0)]) == [Boarding(request(2, prefix=0))]
    assert desk(capacity=0).board([request(1), request(2)]) == [Boarding(request(1)), Boarding(request(2))]


def test_a_longer_start_is_read_from_where_a_shorter_one_ends() -> None:
    shared = desk()
    shared.board([request(1)])
    shared.read(START, "short", 10)
    longer = request(2, (*START, 4, 5, 9), prefix=5)
    assert shared.board([longer]) == [Boarding(longer, 3, "short", keep=5)]


def test_of_an_exact_hit_the_last_token_is_left_to_decode() -> None:
    shared = desk()
    shared.board([request(1)])
    shared.read(START, "cache", 10)
    exact = request(2, START, prefix=2)
    assert shared.board([exact]) == [Boarding(exact, 2, "cache", surplus=1)]
    assert shared_start(request(3, START, prefix=3)) == START[:2]


EVENTS = st.lists(st.tuples(st.sampled_from(["board", "read", "leave"]), st.integers(0, 2)), max_size=40)


@given(EVENTS)
def test_nobody_is_lost_and_nobody_boards_twice(events: list[tuple[str, int]]) -> None:
    shared, readers, aboard, came = desk(25), dict[tuple[int, ...], int](), list[int](), 0
    for kind, which in events:
        start = (which, which)
        if kind == "board":
            boardings = shared.board([request(came, (which, which, 9), prefix=2)])
            came += 1
        elif start not in readers:
            continue
        elif kind == "read":
            readers.pop(start)
            boardings = shared.read(start, "cache", 10)
        else:
            readers.pop(start)
            boardings = shared.given_up(start)
        for boarding in boardings:
            aboard.append(boarding.request.id)
            if boarding.keep:
                readers[shared_start(boarding.request)] = boarding.request.id
    assert sorted(aboard + sorted(shared.waiting)) == list(range(came))
