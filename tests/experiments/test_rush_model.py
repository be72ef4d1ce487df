"""The rush on the embedded model: a real crowd, real text, and what batching must not change."""

from pathlib import Path

import orjson
import pytest

from tests.experiments.commands import headway, requests, run_folder, summary

pytestmark = pytest.mark.alone


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_embedded_model_serves_the_rush(tmp_path: Path) -> None:
    """Every policy serves the same crowd; its arithmetic is the same for a prompt alone or among others."""
    done = headway(
        *("rush", "--quick", "--rates", "2", "--requests", "6", "--max-tokens", "12", "--out", str(tmp_path / "runs")),
        cwd=tmp_path,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_folder(tmp_path / "runs")
    cells = summary(folder)["cells"]
    assert [cell["policy"] for cell in cells] == ["one", "static", "continuous"]
    for cell in cells:
        assert cell["completed"] == cell["sent"] == 6
        assert cell["order_violations"] == 0
        assert cell["peak_memory_bytes"] > 100e6
        assert cell["ttft"]["n"] == 6
    replies = [[(tuple(r.tokens), r.text) for r in requests(folder, cell)] for cell in range(3)]
    assert replies[0] == replies[1] == replies[2]
    assert all(text.strip() for _, text in replies[0])
    lengths = [r.prompt_tokens for r in requests(folder)]
    assert all(40 <= length <= 70 for length in lengths)
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    assert manifest["worker"]["dtype"] == "float32" or manifest["worker"]["device"] != "cpu"
    assert manifest["worker"]["blas"]


@pytest.mark.model
@pytest.mark.timeout(200)
def test_a_prompt_beyond_the_models_context_is_named_and_the_rest_go_on(tmp_path: Path) -> None:
    lines = [{"prompt": "Say hello."}, {"prompt": "tent " * 9_000, "user": "ann"}, {"prompt": "Say goodbye."}]
    (tmp_path / "prompts.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    done = headway(
        *("rush", "--policies", "continuous", "--rates", "5", "--requests", "3", "--max-tokens", "4"),
        *("--prompts", "prompts.jsonl", "--out", "runs"),
        cwd=tmp_path,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, long, last = requests(run_folder(tmp_path / "runs"))
    assert (first.end, long.end, last.end) == ("completed", "rejected", "completed")
    assert "request 1 of ann" in long.detail
    assert "context of 8192" in long.detail
