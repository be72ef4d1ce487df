"""Who has come and who is ready: the router's roll call of clients and worker. Pure; times in nanoseconds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from protocol.clock import SECOND
from protocol.messages import ClientReady, Hello, WorkerReady

SILENCE = 3 * SECOND
HUNG_STEP_S = 120.0


@dataclass(slots=True)
class ClientPeer:
    """A client process: its stride, when it was last heard, and what it said of its prompts once READY."""

    identity: bytes
    hello: Hello
    heard: int
    ready: ClientReady | None = None
    done: bool = False


@dataclass(slots=True)
class WorkerPeer:
    """The worker process: when it was last heard, and what it said once READY."""

    identity: bytes
    instance: str
    heard: int
    ready: WorkerReady | None = None


@dataclass(slots=True)
class Assembly:
    """The peers of one cell. `expected` is how many clients must be READY before the start."""

    expected: int
    clients: dict[bytes, ClientPeer] = field(default_factory=dict)
    worker: WorkerPeer | None = None
    lost: int = 0

    def refusal(self, hello: Hello, started: bool) -> str | None:
        """Why a newcomer cannot be taken, None if it can; who repeats its hello is no newcomer."""
        if hello.role == "worker":
            taken = self.worker is not None and self.worker.instance != hello.instance
            return "this router has a worker already, and serves with one" if taken else None
        if started:
            return "the run has started without this client; start it before the run"
        if hello.of != self.expected or hello.index >= hello.of:
            return f"this router expects {self.expected} clients; this is number {hello.index} of {hello.of}"
        same = (peer.hello for peer in self.clients.values() if peer.hello.index == hello.index)
        if any(other.instance != hello.instance for other in same):
            return f"client {hello.index} of {hello.of} is here already"
        return None

    @property
    def all_clients_ready(self) -> bool:
        return len(self.clients) == self.expected and all(peer.ready is not None for peer in self.clients.values())

    @property
    def prompt_lengths(self) -> tuple[int, ...]:
        """Every distinct prompt length of the cell, in tokens, shortest first."""
        said = [peer.ready.prompt_lengths for peer in self.clients.values() if peer.ready is not None]
        return tuple(sorted({length for lengths in said for length in lengths}))

    @property
    def requests(self) -> int:
        """How many requests the clients will send, all together."""
        return sum(peer.ready.requests for peer in self.clients.values() if peer.ready is not None)

    @property
    def worker_facts(self) -> dict[str, Any]:
        return self.worker.ready.facts if self.worker is not None and self.worker.ready is not None else {}

    @property
    def finished(self) -> bool:
        """Whether every expected client has come and left; one that replaces a lost one is waited for too."""
        came = self.lost + len(self.clients)
        return came >= self.expected and all(peer.done for peer in self.clients.values())

    def silent_clients(self, now: int) -> Iterator[ClientPeer]:
        """Clients that have not been heard for three seconds and did not say goodbye."""
        return (peer for peer in list(self.clients.values()) if not peer.done and now - peer.heard > SILENCE)

    def worker_silent(self, now: int) -> bool:
        return self.worker is not None and now - self.worker.heard > SILENCE
