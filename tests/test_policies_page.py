"""The page on writing a policy: its example runs as it stands, and it names every field that there is."""

import hashlib
import re
from pathlib import Path

import orjson
import psutil
import pytest

from protocol.records import RouterRecord, read_folder
from router.policies import Decision, Running, View, Waiting, parse_policy
from router.trial import try_out
from tests.experiments.commands import headway, requests, run_folder, summary
from tests.router.crowd import Crowd, asked

PAGE = (Path(__file__).parents[1] / "docs" / "policies.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PACED = ("rush", "--engine", "paced", "--profile", "instant", "--arrivals", "at-once", "--max-tokens", "8", "--quick")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(EXAMPLE)
    return tmp_path


def test_the_example_is_fifteen_lines_at_most() -> None:
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 15


def test_the_example_does_what_the_page_says(mine: Path) -> None:
    policy = parse_policy(f"{mine}/mine.py:Reserve")
    try_out(policy)
    arrivals = [(0, asked(id, priority=int(id >= 12))) for id in range(16)]
    admitted = Crowd(policy, arrivals).serve().admitted
    assert [id for at, id in admitted if at == 0] == [0, 1, 2, 3, 4, 5, 12, 13]
    assert [id for at, id in admitted if at > 0] == [14, 15, 6, 7, 8, 9, 10, 11]


def test_it_names_every_field_and_no_other() -> None:
    named = {name.partition("(")[0] for name in re.findall(r"^\| `([\w.]+(?:\(n\))?)` \|", PAGE, re.MULTILINE)}
    views = {f"view.{name}" for name in vars(View) if not name.startswith("_")}
    of_requests = {name for kind in (Waiting, Running) for name in vars(kind) if not name.startswith("_")}
    assert named == views | of_requests | set(Decision._fields)


def test_it_runs_beside_ours(mine: Path) -> None:
    prompts = [{"prompt": f"Hello {i}", "priority": int(i % 4 == 0), "exact_tokens": 2 + i} for i in range(12)]
    (mine / "prompts.jsonl").write_bytes(b"\n".join(map(orjson.dumps, prompts)))
    ours = ("--policy", "shortest:predictor=noisy:0.5,seats=1")
    asks = ("--prompts", "prompts.jsonl", "--requests", "12", "--clients", "1")
    done = headway(*PACED, *asks, *ours, "--policy", "mine.py:Reserve:seats=2,kept=1", cwd=mine)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = run_folder(mine / "runs")
    assert [(cell["policy"], cell["completed"]) for cell in summary(folder)["cells"]] == [
        ("shortest", 12),
        ("reserve", 12),
    ]
    assert re.search(r"^ +reserve ", done.stdout, re.MULTILINE)
    digest = hashlib.sha256(EXAMPLE.encode()).hexdigest()
    heads = [record for record in read_folder(folder) if isinstance(record, RouterRecord)]
    assert {head.policy: head.policy_sha256 for head in heads} == {"shortest": None, "reserve": digest}
    assert orjson.loads((folder / "manifest.json").read_bytes())["inputs"]["policies"] == {"mine.py": digest}
    assert {record.end for record in requests(folder, 1)} == {"completed"}


def test_a_broken_one_fails_before_the_run(mine: Path) -> None:
    (mine / "mine.py").write_text(EXAMPLE.replace("view.free - self.kept", "view.empty"))
    done = headway(*PACED, "--policy", "mine.py:Reserve", cwd=mine)
    assert (done.returncode, done.stdout) == (2, "")
    said = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    assert said == ["Error: the policy failed: AttributeError: 'Core' object has no attribute 'empty' (mine.py:19)"]
    assert not (mine / "runs").exists()


def test_one_that_fails_in_a_run_ends_it_with_the_reason(mine: Path) -> None:
    """Not in the trial, which has twelve requests: what was completed before stays, all others fail."""
    (mine / "mine.py").write_text(
        EXAMPLE.replace("view.free - self.kept", "view.free + 0 // max(0, 20 - len(view.served))")
    )
    done = headway(*PACED, "--requests", "40", "--policy", "mine.py:Reserve", "--clients", "2", cwd=mine)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    reason = "the policy failed: ZeroDivisionError: integer division or modulo by zero (mine.py:19)"
    (incomplete,) = [line for line in done.stdout.splitlines() if line.startswith("INCOMPLETE")]
    assert reason in incomplete
    records = requests(run_folder(mine / "runs"))
    ends = {record.end for record in records}
    assert len(records) == 40
    assert ends == {"completed", "failed"}
    assert {record.detail for record in records if record.end == "failed"} <= {reason, f"the router left: {reason}"}
    assert not [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(mine)]
