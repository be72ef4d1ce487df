"""Cost profiles fitted from run folders, for `headway fit` and for a rush with its twin."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.analysis import CellRecords, by_cell
from experiments.fit import FitError, fit_profile
from experiments.run_folder import RunFolderError, read_manifest
from protocol.records import StepRecord, read_folder
from worker.profile import CostProfile, load_profile

SERVED = ("engine", "model", "dtype", "kv_bits")


def profile_from(runs: Sequence[Path]) -> tuple[CostProfile, list[list[StepRecord]]]:
    """A profile fitted from all steps of these run folders, and the steps, cell by cell. Raises FitError where they
    hold none, or of several models; RunFolderError."""
    cells = [cell for run in runs for cell in _cells(run).values()]
    steps = [cell.steps for cell in cells if cell.steps]
    if not steps:
        raise FitError(f"{_names(runs)}: no step was recorded; name runs with a worker, such as a sweep")
    served = {_served(cell) for cell in cells if cell.worker is not None}
    if len(served) > 1:
        raise FitError(f"{_names(runs)}: several models served ({'; '.join(sorted(map(_words, served)))}); fit one")
    count = sum(map(len, steps))
    model = next(iter(served))[1] if served else None
    name = f"{Path(str(model)).name if model else 'unknown'}-fit"
    return fit_profile(name, f"Fitted from {count:,} steps of {_names(runs)}.", steps), steps


def named_profile(name: str) -> CostProfile:
    """From a run folder, by its steps, or a profile file. Raises FitError, ProfileError or RunFolderError."""
    return profile_from([Path(name)])[0] if Path(name).is_dir() else load_profile(name)


@dataclass(frozen=True, slots=True)
class WantedTwin:
    """The simulation that is wanted beside a run: its costs are `profile`'s, called `named`, or fitted from the run."""

    profile: CostProfile | None
    named: str | None

    @property
    def unseen(self) -> bool:
        """Whether the costs are from elsewhere."""
        return self.profile is not None

    def profile_for(self, folder: Path) -> tuple[CostProfile, str]:
        """The costs for the run in this folder, and where they are from, in words. Raises FitError."""
        if self.profile is not None:
            return self.profile, f"{self.named}, which this run had no part in"
        return profile_from([folder])[0], "this run's own steps"


def _cells(run: Path) -> Mapping[str, CellRecords]:
    if not run.is_dir():
        raise RunFolderError(f"{run}: no run folder")
    read_manifest(run)
    return by_cell(read_folder(run))


def _served(cell: CellRecords) -> tuple[str | None, ...]:
    facts = cell.worker.facts if cell.worker is not None else {}
    return tuple(None if facts.get(name) is None else str(facts[name]) for name in SERVED)


def _words(served: Iterable[str | None]) -> str:
    return ", ".join(each for each in served if each is not None)


def _names(runs: Sequence[Path]) -> str:
    return ", ".join(run.name for run in runs)
