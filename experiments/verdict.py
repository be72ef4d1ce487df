"""Whether a cell is to be trusted: what its checks say together.

A verdict is about the instrument alone. Requests that failed or were rejected, figures of few requests, and a server
that could not keep up are results; see experiments.load_state for the last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.analysis import CellRecords, CellSummary
from experiments.checks import CHECKS, ORDINARY, Case, Check, Circumstances
from experiments.load_state import load_state
from experiments.thresholds import THRESHOLDS, Thresholds

VALID, SUSPECT, INVALID = "VALID", "SUSPECT", "INVALID"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verdict` is VALID, SUSPECT or INVALID, with `reasons`, the worst first; `load_state` is another question."""

    verdict: str
    reasons: list[str]
    load_state: str
    checks: list[Check]


def judge(
    cell: CellRecords,
    figures: CellSummary,
    around: Circumstances = ORDINARY,
    limits: Thresholds = THRESHOLDS,
) -> Verdict:
    """Every check of a cell, and what follows. What could not be measured never lowers a verdict."""
    case = Case(cell, figures, around, limits)
    checks = [check(case) for check in CHECKS]
    lowered = [[check.words for check in checks if check.level == level] for level in ("invalid", "suspect")]
    verdict = INVALID if lowered[0] else SUSPECT if lowered[1] else VALID
    reasons = list(dict.fromkeys(words for level in lowered for words in level))
    return Verdict(verdict, reasons, load_state(cell, limits), checks)


def judged(figures: CellSummary, verdict: Verdict) -> CellSummary:
    """The figures of a cell with what was found of them."""
    return replace(figures, verdict=verdict.verdict, reasons=verdict.reasons, load_state=verdict.load_state)


def circumstances(manifest: Mapping[str, Any], name: str, drift: Mapping[str, Any] | None) -> Circumstances:
    """What a run's manifest knows of a cell."""
    lost = (manifest.get("lost") or {}).get(name)
    battery = (manifest.get("machine") or {}).get("on_battery")
    return Circumstances(lost or manifest.get("reason"), battery, manifest.get("on_battery_at_end"), drift)
