"""Every threshold that decides whether a cell is to be trusted, and how loaded it was, in one place."""

from dataclasses import dataclass

from protocol.clock import MS


@dataclass(frozen=True, slots=True)
class Thresholds:
    """A check's value above `..._suspect` makes a cell SUSPECT, above `..._invalid` INVALID; `load_...` decide its load
    state."""

    # Share of requests sent more than a millisecond late. Latencies count from intent, so they stay right; the crowd
    # that was offered is another one when many come late.
    late_suspect: float = 0.01
    # That many late requests are no share yet: one of forty says nothing of a hundred.
    late_forgiven: int = 1
    late_invalid: float = 0.25
    # Worst send lag, seconds: the goal for a busy machine is 10 ms. After a second the client did not send on time.
    lag_suspect: float = 0.010
    lag_invalid: float = 1.0
    # Seconds by which two clocks may be unknown: more, and the order of stamps can hardly be checked.
    clock_bound_suspect: float = 0.001
    # Relative difference between the queue's length over time and the waits in the records; nanoseconds (times
    # requests) that are forgiven for queues that hardly were.
    little_invalid: float = 0.005
    little_forgiven: int = MS
    # Relative change of a cell repeated at the end of the run.
    drift_suspect: float = 0.03
    # Relative change of decode steps between the halves of a cell; steps that must be comparable in each half, and of
    # each kind in each half.
    slowdown_suspect: float = 0.05
    slowdown_steps: int = 40
    slowdown_alike: int = 5
    # Seconds below which a step says more of the harness than of the engine.
    slowdown_shortest: float = 0.001
    # Tokens of context within which decode steps are alike.
    slowdown_context: int = 32
    # Bytes by which the machine's use of swap space may grow: other processes swap a little.
    swap_suspect: int = 1_000_000
    # Share of a paced engine's steps outside what its cost profile was measured at.
    clamped_suspect: float = 0.01
    # Relative difference between what a paced engine's steps took and what its cost profile says.
    paced_suspect: float = 0.05
    # Bytes by which a client, the router, or a worker without a model may grow; with the collector off, garbage would
    # show. The router also holds the prompts of those who wait: so many bytes a token.
    growth_suspect: int = 100_000_000
    growth_token: int = 40
    # --- load ---
    # Fewer requests have no trend.
    load_fewest: int = 20
    # Arrivals must go on for this many times the typical service: until the first leave, any server only fills up.
    load_services: int = 2
    # Share of all requests by which the number in the system must rise to have grown, that may wait at the end
    # whatever the seats, and that may be turned away: a queue's ordinary ups and downs are smaller.
    load_share: float = 0.1


THRESHOLDS = Thresholds()
