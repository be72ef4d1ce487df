"""What a person reads of a run, whatever its experiment: its tables, and the study's figures beside them on request."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from experiments.run_folder import Summary, findings_module
from experiments.study_tables import print_study
from experiments.tables import print_tables


def show(console: Console, summary: Summary, settings: Mapping[str, Any], study: bool = False) -> None:
    """An experiment's own tables, or those of the rush; `settings` are the manifest's."""
    module = findings_module(summary.experiment)
    if module is not None:
        module.show(console, summary.findings)
        if study:
            module.show_study(console, summary.findings)
    elif not summary.cells:
        console.print("No cell was measured.")
    else:
        print_tables(console, summary)
        if study:
            print_study(console, summary, settings)
