"""A user's own policy: what is wrong with its file is found before a run, and what goes wrong in one loses nothing."""

import hashlib
from pathlib import Path

import pytest

from protocol.messages import Ended, Row, Tokens
from router.core import Core, PolicyFailed, ToClient, Write
from router.policies import PolicyError, label, params, parse_policy, policy_file, spec
from router.policy_files import sha256
from router.trial import try_out
from tests.router.test_core import ANN, CONTEXT, ask, step

LATEST = """
from dataclasses import dataclass
from typing import ClassVar

from router.policies import Decision


@dataclass(frozen=True)
class Latest:
    name: ClassVar[str] = "latest"
    seats: int = 4
    most: float = 2.0
    mood: str = "calm"

    def order(self, request, served):
        return -request.received

    def decide(self, now, view):
        return Decision(tuple(request.id for request in view.first(view.free)))
"""
DECIDE = "        return Decision(tuple(request.id for request in view.first(view.free)))"


def written(tmp_path: Path, text: str = LATEST) -> str:
    (tmp_path / "mine.py").write_text(text)
    return str(tmp_path / "mine.py")


def test_it_is_named_by_file_and_class_and_takes_settings_like_ours(tmp_path: Path) -> None:
    file = written(tmp_path)
    policy = parse_policy(f"{file}:Latest:seats=2,mood=noisy:0.5")
    assert params(policy) == {"seats": 2, "most": 2.0, "mood": "noisy:0.5"}
    assert label(policy) == "latest:seats=2,mood=noisy:0.5"
    assert spec(policy) == f"{file}:Latest:seats=2,most=2,mood=noisy:0.5"
    assert parse_policy(spec(policy)) == policy
    assert policy_file(spec(policy)) == file
    assert sha256(type(policy)) == hashlib.sha256(LATEST.encode()).hexdigest()
    assert sha256(type(parse_policy("one"))) is None
    try_out(policy)
    core = Core(policy, "cell")
    core.worker_came(0, CONTEXT)
    for id in range(4):
        core.submitted(id, ANN, ask(id))
    core.stepped(9, step(8, Row(0, (1,), "a", "stop")))
    assert [passage.id for passage in core.running] == [1, 3]
    assert not (tmp_path / "__pycache__").exists()


