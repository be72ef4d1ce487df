"""Records survive: whatever was written before a file was torn is read, and merging loses no stamp."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records import (
    KINDS,
    CellRecord,
    ClientRecord,
    ClockRecord,
    QueueRecord,
    RecordWriter,
    RequestRecord,
    RouterRecord,
    StepRecord,
    merge,
    read,
    read_folder,
)

words = st.text(max_size=20)
counts = st.integers(0, 2**63 - 1)
maybe_count = st.none() | counts
count_lists = st.lists(counts, max_size=5).map(tuple)
maybe_words = st.none() | words
plain = st.none() | st.booleans() | counts | st.floats(allow_nan=False) | words | count_lists
facts = st.dictionaries(words, plain, max_size=4)
messages = st.lists(st.tuples(counts, counts), max_size=4).map(tuple)

STAMPS = (
    "intended", "sent", "received", "admitted", "started", "first_token", "last_token", "first_received",
    "last_received", "ended",
)  # fmt: skip
NUMBERS = ("prompt_tokens", "max_tokens", "departure", *STAMPS)
WORDS = ("user", "text", "finish", "end", "detail")


def requests(cells: st.SearchStrategy[str] = words, ids: st.SearchStrategy[int] = counts) -> Any:
    """Requests of which every field may be missing."""
    numbers = dict.fromkeys(NUMBERS, maybe_count)
    texts = dict.fromkeys(WORDS, st.none() | words)
    return st.builds(
        RequestRecord,
        cell=cells,
        id=ids,
        messages=st.none() | messages,
        tokens=st.none() | count_lists,
        **numbers,
        **texts,
    )


RECORDS: dict[type, st.SearchStrategy[Any]] = {
    RequestRecord: requests(),
    StepRecord: st.builds(StepRecord, words, *[counts] * 9),
    CellRecord: st.builds(CellRecord, words, counts, maybe_count, maybe_count, maybe_count, facts),
    ClientRecord: st.builds(
        ClientRecord, words, counts, counts, counts, maybe_count, counts, facts, count_lists, count_lists
    ),
    RouterRecord: st.builds(
        RouterRecord, words, words, facts, counts, st.none() | st.floats(0, 1e9), counts, words, facts, maybe_words
    ),
    QueueRecord: st.builds(QueueRecord, words, counts, counts, counts, st.none() | words),
    ClockRecord: st.builds(ClockRecord, words, words, words, st.integers(-(2**63), 2**63 - 1), counts, counts, counts),
}
any_records = st.lists(st.one_of(*RECORDS.values()), max_size=8)

Scratch = Callable[[], Path]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    """A path with nothing at it, whenever it is asked for."""
    path = tmp_path_factory.mktemp("records") / "scratch.msgpack"

    def fresh() -> Path:
        path.unlink(missing_ok=True)
        return path

    return fresh


def write(path: Path, records: Iterable[object]) -> list[int]:
    """Append records; the file's size after each."""
    writer = RecordWriter(path)
    sizes = []
    for record in records:
        writer.write(record)
        sizes.append(path.stat().st_size)
    writer.close()
    return sizes


def step(n: int, cell: str = "cell") -> StepRecord:
    return StepRecord(cell, n, n + 1, 1, 0, 0, 1, 1, 300, 0)


# --- writing and reading ---


def test_every_kind_has_a_strategy() -> None:
    assert set(RECORDS) == set(KINDS.values())


@given(records=any_records)
def test_what_is_written_is_read(scratch: Scratch, records: list[object]) -> None:
    path = scratch()
    write(path, records)
    assert list(read(path)) == records


def test_each_record_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    writer = RecordWriter(path)
    for n in range(3):
        writer.write(step(n))
        assert [*read(path)] == [step(earlier) for earlier in range(n + 1)]
    writer.close()


def test_nulls_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    write(path, [RequestRecord("cell", 7, sent=5)])
    assert msgpack.unpackb(path.read_bytes()) == ["request", {"cell": "cell", "id": 7, "sent": 5}]


