"""Traces are read to the last digit, replayed faster on request, and refused where their times cannot be meant."""

from pathlib import Path

import orjson
import pytest

from clients.traces import BLOCK, TracePrompts, TraceSource, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951691,396,109
2023-11-16 18:15:51.0000000,879,0
"""
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def mooncake(folder: Path, rows: list[tuple[int, int, int, list[int]]], name: str = "trace.jsonl") -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    lines = [orjson.dumps(dict(zip(keys, row, strict=True))).decode() for row in rows]
    return written(folder, name, "\n".join(lines))


def test_azures_seven_digits_are_all_kept(tmp_path: Path) -> None:
    trace = read_trace(TraceSource(written(tmp_path, "azure.csv", AZURE)))
    assert trace.times == (0, 4_314_579_100, 4_319_410_000)
    assert [(r.prompt, r.reply) for r in trace.requests] == [(374, 44), (396, 109), (879, 1)]
    assert trace.shared == (0, 0, 0)
    assert trace.rate == pytest.approx(2 / 4.31941)


def test_a_trace_is_replayed_faster_and_in_part(tmp_path: Path) -> None:
    trace = read_trace(TraceSource(written(tmp_path, "azure.csv", AZURE), speed=10, first=2))
    assert trace.times == (0, 431_457_910)


def test_mooncakes_blocks_are_shared_starts(tmp_path: Path) -> None:
    rows = [(0, 1100, 5, [7, 8, 9]), (250, 1024, 6, [7, 8]), (400, 300, 7, [3]), (900, 700, 2, [7, 4])]
    trace = read_trace(TraceSource(mooncake(tmp_path, rows)))
    assert trace.times == (0, 250_000_000, 400_000_000, 900_000_000)
    assert trace.shared == (2 * BLOCK, 1023, 0, BLOCK)
    prompts = TracePrompts(trace)
    assert [prompt.shared_turns for prompt in prompts] == [1, 1, 0, 1]
    assert [p.exact_tokens for p in prompts] == [5, 6, 7, 2]
    words = [" ".join(turn.content for turn in prompt.turns).split() for prompt in prompts]
    assert [len(each) for each in words] == [1100, 1024, 300, 700]
    assert words[0][: 2 * BLOCK] == words[1]
    assert words[0][:BLOCK] == words[3][:BLOCK]
    assert words[0][BLOCK : 2 * BLOCK] != words[3][BLOCK:]
    assert prompts[0] == TracePrompts(trace)[0]


def test_any_csv_with_columns_and_a_unit(tmp_path: Path) -> None:
    file = written(tmp_path, "own.csv", "out,in,t\n4,10,1.5\n5,20,2.75\n")
    trace = read_trace(TraceSource(file, columns=("t", "in", "out"), unit="s"))
    assert trace.times == (0, 1_250_000_000)
    assert [(r.prompt, r.reply) for r in trace.requests] == [(10, 4), (20, 5)]


@pytest.mark.parametrize(
    ("text", "source", "says"),
    [
        (
            "t,in,out\n0,1,1\n",
            {},
            r"no column 'TIMESTAMP'; name them with --columns TIME,PROMPT,REPLY: it has t, in, out",
        ),
        ("t,in,out\n0,1,1\n1,1,1\n", {"columns": ("t", "in", "out")}, "say what its times are with --unit: s, ms"),
        ("t,in,out\n0,1,1\n1,x,1\n", {"columns": ("t", "in", "out"), "unit": "s"}, r"line 3: not a time \(s\)"),
        (
            "t,in,out\n5,1,1\n1,1,1\n",
            {"columns": ("t", "in", "out"), "unit": "s"},
            "line 3: earlier than the line before",
        ),
        ("t,in,out\n5,1,1\n", {"columns": ("t", "in", "out"), "unit": "s"}, "at least 2 requests"),
        (AZURE.replace("16 18:15:50", "16 25:15:50"), {}, r"line 3: not a time \(iso\)"),
    ],
)
def test_mistakes_are_named(text: str, source: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        read_trace(TraceSource(written(tmp_path, "own.csv", text), **source))  # type: ignore[arg-type]


@pytest.mark.parametrize(("step", "unit", "meant"), [(300, "s", "ms"), (0.3, "ms", "s"), (300_000, "s", "us")])
def test_an_implausible_rate_names_the_unit_that_was_meant(step: float, unit: str, meant: str, tmp_path: Path) -> None:
    lines = [f"{i * step},10,5" for i in range(50)]
    file = written(tmp_path, f"{unit}-{meant}.csv", "\n".join(["t,in,out", *lines]))
    with pytest.raises(ValueError, match=rf"not plausible; its times look like {meant}, not {unit} \(3.33 a second\)"):
        read_trace(TraceSource(file, columns=("t", "in", "out"), unit=unit))


def test_json_lines_of_seconds_are_not_taken_for_milliseconds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="look like s, not ms"):
        read_trace(TraceSource(mooncake(tmp_path, [(i // 3, 10, 5, []) for i in range(60)], "seconds.jsonl")))


@pytest.mark.parametrize(
    ("name", "requests", "rate"),
    [
        ("azure_llm_2023_conv.csv", 19_366, 5.53),
        ("azure_llm_2023_code.csv", 8_819, 2.57),
        ("mooncake_conversation_1500.jsonl", 1_500, 2.94),
    ],
)
def test_the_published_traces(name: str, requests: int, rate: float) -> None:
    if not (SAMPLES / name).is_file():
        pytest.skip("the sample traces are not here")
    trace = read_trace(TraceSource(str(SAMPLES / name)))
    assert len(trace.times) == requests
    assert trace.rate == pytest.approx(rate, abs=0.01)
