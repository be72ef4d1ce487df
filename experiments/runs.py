"""The run folders below a folder, newest first: what each measured, whether it can be trusted, and what it found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.analysis import CellSummary
from experiments.headline import headline
from experiments.kept_summary import read_summary
from experiments.run_folder import RunFolderError, read_manifest
from experiments.settings_words import served
from experiments.verdict import INVALID, SUSPECT, VALID


@dataclass(frozen=True, slots=True)
class Listed:
    """One folder. `problem` says in one line why it has no headline; what is not known is None."""

    folder: str
    begun: str | None = None
    experiment: str | None = None
    model: str | None = None
    verdict: str | None = None
    complete: bool | None = None
    headline: str | None = None
    problem: str | None = None


def listed(parent: Path) -> list[Listed]:
    """Every folder below `parent`, newest first; those that are no runs come last, by their names."""
    found = [_listed(folder) for folder in sorted(parent.iterdir()) if folder.is_dir()]
    return sorted(found, key=lambda run: run.begun or "", reverse=True)


def _listed(folder: Path) -> Listed:
    """What can be told of a folder, whatever is in it."""
    run = Listed(folder.name)
    try:
        run = _named(folder)
        summary = read_summary(folder)
        return replace(run, verdict=worst(summary.cells), complete=summary.complete, headline=headline(summary))
    except (RunFolderError, OSError) as error:
        return replace(run, problem=_without_place(str(error), folder))
    except (AttributeError, KeyError, TypeError, ValueError):
        return replace(run, problem=f"of another version; make it anew with: headway analyse {folder}")


def _named(folder: Path) -> Listed:
    manifest = read_manifest(folder)
    begun, experiment = manifest.get("begun"), manifest.get("experiment", "by-hand")
    return Listed(folder.name, None if begun is None else str(begun), str(experiment), served(manifest))


def _without_place(problem: str, folder: Path) -> str:
    """Without the folder, which stands beside it."""
    return problem.removeprefix(f"{folder}: ").removeprefix(f"{folder}/")


def worst(cells: Sequence[CellSummary]) -> str | None:
    """The worst verdict of these cells; None where none was given."""
    given = {cell.verdict for cell in cells}
    return next((verdict for verdict in (INVALID, SUSPECT, VALID) if verdict in given), None)
