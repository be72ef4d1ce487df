"""A cell: one policy serving one crowd. What the crowd asks, and the commands that measure it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from clients.traces import TraceSource, trace_arguments

CLIENTS, QUEUE, SEED = 2, 4_096, 12


@dataclass(frozen=True, slots=True)
class Cell:
    """`name` is its file name in the run folder, `label` what people read. Without a `rate` (requests per second) all
    requests come at once. A `trace` says when they come and how long prompts and replies are; `rate` is then its mean.
    `labels` are further facts for its records."""

    name: str
    label: str
    policy: str
    requests: int
    max_tokens: int
    rate: float | None = None
    arrivals: str = "poisson"
    seed: int = SEED
    workload: str = "emails"
    prompts: str | None = None
    trace: TraceSource | None = None
    ignore_eos: bool = False
    share_prefix: bool = False
    margins: bool = False
    clients: int = CLIENTS
    queue: int = QUEUE
    timeout: float | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)


def router_options(cell: Cell) -> list[str]:
    """The arguments of `headway router` for a cell."""
    known = {"label": cell.label, "rate": cell.rate, "seed": cell.seed, "requests": cell.requests}
    timeout = ["--timeout", str(cell.timeout)] if cell.timeout is not None else []
    return [
        *("--policy", cell.policy, "--queue", str(cell.queue)),
        *("--labels", orjson.dumps(known | dict(cell.labels)).decode(), *timeout),
    ]


def _crowd_options(cell: Cell) -> list[str]:
    asked = ["--prompts", cell.prompts] if cell.prompts else ["--workload", cell.workload]
    rate: Sequence[str] = [] if cell.rate is None else ["--rate", repr(cell.rate)]
    arrivals = ["--arrivals", "at-once" if cell.rate is None else cell.arrivals, *rate]
    return [*arrivals, "--seed", str(cell.seed), "--requests", str(cell.requests), *asked]


def client_options(cell: Cell) -> list[str]:
    """The arguments of `headway clients` for a cell."""
    return [
        *(_crowd_options(cell) if cell.trace is None else trace_arguments(cell.trace)),
        *("--max-tokens", str(cell.max_tokens)),
        *(["--ignore-eos"] if cell.ignore_eos else []),
        *(["--share-prefix"] if cell.share_prefix else []),
        *(["--margins"] if cell.margins else []),
    ]
