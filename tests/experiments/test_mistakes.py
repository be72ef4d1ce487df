"""What a user can get wrong is found before anything starts: one line that says what to do, exit status 2."""

from pathlib import Path

import pytest

from tests.experiments.commands import headway

MISTAKES = {
    "model": (("--model", "no-such-model"), "no model"),
    "model folder": (("--model", "empty"), "config.json"),
    "policy": (("--policies", "one,fastest"), "unknown policy 'fastest'"),
    "policy key": (("--policy", "static:size=3"), "has no 'size'"),
    "policy number": (("--policy", "static:n=0"), "not '0'"),
    "policy nan": (("--policy", "static:wait=nan"), "not 'nan'"),
    "policy twice": (("--policies", "one,one"), "twice"),
    "policies both ways": (("--policies", "one", "--policy", "static"), "give one of the two"),
    "profile": (("--engine", "paced", "--profile", "no-such"), "unknown profile"),
    "workload": (("--workload", "poems"), "workload"),
    "rate zero": (("--rates", "0"), "--rates takes"),
    "rate negative": (("--rates", "1,-2"), "--rates takes"),
    "rate nan": (("--rates", "nan"), "--rates takes"),
    "rate word": (("--rates", "fast"), "--rates takes"),
    "max-tokens": (("--max-tokens", "0"), "0"),
    "requests": (("--requests", "0"), "0"),
    "clients": (("--clients", "0"), "0"),
    "seats": (("--seats", "0"), "0"),
    "timeout": (("--timeout", "-1"), "--timeout takes"),
    "timeout nan": (("--timeout", "nan"), "--timeout takes"),
    "timeout endless": (("--timeout", "1e305"), "--timeout takes"),
    "seed": (("--seed", "9" * 30), "--seed"),
    "queue": (("--queue", "9" * 30), "--queue"),
    "like and more": (("--like", "empty", "--requests", "4"), "leave out --"),
    "rates at once": (("--arrivals", "at-once", "--rates", "2"), "leave out --rates"),
    "out": (("--out", "a-file/runs"), "cannot be written"),
    "prompts missing": (("--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
    "prompts line": (("--prompts", "bad.jsonl"), "line 2"),
    "template args": (("--chat-template-args", "[1]"), "JSON object"),
    "like": (("--like", "empty"), "no run folder"),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_starts(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "fine"}\n{"prompt": 7}\n')
    rates = () if {"--rates", "--like"} & set(arguments) else ("--rates", "1")
    done = headway("rush", *rates, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("router", "--front", "tcp://192.0.2.1:7411"),
        ("router", "--policy", "nothing"),
        ("worker", "--router", "nonsense"),
        ("worker", "--engine", "paced", "--profile", "nothing"),
        ("worker", "--model", "nothing"),
        ("clients", "--rate", "0"),
        ("clients", "--index", "2", "--of", "2"),
        ("clients", "--prompts", "nowhere.jsonl"),
        ("analyse", "."),
    ],
    ids=" ".join,
)
def test_roles_refuse_mistakes_likewise(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = headway(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Error:" in done.stderr
    assert "Traceback" not in done.stderr
