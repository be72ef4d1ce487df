"""A run's folder: its manifest, its records, and the summary that is computed from them."""

import contextlib
import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from experiments.analysis import CellRecords, CellSummary, by_cell, summarise
from experiments.comparison import Comparison, comparisons
from experiments.guesses import of_records
from experiments.load_state import load_state
from experiments.objectives import Objective, parse_objective
from experiments.seeds import Pooled, pooled
from experiments.thresholds import THRESHOLDS
from experiments.twin.comparison import Twin, twin_of
from experiments.verdict import Verdict, circumstances, judge, judged
from protocol.records import read_folder

SCHEMA = 1
MANIFEST, SUMMARY = "manifest.json", "summary.json"
FINDINGS = {
    "sweep": "experiments.sweep_findings",
    "prefix": "experiments.prefix_findings",
    "repeat": "experiments.repeat_findings",
    "kv-quant": "experiments.kv_quant_findings",
    "kv-size": "experiments.kv_size_findings",
    "capacity": "experiments.capacity.findings",
    "selftest": "experiments.selftest_findings",
}
CALCULATED = ("kv-size", "capacity")  # from the manifest alone, or before anything is measured
SIMULATED = "simulate"  # of such a run there is no instrument to judge


@dataclass(frozen=True, slots=True)
class Summary:
    """What summary.json holds. `complete` is False when the run ended early or lost a cell, `reason` says why; `drift`
    compares a cell with its repetition at the end of the run; `findings` are what the experiment is about, beyond the
    figures of its cells; `comparisons` are of policies on the same arrivals, and `pooled` is what all seeds together
    say of each policy and rate, where a run has several seeds; `twin` is its simulation, where one was asked for."""

    schema: int
    experiment: str
    complete: bool
    reason: str | None
    cells: list[CellSummary]
    calibration: CellSummary | None
    drift: dict[str, Any] | None
    findings: dict[str, Any] | None
    comparisons: list[Comparison] = field(default_factory=list)
    pooled: list[Pooled] = field(default_factory=list)
    twin: Twin | None = None


class RunFolderError(Exception):
    """A folder that is no run, or cannot be one; one line that says what to do."""


def create(parent: Path, experiment: str) -> Path:
    """A new run folder below `parent`. Raises RunFolderError when it cannot be made or written."""
    stamp = datetime.now(UTC).astimezone().strftime("%Y-%m-%d-%H%M%S")
    try:
        for attempt in range(100):
            folder = parent / f"{stamp}{f'-{attempt}' if attempt else ''}-{experiment}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
    except OSError as error:
        raise RunFolderError(f"--out {parent}: {error.strerror}; name a folder you can write to") from None
    raise RunFolderError(f"--out {parent}: no free name below it")


def check_parent(parent: Path) -> None:
    """Raises RunFolderError unless run folders can be made below `parent`."""
    existing = parent
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        usable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise RunFolderError(f"--out {parent}: cannot be written; name a folder you can write to")


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, whole or not at all: a reader never sees half a file."""
    half = path.with_suffix(".half")
    half.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
    half.replace(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run; empty for records without one. Raises RunFolderError for a folder without either."""
    path = folder / MANIFEST
    if path.is_file():
        try:
            manifest = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError:
            raise RunFolderError(f"{path}: not JSON") from None
        if not isinstance(manifest, dict):
            raise RunFolderError(f"{path}: not a manifest")
        return manifest
    if not any(folder.glob("*.msgpack")):
        raise RunFolderError(f"{folder}: no run folder; it has neither {MANIFEST} nor records")
    return {}


def analyse(folder: Path, objectives: Sequence[str] = ()) -> Summary:
    """Compute a run's summary from its records and write it; `objectives` take the place of the run's own. Raises
    RunFolderError."""
    manifest = read_manifest(folder)
    if objectives:
        manifest["settings"] = {**_settings(manifest), "objectives": objectives}
    made = build_summary(manifest, by_cell(read_folder(folder)))
    write_json(folder / SUMMARY, asdict(made))
    return made


def build_summary(manifest: Mapping[str, Any], cells: Mapping[str, Any]) -> Summary:
    """The summary of a run, from its manifest (none: roles started by hand) and its cells."""
    promised = objectives_of(manifest)
    inputs, simulated = manifest.get("inputs") or {}, manifest.get("experiment") == SIMULATED
    measured = {
        name: replace(summarise(name, cell, promised), wrong_order=of_records(cell, inputs, simulated))
        for name, cell in sorted(cells.items())
    }
    if simulated:
        figures = {name: replace(cell, load_state=load_state(cells[name])) for name, cell in measured.items()}
    else:
        verdicts = verdicts_of(manifest, cells, measured)
        figures = {name: judged(cell, verdicts[name]) for name, cell in measured.items()}
    found = _findings(manifest.get("experiment", "by-hand"), manifest, cells)
    return replace(summed_up(manifest, figures, found), twin=_twin(manifest, cells, figures))


