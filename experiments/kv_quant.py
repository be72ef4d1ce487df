"""The needle test: one customer's name in a long pile of emails, found with a KV cache of fewer and fewer bits?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from experiments.cell import SEED, Cell
from experiments.run import Run
from worker.options import Server

BITS = (16, 8, 4)
CONTEXTS, QUESTIONS = (500, 1_000), 5
QUICK_CONTEXTS, QUICK_QUESTIONS = (300, 500), 3
STUDY_CONTEXTS, STUDY_QUESTIONS = (4_000, 16_500), 10
ANSWER_TOKENS = 16
# Short enough that even a short pile is read in several chunks, all but the first of them over a quantized cache.
PREFILL_STEP = 256


@dataclass(frozen=True, slots=True)
class KVQuantSettings:
    """What is measured; plain values, as they stand in the manifest. `contexts` are tokens of a prompt, roughly."""

    server: Server
    bits: tuple[int, ...]
    contexts: tuple[int, ...]
    questions: int
    seed: int = SEED


def servers(settings: KVQuantSettings) -> Iterator[Server]:
    """One for each cache, most bits first; they differ in nothing else."""
    for bits in sorted(settings.bits, reverse=True):
        yield replace(settings.server, kv_bits=bits, prefill_step=PREFILL_STEP)


def cells(settings: KVQuantSettings, bits: int) -> list[Cell]:
    """The same questions for each length of the pile. One at a time, since a quantized cache cannot be batched."""
    return [
        Cell(
            name=f"{99 - bits}-{bits}-bits-{context:06d}-tokens",
            label=f"{bits} bits, about {context:,} tokens",
            policy="one",
            requests=settings.questions,
            max_tokens=ANSWER_TOKENS,
            seed=settings.seed,
            workload=f"needle:{context}",
            labels={"kv_bits": bits, "context": context, "questions": settings.questions},
        )
        for context in settings.contexts
    ]


def measure(settings: KVQuantSettings, run: Run) -> None:
    """Every length of the pile with every cache; one that does not fit or fails leaves the others."""
    planned = [(server, cells(settings, server.kv_bits or 0)) for server in servers(settings)]
    run.announce([cell for _, several in planned for cell in several])
    total, number = len(settings.bits) * len(settings.contexts), 0
    for server, several in planned:
        run.serve(server)
        for cell in several:
            number += 1
            run.attempt(cell, f"{number}/{total} {cell.label}")
