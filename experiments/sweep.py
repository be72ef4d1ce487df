"""The sweep: N replies started together, for growing N; what batching gains in total, and costs each reply.

Two more crowds tell what replies that start together do not: rows that come and go, and long prompts. They count for
the cost profile alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.analysis import by_cell
from experiments.cell import Cell
from experiments.fit import FitError, fit_profile
from experiments.run import Run
from experiments.run_folder import write_json
from protocol.records import read_folder
from worker.options import Server
from worker.profile import as_json

BATCHES, QUICK_BATCHES = (1, 2, 4, 8, 16, 32, 64), (1, 4, 16, 32)
TOKENS, QUICK_TOKENS = 128, 32
BOARDING_S = 10
LONG_PROMPTS, LONG_PROMPT_TOKENS, LONG_PROMPT_REPLY = 4, 512, 16


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What a sweep measures; plain values, as they stand in its manifest. `weights` are types of weights, each of which
    is swept; a reply has `max_tokens` tokens, whatever the model's end of sequence."""

    server: Server
    weights: tuple[str, ...]
    batches: tuple[int, ...]
    max_tokens: int
    objectives: tuple[str, ...] = ()

    def servers(self) -> list[Server]:
        """What serves, one after another. Every prompt of a batch is read in the same steps: or 64 would enter in
        waves, and not start together."""
        return [replace(self.server, weights=kind, prefill_batch=max(self.batches)) for kind in self.weights]


def cells(settings: SweepSettings, weights: str) -> list[Cell]:
    """One cell for each number of replies, fewest first, and those for the cost profile."""
    of = f", {weights}" if len(settings.weights) > 1 else ""
    return [*_together(settings, weights, of), *_for_the_profile(settings, weights, of)]


def _together(settings: SweepSettings, weights: str, of: str) -> list[Cell]:
    return [
        Cell(
            name=f"{weights}-{count:03d}-at-once",
            label=f"{count} at once{of}",
            policy=f"static:n={count},wait={BOARDING_S}",
            requests=count,
            max_tokens=settings.max_tokens,
            ignore_eos=True,
            labels={"weights": weights, "replies": count},
        )
        for count in settings.batches
    ]


def _for_the_profile(settings: SweepSettings, weights: str, of: str) -> list[Cell]:
    most, labels = max(settings.batches), {"weights": weights}
    changing = Cell(
        *(f"{weights}-coming-and-going", f"coming and going{of}", f"continuous:seats={most}"),
        requests=2 * most,
        max_tokens=settings.max_tokens,
        workload="mixed",
        labels=labels,
    )
    long = Cell(
        *(f"{weights}-long-prompts", f"long prompts{of}", "continuous:seats=1", LONG_PROMPTS, LONG_PROMPT_REPLY),
        workload=f"needle:{LONG_PROMPT_TOKENS}",
        ignore_eos=True,
        labels=labels,
    )
    return [changing, long]


def measure(settings: SweepSettings, run: Run) -> None:
    """Every batch on every type of weights; one that fails, or does not fit in memory, leaves the others."""
    planned = [(server, cells(settings, server.weights)) for server in settings.servers()]
    run.announce([cell for _, several in planned for cell in several])
    total, number = sum(len(several) for _, several in planned), 0
    for server, several in planned:
        run.serve(server, *(["--bandwidth"] if server.engine == "mlx" else []))
        try:
            for cell in several:
                number += 1
                run.attempt(cell, f"{number}/{total} {cell.label}")
        finally:
            _fit(settings, run, server, several)


def _fit(settings: SweepSettings, run: Run, server: Server, planned: Sequence[Cell]) -> None:
    """Keep a cost profile of what was measured, for the paced engine."""
    measured = by_cell(read_folder(run.folder))
    steps = [measured[cell.name].steps for cell in planned if cell.name in measured]
    name = f"{Path(server.model).name}-{server.weights}" if server.engine == "mlx" else server.profile
    source = f"Batch sweep of {server.name}, {server.weights} weights, {settings.max_tokens} tokens a reply."
    try:
        profile = fit_profile(name, source, steps)
    except FitError as error:
        run.console.print(str(error), soft_wrap=True)
        return
    file = run.folder / profile_file(server.weights)
    write_json(file, as_json(profile))
    run.console.print(f"Cost profile: --engine paced --profile {file}", soft_wrap=True)


def profile_file(weights: str) -> str:
    """Name of the cost profile in a sweep's folder."""
    return f"profile-{weights}.json"