def _twin(
    manifest: Mapping[str, Any], cells: Mapping[str, CellRecords], figures: Mapping[str, CellSummary]
) -> Twin | None:
    """The simulation beside a run that asked for it."""
    if not manifest.get("twin"):
        return None
    return twin_of(manifest, cells, {name: figures[name] for name in shown_names(manifest, figures)})


def summed_up(
    manifest: Mapping[str, Any], figures: Mapping[str, CellSummary], findings: dict[str, Any] | None = None
) -> Summary:
    """The summary of a run, from its manifest and the figures of its cells."""
    experiment = manifest.get("experiment", "by-hand")
    shown = [figures[name] for name in shown_names(manifest, figures)]
    calculated = experiment in CALCULATED and not shown
    reason = manifest.get("reason") or _lost(manifest) or (None if calculated else _missing(shown))
    return Summary(
        schema=SCHEMA,
        experiment=experiment,
        complete=reason is None,
        reason=reason,
        cells=shown,
        calibration=figures.get("calibration"),
        drift=drift(manifest, figures),
        findings=findings,
        comparisons=comparisons(shown) if len(_settings(manifest).get("seeds") or ()) > 1 else [],
        pooled=pooled(shown),
    )


def shown_names(manifest: Mapping[str, Any], cells: Iterable[str]) -> list[str]:
    """The cells of a summary, in its order: all but the calibration and the one that was repeated for drift."""
    drift_of = manifest.get("drift")
    special = {"calibration", drift_of["repeat"] if drift_of else None}
    return [name for name in sorted(cells) if name not in special]


def objectives_of(manifest: Mapping[str, Any]) -> list[Objective]:
    """What the run promised. Raises RunFolderError for what cannot be read."""
    try:
        return [parse_objective(str(text)) for text in _settings(manifest).get("objectives") or ()]
    except (TypeError, ValueError) as error:
        raise RunFolderError(f"{MANIFEST}: {error}") from None


def _settings(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = manifest.get("settings") or {}
    return settings


def findings_module(experiment: str) -> Any:
    """The module with an experiment's `findings` and how to `show` them; None for one that is all cells."""
    name = FINDINGS.get(experiment)
    return importlib.import_module(name) if name else None


def _findings(experiment: str, manifest: Mapping[str, Any], cells: Mapping[str, CellRecords]) -> dict[str, Any] | None:
    """What the experiment is about; None too for one that broke off before it had a plan."""
    module = findings_module(experiment)
    if module is None or not (experiment in CALCULATED or manifest.get("planned")):
        return None
    found: dict[str, Any] | None = module.findings(manifest, cells)
    return found


def _lost(manifest: Mapping[str, Any]) -> str | None:
    """Cells that could not be measured, although nothing forbade it."""
    lost = manifest.get("lost") or {}
    return "; ".join(f"{cell}: {reason}" for cell, reason in lost.items()) or None


def _missing(cells: Sequence[CellSummary]) -> str | None:
    """Why these cells are no whole measurement: requests that were never sent, or that nothing became of."""
    counts = {
        "never sent": sum(cell.unsent for cell in cells),
        "failed": sum(cell.failed for cell in cells),
        "unfinished": sum(cell.unfinished for cell in cells),
    }
    said = [f"{count} requests {what}" for what, count in counts.items() if count]
    return ", ".join(said) or (None if any(cell.requests for cell in cells) else "nothing was measured")


def verdicts_of(
    manifest: Mapping[str, Any], cells: Mapping[str, CellRecords], figures: Mapping[str, CellSummary]
) -> dict[str, Verdict]:
    """The verdict of every cell, by its name; all share what the run says of the machine."""
    drifted = drift(manifest, figures)
    return {name: judge(cells[name], figures[name], circumstances(manifest, name, drifted)) for name in figures}


def drift(manifest: Mapping[str, Any], figures: Mapping[str, CellSummary]) -> dict[str, Any] | None:
    """How far the repeated cell's time to the last reply is from the first time's; None if either is not whole."""
    names = manifest.get("drift")
    if not names:
        return None
    first, again = figures.get(names["first"]), figures.get(names["repeat"])
    if first is None or again is None or not first.done_s or not again.done_s:
        return None
    if any(cell.completed < cell.requests for cell in (first, again)):
        return None
    change = again.done_s / first.done_s - 1
    return {
        "label": first.label,
        "first_done_s": first.done_s,
        "repeat_done_s": again.done_s,
        "change": change,
        "drifted": abs(change) > THRESHOLDS.drift_suspect,
    }
