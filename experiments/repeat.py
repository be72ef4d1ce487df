"""Repeatability: the same prompts with plain decoding, several times alone and in batches of several sizes."""

from dataclasses import dataclass

from experiments.cell import SEED, Cell
from experiments.run import Run
from worker.options import Server

PROMPTS, TIMES, BATCHES, TOKENS = 8, 3, (2, 8), 64
QUICK_PROMPTS, QUICK_TIMES, QUICK_BATCHES, QUICK_TOKENS = 4, 2, (4,), 24
BOARDING_S = 10


@dataclass(frozen=True, slots=True)
class RepeatSettings:
    """What is measured; plain values, as they stand in the manifest. `requests` prompts are asked `times` times alone,
    then in batches of each of the sizes."""

    server: Server
    requests: int
    times: int
    batches: tuple[int, ...]
    max_tokens: int
    workload: str
    prompts: str | None


def cells(settings: RepeatSettings) -> list[Cell]:
    """The first is what all others are compared with."""
    alone = [("one", f"alone, time {time}", f"1-alone-{time:02d}") for time in range(1, settings.times + 1)]
    batches = [
        (f"static:n={size},wait={BOARDING_S}", f"in batches of {size}", f"2-batches-of-{size:03d}")
        for size in settings.batches
    ]
    return [
        Cell(
            name=name,
            label=label,
            policy=policy,
            requests=settings.requests,
            max_tokens=settings.max_tokens,
            seed=SEED,
            workload=settings.workload,
            prompts=settings.prompts,
            margins=True,
            labels={"prompts": settings.requests},
        )
        for policy, label, name in [*alone, *batches]
    ]


def measure(settings: RepeatSettings, run: Run) -> None:
    """Every cell, by one worker."""
    planned = cells(settings)
    run.announce(planned)
    run.serve(settings.server)
    for number, cell in enumerate(planned, start=1):
        run.attempt(cell, f"{number}/{len(planned)} {cell.label}")
