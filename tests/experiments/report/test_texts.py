"""What was said: prompts are those that were asked, or nobody's; texts are cut to fit the page."""

import hashlib
from pathlib import Path

from clients.workloads import emails
from experiments.analysis import CellRecords
from experiments.report.texts import ALL_TEXTS, LONGEST, cut, prompts_of, texts
from protocol.records import ClientRecord, RequestRecord


def cell(workload: str, requests: int = 3) -> CellRecords:
    plan = {"workload": workload, "max_tokens": 16, "seed": 12}
    asked = ClientRecord("c", 0, 1, requests, 0, 0, plan, tuple(range(requests)), ())
    replies = [RequestRecord("c", id, text=f"reply {id} {'x' * 3_000}") for id in range(requests)]
    return CellRecords(clients=[asked], requests=replies)


def test_prompts_are_those_of_the_plan() -> None:
    assert prompts_of(cell("emails"), {}) == emails(3)


def test_a_file_of_prompts_counts_as_long_as_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Hello"}')
    inputs = {"prompts": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert [prompt.turns[0].content for prompt in prompts_of(cell(str(path)), inputs)] == ["Hello"] * 3
    path.write_text('{"prompt": "Bye"}')
    assert prompts_of(cell(str(path)), inputs) == ()
    path.unlink()
    assert prompts_of(cell(str(path)), inputs) == ()


def test_what_nobody_knows_is_none() -> None:
    found = texts({"c": cell("emails", 1)}, {"c": [0, 7]}, {})
    assert found.cells["c"].prompts == [0, None]
    assert found.cells["c"].replies == [1, None]
    assert prompts_of(CellRecords(), {}) == ()


def test_texts_are_cut_to_what_all_may_take() -> None:
    few = texts({"c": cell("emails", 2)}, {"c": [0, 1]}, {})
    assert few.longest == LONGEST
    assert few.all[few.cells["c"].replies[1] or 0].endswith(" ... (1,008 more characters)")
    many = texts({"c": cell("emails", 2_000)}, {"c": list(range(2_000))}, {})
    assert many.longest == ALL_TEXTS // len(many.all)
    assert cut("abc", 3) == "abc"
