"""Amounts of memory are read as people write them, and written so that they can be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sizes import binary_text, bytes_text, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0), ("512", 512), ("1kB", 1_000), ("1KiB", 1_024), ("48GB", 48 * 10**9), ("48 GiB", 48 * 2**30),
        (" 1.5gb ", 1_500_000_000), ("2T", 2 * 10**12), ("0.5MiB", 2**19), ("7b", 7),
    ],
)  # fmt: skip
def test_an_amount_in_words(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "48 gigabytes", "1.GB", "1,5GB", "nan", "2000000T", "1iB"])
def test_what_is_no_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="an amount of memory is such as 48GB or 512MiB"):
        parse_bytes(text)


def test_sizes_in_words() -> None:
    sizes = [0, 999, 23_040, 9_994_999, 9_996_000, 4_831_838_208, 154_618_822_656, 5 * 10**15]
    assert [bytes_text(size) for size in sizes] == [
        "0 B", "999 B", "23.0 kB", "9.99 MB", "10.0 MB", "4.83 GB", "154.6 GB", "5,000 TB",
    ]  # fmt: skip
    assert [binary_text(size) for size in (147_456, 78_336, 2_621_440)] == ["144 KiB", "76.5 KiB", "2.5 MiB"]


@given(st.integers(0, 10**15))
def test_what_is_written_can_be_read(count: int) -> None:
    assert parse_bytes(bytes_text(count).replace(",", "")) == pytest.approx(count, rel=0.006)
