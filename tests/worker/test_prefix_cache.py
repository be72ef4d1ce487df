"""The prefix cache gives up what was used longest ago, holds no more than its capacity, and finds the longest start."""

from hypothesis import given
from hypothesis import strategies as st

from worker.prefix_cache import Found, PrefixCache

A, B, C = (1, 1), (2, 2), (3, 3)


def test_a_hit_refreshes() -> None:
    """Touch A, insert C at capacity two: A survives."""
    cache = PrefixCache(2)
    cache.put(A, "a", 1)
    cache.put(B, "b", 1)
    assert cache.find((*A, 9)) == Found(2, "a")
    cache.put(C, "c", 1)
    assert cache.find((*A, 9)).length == 2
    assert cache.find((*B, 9)).length == 0
    assert cache.find((*C, 9)).length == 2
    assert (cache.evicted, cache.bytes, len(cache)) == (1, 2, 2)


def test_the_longest_start_is_found() -> None:
    cache = PrefixCache(100)
    for length in (1, 3, 5):
        cache.put(range(length), length, 1)
    assert [cache.find(range(n)).length for n in range(7)] == [0, 1, 1, 3, 3, 5, 5]
    assert cache.find((0, 1, 9, 3, 4)).length == 1


def test_what_is_larger_than_the_capacity_is_not_kept_and_drives_nothing_out() -> None:
    cache = PrefixCache(10)
    cache.put(A, "a", 10)
    cache.put(B, "b", 11)
    assert cache.find(A).length == 2
    assert (len(cache), cache.evicted) == (1, 0)
    cache.put(A, "larger", 11)
    assert (len(cache), cache.bytes) == (0, 0)


PUTS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 6)), max_size=40)


@given(st.integers(0, 12), PUTS)
def test_it_is_a_least_recently_used_cache(capacity: int, uses: list[tuple[bool, int, int]]) -> None:
    """Against a list of entries in the order of their last use."""
    cache, model = PrefixCache(capacity), dict[int, int]()
    for is_put, key, size in uses:
        if is_put:
            cache.put((key,), key, size)
            model.pop(key, None)
            if size <= capacity:
                while sum(model.values()) + size > capacity:
                    model.pop(next(iter(model)))
                model[key] = size
        else:
            found = cache.find((key, 99))
            assert (found.length == 1) == (key in model)
            if key in model:
                assert found.cache == key
                model[key] = model.pop(key)
        assert cache.bytes == sum(model.values()) <= capacity
        assert len(cache) == len(model)
