"""The summary in Markdown: a golden file, and text from a run's files that never becomes mark-up."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from experiments.exports import MARKDOWN, write_markdown
from experiments.kv_size_findings import findings
from experiments.markdown import escaped, fenced, markdown, table_text
from experiments.model_config import load_config
from experiments.objectives import Goodput, Outcome
from experiments.run_folder import Summary, build_summary
from experiments.settings_words import ran_on, server_name, settings_words
from tests.experiments.test_headline import CONTINUOUS, NOTHING, ONE, cell

GOLDEN = Path(__file__).parent / "golden"
MANIFEST: dict[str, Any] = {
    "begun": "2026-01-31T12:00:00+00:00",
    "settings": {
        "server": {"engine": "mlx", "model": "smollm2-135m", "weights": "auto", "kv_bits": None},
        "policies": ["one", "continuous"], "rates": [4.0], "loads": [1.0, 4.0], "requests": 40, "max_tokens": 128,
        "ignore_eos": False, "prompts": "/a/folder/prompts.jsonl", "timeout": None, "objectives": ["ttft.p95<1s"],
    },
    "machine": {"system": "Linux-6.12", "processor": "A|B processor", "cores": 2, "memory_bytes": 8_000_000_000},
    "versions": {"headway": "0.1.0", "mlx": "0.32.4", "mlx-lm": None, "python": "3.11.7"},
}  # fmt: skip


def rush(*cells: Any, **changes: Any) -> Summary:
    return replace(Summary(1, "rush", True, None, list(cells), None, None, None), **changes)


def judged() -> Summary:
    """A cell to be trusted, and one that is not, whose label is no harmless one."""
    reasons = ["it ran on battery", "1 request was <lost> on the way"]
    promised = Outcome("ttft.p95<1s", "missed", 30, 40, 900)
    one = replace(ONE, verdict="INVALID", reasons=reasons, load_state="overloaded", objectives=[promised])
    fine = replace(CONTINUOUS, verdict="VALID", load_state="stable", goodput=Goodput(39, 40, 0.975, 3.9))
    return rush(replace(one, label="one | at\n4/s *now*"), fine)


def test_the_golden_file() -> None:
    made = markdown(judged(), MANIFEST)
    assert made == (GOLDEN / "summary.md").read_text(), (
        "if this is meant, keep the new text in tests/experiments/golden"
    )


def test_it_is_written_into_the_folder(tmp_path: Path) -> None:
    path = write_markdown(tmp_path, judged(), MANIFEST)
    assert path == tmp_path / MARKDOWN
    assert path.read_text(encoding="utf-8") == markdown(judged(), MANIFEST)


def test_every_row_has_as_many_cells_as_its_head() -> None:
    """A label cannot end a cell or a row."""
    lines = markdown(judged(), MANIFEST).splitlines()
    tables = [list(block) for block in _blocks(lines)]
    assert len(tables) == 3
    for block in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1


def _blocks(lines: list[str]) -> list[list[str]]:
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("|"):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def test_a_run_without_figures_says_so() -> None:
    nothing = replace(CONTINUOUS, ttft=NOTHING, reply=NOTHING, completed=0, failed=40)
    text = markdown(rush(nothing, complete=False, reason="worker was killed"), {})
    assert text.startswith("### Headway rush: Incomplete: worker was killed. Nothing was completed at 4/s")
    assert "n/a" in text
    assert "None" not in text
    assert markdown(rush(complete=False, reason="interrupted"), {}) == (
        "### Headway rush: Incomplete: interrupted. Nothing was measured.\n"
    )


def test_other_experiments_show_their_own_tables() -> None:
    settings = {"model": None, "context": 1024, "users": 2, "bits": 16, "memory": None}
    named = load_config("Qwen3-8B")
    manifest = {"experiment": "kv-size", "settings": settings | {"model": _plain(named)}}
    text = markdown(build_summary(manifest, {}), manifest)
    assert findings(manifest, {})["model"] == "Qwen3-8B"
    assert text.startswith("### Headway kv-size: Qwen3-8B keeps 302.0 MB for 2 users of 1,024 tokens")
    assert "```text\nQwen3-8B: the KV cache at 16 bits\n" in text
    assert text.endswith("Settings: Qwen3-8B; context 1024; users 2; bits 16.\n")


def _plain(named: Any) -> dict[str, Any]:
    return {field: getattr(named, field) for field in named.__dataclass_fields__}


def test_grey_is_italic_and_the_caption_says_so() -> None:
    table = Table(title="A *table*", caption=Text("(grey: too few)"))
    table.add_column("server\nname")
    table.add_column("p95", justify="right")
    table.add_row("one", Text("1.00 s", style="dim"))
    assert table_text(table) == (
        "**A \\*table\\***\n\n| server name | p95 |\n| --- | ---: |\n| one | *1.00 s* |\n\n(in italics: too few)"
    )


@given(st.text())
def test_text_stays_text(text: str) -> None:
    made = escaped(text)
    assert "\n" not in made
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<>`*_\[\]]", made)
    assert re.sub(r"\\(.)", r"\1", made) == " ".join(text.split())


@given(st.text(alphabet="`ab\n"))
def test_nothing_ends_a_fence(text: str) -> None:
    fence, *_ = fenced(text).partition("text\n")
    assert fence not in text


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ({"engine": "paced", "profile": "/a/profile-native.json"}, "profile-native.json (paced)"),
        ({"model": "mlx-community/Qwen3-4B-4bit", "weights": "auto"}, "mlx-community/Qwen3-4B-4bit"),
        ({"model": "/models/mine", "weights": "4bit", "kv_bits": 8}, "mine (4bit weights, KV cache of 8 bits)"),
        ({"model": "./mine"}, "mine"),
    ],
)  # fmt: skip
def test_a_server_has_a_name_and_no_path(server: dict[str, Any], name: str) -> None:
    assert server_name(server) == name


def test_what_a_manifest_does_not_hold_is_left_out() -> None:
    assert (settings_words({}), ran_on({})) == ("", "")
    assert "/a/folder" not in settings_words(MANIFEST)


def test_seeds_are_one_row() -> None:
    cells = [replace(cell("one", 1.0 + seed, 9.0), seed=seed) for seed in range(3)]
    assert "(median, over 3 seeds)" in markdown(rush(*cells), {}).replace("\\", "")