BROKEN = {
    "no file": (None, "mine.py: cannot be read: No such file"),
    "syntax": (LATEST.replace("class Latest:", "class Latest"), "mine.py:9: SyntaxError: expected ':'"),
    "import": ("import nowhere_at_all\n", "mine.py:1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    "raises": ("value = 1\nvalue / 0\n", "mine.py:2: ZeroDivisionError: division by zero"),
    "exits": ("import sys\nsys.exit('no')\n", "mine.py:2: SystemExit: no"),
    "class": (LATEST.replace("Latest", "Last"), "mine.py: no class 'Latest'; it has Last (line 8)"),
    "empty": ("", "mine.py: no class 'Latest'; it has no class at all"),
    "frozen": (
        LATEST.replace("(frozen=True)", ""),
        "mine.py:8: class Latest is no policy: put @dataclass(frozen=True)",
    ),
    "name": (LATEST.replace('"latest"', '"La/test"'), "mine.py:8: class Latest is no policy: it needs a name of small"),
    "taken": (LATEST.replace('"latest"', '"one"'), "mine.py: class Latest has the name 'one', which is taken"),
    "seats": (
        LATEST.replace("seats: int = 4", "chairs: int = 4"),
        "mine.py:8: class Latest is no policy: it needs seats",
    ),
    "default": (LATEST.replace("seats: int = 4", "seats: int"), "mine.py:8: class Latest is no policy"),
    "type": (LATEST.replace("seats: int", "seats: list"), "its setting seats is none of int, float and str"),
    "no decide": (LATEST.replace("def decide", "def choose"), "mine.py:8: class Latest is no policy: it needs decide("),
    "signature": (
        LATEST.replace("(self, now, view)", "(self, view)"),
        "mine.py:18: class Latest is no policy: too many",
    ),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_said_in_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    file = str(tmp_path / "mine.py") if text is None else written(tmp_path, text)
    with pytest.raises(PolicyError) as error:
        parse_policy(f"{file}:Latest")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("most=many", "policy latest: most is a number, not 'many'"),
        ("seats=0", "policy latest: seats is a whole number from 1 to 100000, not '0'"),
        ("mood=a/b", "policy latest: mood is a word, not 'a/b'"),
        ("size=3", "policy latest has no 'size'; it takes seats, most, mood"),
    ],
)
def test_its_settings_are_checked_like_ours(tmp_path: Path, settings: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(f"{written(tmp_path)}:Latest:{settings}")
    assert said in str(error.value)


TRIALS = {
    "raises": ("        return Decision(view.nothing)", "the policy failed: AttributeError: 'Core' object has no", 19),
    "nothing": ("        pass", "the policy failed: policy latest returned NoneType, not a Decision", 18),
    "too many": ("        return Decision(tuple(r.id for r in view.waiting))", "admitted 1 to 0 free seats", 18),
    "a stranger": ("        return Decision((99,))", "named a request twice, or one that does not wait", 18),
    "nobody": ("        return Decision()", "policy latest leaves requests waiting for good", 18),
    "for ever": ("        return Decision(wake_at=now + 1)", "policy latest leaves requests waiting for good", 18),
    "no words": ("        return Decision(reject=((0, 404),))", "policy latest rejected without words", 18),
    "half a nanosecond": ("        return Decision(wake_at=now + 0.5)", "wake_at is a whole number, not", 18),
    "in the past": ("        return Decision(wake_at=now)", "asks to be woken in the past", 18),
}


@pytest.mark.parametrize(("body", "said", "line"), TRIALS.values(), ids=TRIALS)
def test_what_fails_in_a_trial_is_said_in_one_line(tmp_path: Path, body: str, said: str, line: int) -> None:
    policy = parse_policy(f"{written(tmp_path, LATEST.replace(DECIDE, body))}:Latest")
    with pytest.raises(PolicyError) as error:
        try_out(policy)
    assert said in str(error.value)
    assert str(error.value).endswith(f"({tmp_path}/mine.py:{line})")
    assert "\n" not in str(error.value)


def test_an_order_that_raises_is_found_too(tmp_path: Path) -> None:
    policy = parse_policy(f"{written(tmp_path, LATEST.replace('-request.received', 'request.age'))}:Latest")
    with pytest.raises(PolicyError, match=r"no attribute 'age' \(.*mine.py:16\)"):
        try_out(policy)


@pytest.mark.parametrize("name", ["one", "static", "continuous", "shortest", "priority", "deadline", "fair", "budget"])
def test_our_own_pass_the_trial(name: str) -> None:
    try_out(parse_policy(name))


def test_a_policy_that_fails_in_a_run_loses_nothing(tmp_path: Path) -> None:
    """What a step brought is passed on first; then everybody's request fails, with the reason and its line."""
    body = f"        1 / (now - 9)\n{DECIDE}"
    core = Core(parse_policy(f"{written(tmp_path, LATEST.replace(DECIDE, body))}:Latest:seats=2"), "cell")
    core.worker_came(0, CONTEXT)
    for id in range(3):
        core.submitted(1 + id, ANN, ask(id))
    rows = (Row(0, (1,), "a", "stop"), Row(1, (1,), "b"))
    with pytest.raises(PolicyFailed) as failed:
        core.stepped(9, step(8, *rows))
    reason = f"the policy failed: ZeroDivisionError: division by zero ({tmp_path}/mine.py:19)"
    assert str(failed.value) == reason
    tokens, kept = failed.value.actions
    assert tokens == ToClient(ANN, Tokens(8, rows))
    assert isinstance(kept, Write)
    assert (kept.record.id, kept.record.end) == (0, "completed")
    ends = [action.message for action in core.closing(10, reason) if isinstance(action, ToClient)]
    assert ends == [Ended(id, "failed", reason) for id in (1, 2)]
    assert (len(core.waiting), len(core.running), core.ended) == (0, 0, 3)
