"""`headway policies` lists every policy there is, fits 80 columns, and gives scripts the same."""

import orjson
import pytest
from click.testing import CliRunner

from experiments.policies_cli import policies
from experiments.tables import SERVERS
from router.policies import POLICIES, params, parse_policy


def test_the_list_names_every_policy_and_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = CliRunner().invoke(policies).stdout
    assert max(map(len, printed.splitlines())) <= 80
    rows = [line.split()[:2] for line in printed.splitlines()]
    assert [row[0] for row in rows if row and row[0] in POLICIES] == [*POLICIES]
    for word in ("seats=64", "n=8", "wait=0.5", "predictor=oracle", "patience=0.1", "pace=0", "tokens=2048"):
        assert word in printed
    assert "FILE.py:CLASS" in printed


def test_json_holds_the_same_for_scripts() -> None:
    found = orjson.loads(CliRunner().invoke(policies, ["--json"]).stdout)
    assert {each["name"]: each["settings"] for each in found} == {name: params(parse_policy(name)) for name in POLICIES}
    assert all(each["sentence"].endswith(".") and "`" not in each["sentence"] for each in found)


def test_every_policy_has_words_in_the_tables() -> None:
    assert [*SERVERS] == [*POLICIES]
