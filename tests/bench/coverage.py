"""How often the intervals for a mean hold the truth, when what is measured is normal and when it is skewed:

python -m tests.bench.coverage
"""

from collections.abc import Callable

import click
import numpy as np

from experiments.paired import Array, bootstrap_t, student_t

TRUTH = {"normal": 0.0, "lognormal": float(np.exp(0.5))}
SEED = 12

Method = Callable[[Array], tuple[Array, Array]]


@click.command()
@click.option("--trials", default=2_000, show_default=True, help="Samples of each kind.")
def main(trials: int) -> None:
    """Print the share of 95 % intervals that hold the true mean."""
    for kind in TRUTH:
        for n in (5, 10, 20, 30):
            line = f"{kind:<10} n={n:<3} Student's t {covered(student_t, drawn(kind, n, trials), TRUTH[kind]):.1%}"
            if n >= 10:
                line += f", bootstrap t {covered(resampled, drawn(kind, n, trials), TRUTH[kind]):.1%}"
            print(line)


def resampled(sample: Array) -> tuple[Array, Array]:
    """As experiments.paired does it from 30 up."""
    return bootstrap_t(sample) or student_t(sample)


def drawn(kind: str, n: int, trials: int) -> Array:
    """As many samples of `n` values of a kind in TRUTH, in rows; always the same."""
    generator = np.random.default_rng(SEED)
    normal = generator.standard_normal((trials, n))
    return normal if kind == "normal" else np.exp(normal)


def covered(method: Method, samples: Array, truth: float) -> float:
    """The share of samples whose interval holds the truth."""
    ends = [method(sample) for sample in samples]
    return float(np.mean([low <= truth <= high for low, high in ends]))


if __name__ == "__main__":
    main()
