"""What a person reads of a run, whatever its experiment: its tables, and the study's figures beside them on request."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from experiments.predictor_gains import gains_lines, gains_tables, predictor_gains, untold
from experiments.run_folder import Summary, findings_module
from experiments.seeds import over_seeds
from experiments.sentences import comparison_lines, objective_parts
from experiments.study_tables import print_study
from experiments.tables import print_tables, verdict_lines
from experiments.twin_tables import show_twin


def show(console: Console, summary: Summary, settings: Mapping[str, Any], study: bool = False) -> None:
    """An experiment's own tables, or those of the rush, and whether to trust them; `settings` are the manifest's."""
    module = findings_module(summary.experiment)
    if module is not None and summary.findings is not None:
        module.show(console, summary.findings)
        for part in objective_parts(summary.cells):
            console.print(part)
        if study:
            module.show_study(console, summary.findings)
    elif not summary.cells:
        console.print("No cell was measured.")
    else:
        rows = over_seeds(summary.cells)
        print_tables(console, summary)
        gains = predictor_gains(summary)
        for table in gains_tables(gains):
            console.print(table)
        compared = comparison_lines(untold(summary.comparisons, gains))
        for part in [*gains_lines(gains), *objective_parts(rows), *compared]:
            console.print(part)
        if summary.twin is not None:
            show_twin(console, summary.twin)
        if study:
            print_study(console, replace(summary, cells=rows), settings)
    for line in verdict_lines(summary.cells):
        console.print(line)