def test_a_second_writer_appends(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    write(path, [step(0)])
    write(path, [step(1)])
    assert list(read(path)) == [step(0), step(1)]


def test_unwritable_and_absent_files_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        RecordWriter(tmp_path / "no-folder" / "a.msgpack")
    with pytest.raises(OSError):
        list(read(tmp_path / "absent.msgpack"))


# --- damaged files ---


def test_a_file_torn_anywhere_keeps_every_whole_record(scratch: Scratch) -> None:
    records = [
        step(1),
        ClientRecord("cell", 0, 2, 3, None, 50_000, {"rate": 4.0, "kind": "poisson"}, (0, 2), (10**12, 10**13)),
        RequestRecord("cell", 1, user="ü", sent=2**62, messages=((5, 1), (9, 2)), tokens=(1, 70_000), text="ab" * 40),
    ]
    path = scratch()
    sizes = write(path, records)
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        assert list(read(path)) == records[: sum(size <= cut for size in sizes)], f"torn at byte {cut}"


structures = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | words | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["cell", "id", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
look_alikes = st.tuples(st.sampled_from(sorted(KINDS)), structures)
tails = st.binary(max_size=40) | structures.map(msgpack.packb) | look_alikes.map(msgpack.packb)


@given(tail=tails)
def test_a_garbage_tail_costs_nothing_that_stood_before_it(scratch: Scratch, tail: bytes) -> None:
    path = scratch()
    write(path, [step(1), step(2)])
    path.write_bytes(path.read_bytes() + tail)
    assert list(read(path))[:2] == [step(1), step(2)]


@pytest.mark.parametrize("entry", [["request", "text"], ["step", [1]], ["clock", 5], [{}, {}], 7, "request", [1, 2, 3]])
def test_an_entry_that_is_no_record_ends_the_file(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "a.msgpack"
    write(path, [step(1)])
    path.write_bytes(path.read_bytes() + msgpack.packb(entry))
    assert list(read(path)) == [step(1)]


def test_unknown_kinds_and_fields_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    newer = msgpack.packb(["weather", {"cell": "c", "rain": 1}])
    wider = msgpack.packb(["request", {"cell": "c", "id": 4, "colour": "red"}])
    path.write_bytes(newer + wider + newer)
    write(path, [step(2)])
    assert list(read(path)) == [RequestRecord("c", 4), step(2)]


def test_fields_that_an_older_writer_did_not_know_are_null(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    path.write_bytes(msgpack.packb(["clock", {"cell": "c", "role": "worker", "when": "before", "offset": 1}]))
    assert list(read(path)) == [ClockRecord("c", "worker", "before", 1, None, None, None)]  # type: ignore[arg-type]


ENDLESS_WRITER = """
import itertools, sys
from pathlib import Path
from protocol.records import RecordWriter, StepRecord
writer = RecordWriter(Path(sys.argv[1]))
for n in itertools.count():
    writer.write(StepRecord("cell", n, n + 1, 1, 0, 0, 1, 1, 300, 0))
    if n == 500:
        print("going", flush=True)
"""


def test_a_killed_writer_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "a.msgpack"
    command = [sys.executable, "-c", ENDLESS_WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"going\n"
        finally:
            process.kill()
    records = list(read(path))
    assert len(records) > 500
    assert records == [step(n) for n in range(len(records))]


# --- a folder ---


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "b.msgpack", [step(3), step(1)])
    write(tmp_path / "a.router.msgpack", [step(9)])
    write(tmp_path / "c.msgpack", [step(2)])
    (tmp_path / "manifest.json").write_text("{}")
    assert [record.begin for record in read_folder(tmp_path)] == [9, 3, 1, 2]


def test_one_torn_file_does_not_end_a_folder(tmp_path: Path) -> None:
    sizes = write(tmp_path / "a.msgpack", [step(1), step(2)])
    (tmp_path / "a.msgpack").write_bytes((tmp_path / "a.msgpack").read_bytes()[: sizes[1] - 1])
    write(tmp_path / "b.msgpack", [step(3)])
    assert [record.begin for record in read_folder(tmp_path)] == [1, 3]


# --- merging ---

few_requests = st.lists(requests(st.sampled_from("ab"), st.integers(0, 2)), max_size=8)


def first_known(records: Sequence[RequestRecord], name: str) -> Any:
    """What the first record that knows a field says."""
    return next((value for record in records if (value := getattr(record, name)) is not None), None)


@given(few_requests)
def test_each_field_is_the_first_that_any_record_has(records: list[RequestRecord]) -> None:
    merged = merge(records)
    assert set(merged) == {(record.cell, record.id) for record in records}
    for key, whole in merged.items():
        mine = [record for record in records if (record.cell, record.id) == key]
        for field in fields(RequestRecord):
            assert getattr(whole, field.name) == first_known(mine, field.name)


@given(few_requests)
def test_no_stamp_is_lost(records: list[RequestRecord]) -> None:
    merged = merge(records)
    for record in records:
        whole = merged[record.cell, record.id]
        for field in fields(RequestRecord):
            assert getattr(record, field.name) is None or getattr(whole, field.name) is not None


@given(few_requests)
def test_merging_again_changes_nothing(records: list[RequestRecord]) -> None:
    once = merge(records)
    assert merge(once.values()) == once


def test_zero_and_nothing_written_are_values() -> None:
    client = RequestRecord("a", 1, intended=0, tokens=(), text="", messages=())
    router = RequestRecord("a", 1, intended=5, tokens=(1,), text="x", messages=((1, 1),), received=6)
    assert merge([client, router])["a", 1] == replace(client, received=6)
