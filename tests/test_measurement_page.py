"""The page of measurement rules names a test for each of them, and those tests exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULE = re.compile(r"^(\d+)\. \*\*.+?\*\*(.*?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
RULES = {int(number): text for number, text in RULE.findall((ROOT / "docs" / "measurement.md").read_text())}


def defined_in(file: str) -> set[str]:
    """The names of a file's test functions."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_rule_names_a_test() -> None:
    assert [*RULES] == [*range(1, 20)]
    assert [number for number, text in RULES.items() if not TEST.search(text)] == []


def test_every_named_test_exists() -> None:
    named = {match for text in RULES.values() for match in TEST.findall(text)}
    known = {file: defined_in(file) for file, _ in named}
    assert sorted(f"{file}::{test}" for file, test in named if test not in known[file]) == []
    written = sum(text.count("::") for text in RULES.values())
    assert written == sum(len(TEST.findall(text)) for text in RULES.values()), "one that is spelled otherwise"
