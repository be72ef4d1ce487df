"""Prefix caching: emails sorted behind the same long start, which is read every time, or once."""

from dataclasses import dataclass

from experiments.cell import Cell
from experiments.run import Run
from worker.options import Server

EMAILS, QUICK_EMAILS = 20, 5
ANSWER_TOKENS = 40
COLD, CACHED = "1-cold", "2-cached"
LABELS = {COLD: "no prefix cache", CACHED: "prefix cached"}


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """What is measured; plain values, as they stand in the manifest. Without a `rate` (requests per second) emails are
    sorted one at a time; `timestamp_first` puts what changes before what never does."""

    server: Server
    emails: int
    rate: float | None
    timestamp_first: bool
    seed: int
    objectives: tuple[str, ...] = ()


def cells(settings: PrefixSettings) -> list[Cell]:
    """The same emails without and with the cache."""
    return [
        Cell(
            name=name,
            label=label,
            policy="one" if settings.rate is None else "continuous",
            requests=settings.emails,
            max_tokens=ANSWER_TOKENS,
            rate=settings.rate,
            seed=settings.seed,
            workload="sorting-stamped" if settings.timestamp_first else "sorting",
            share_prefix=name == CACHED,
            margins=True,
            labels={"emails": settings.emails},
        )
        for name, label in LABELS.items()
    ]


def measure(settings: PrefixSettings, run: Run) -> None:
    """Both cells, by one worker: only what clients ask for differs."""
    planned = cells(settings)
    run.announce(planned)
    run.serve(settings.server)
    for number, cell in enumerate(planned, start=1):
        run.attempt(cell, f"{number}/2 {cell.label}")
