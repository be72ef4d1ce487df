"""A run's folder in, its report out: reads the records once and writes report.html."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.analysis import CellRecords, by_cell
from experiments.run_folder import Summary, build_summary, read_manifest, shown_names
from protocol.records import read_folder

REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Measured:
    """A run: its manifest, the records of its cells by name, and what they sum up to."""

    manifest: Mapping[str, Any]
    cells: Mapping[str, CellRecords]
    summary: Summary

    @property
    def names(self) -> list[str]:
        """The names of the summary's cells, in its order."""
        return shown_names(self.manifest, self.cells)


def read_run(folder: Path) -> Measured:
    """A run from its records. Raises RunFolderError for a folder that is none."""
    manifest = read_manifest(folder)
    cells = by_cell(read_folder(folder))
    return Measured(manifest, cells, build_summary(manifest, cells))


def write_report(folder: Path, measured: Measured, study: bool = False, texts: bool = True) -> Path:
    """Write the report, whole or not at all: `study` sets the study's figures beside the run's, without `texts` prompts
    and replies are left out."""
    from experiments.report.page import page

    path = folder / REPORT
    half = path.with_suffix(".half")
    half.write_text(page(measured, study, texts), encoding="utf-8")
    half.replace(path)
    return path
