"""Starts the roles as processes of their own, follows them, and leaves none behind."""

import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from protocol.clock import SECOND, now
from protocol.process import StopRequest
from protocol.wire import fresh_instance, ipc_folder

LOOK_EVERY_S = 0.1
FAREWELL_S = 1.2
SILENCE_S = 4.0
LAST_LINES = 5

Follow = Callable[[Mapping[str, Any]], None]


class CellFailed(Exception):
    """The cell could not be finished: what was measured is kept, and the run ends. One line that says why."""


class Interrupted(CellFailed):
    """The user asked to stop."""


@dataclass(slots=True, eq=False)
class Role:
    """One child process. Its standard error goes to a file, and closing its standard input ends it."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def status(self) -> int | None:
        return self.process.poll()

    def last_words(self) -> str:
        """The end of what it wrote to standard error, on one line."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-LAST_LINES:])


@dataclass(slots=True)
class Crew:
    """The processes of one run: a worker for all of it or a part, a router and clients for each cell."""

    folder: Path
    stop: StopRequest
    run: str = field(default_factory=fresh_instance)
    sockets: Path = field(default_factory=ipc_folder)
    roles: list[Role] = field(default_factory=list)
    worker: Role | None = None
    workers: int = 0

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception: object) -> None:
        self.dismiss([*self.roles])
        shutil.rmtree(self.sockets, ignore_errors=True)

    # --- start ---

    def start_worker(self, options: Sequence[str]) -> None:
        """A worker that meets every cell's router from now on at the same endpoint; an earlier one is ended."""
        if self.worker is not None:
            self.dismiss([self.worker])
        self.workers += 1
        name = "worker" if self.workers == 1 else f"worker-{self.workers}"
        self.worker = self._start(name, ["worker", "--router", self._endpoint("back"), *options])

    def run_cell(
        self, cell: str, clients: int, router_options: Sequence[str], client_options: Sequence[str], follow: Follow
    ) -> None:
        """Start a router and clients, follow them to the end of the cell. Raises CellFailed or Interrupted, with every
        process of the cell ended."""
        ends = ["--front", self._endpoint("front"), "--back", self._endpoint("back")]
        count = ["--clients", str(clients), "--cell", cell]
        router = self._start(f"{cell}.router", ["router", *ends, *count, *router_options], stdout=subprocess.PIPE)
        crowd: list[Role] = []
        try:
            for index in range(clients):
                place = ["--router", self._endpoint("front"), "--index", str(index), "--of", str(clients)]
                name = f"{cell}.client-{index}"
                crowd.append(self._start(name, ["clients", *place, "--cell", cell, *client_options]))
            watch = Watch(self, router, crowd, follow)
            watch.until("ended")
            watch.until_gone([*crowd, router])
        finally:
            self.dismiss([*crowd, router])

    def _start(self, name: str, arguments: Sequence[str], stdout: int = subprocess.DEVNULL) -> Role:
        """In a process group of its own: Ctrl-C reaches the supervisor alone, which ends the others in order. Not in
        a session of its own: Linux shares processors between sessions equally, whatever their processes' nice values,
        and the worker's is what keeps it from delaying a client."""
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "experiments", *arguments]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, "--run", self.run, "--out", str(self.folder), "--supervised"],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=errors,
                process_group=0,
            )
        role = Role(name, process, log)
        self.roles.append(role)
        return role

    def _endpoint(self, side: str) -> str:
        return f"ipc://{self.sockets}/{side}"

    # --- end ---

    def dismiss(self, roles: Sequence[Role]) -> None:
        """End these, clients first: ask, wait a moment, then kill. Returns when none is left."""
        living = [role for role in roles if role.status is None]
        for group in _in_order(living):
            for role in group:
                role.process.send_signal(signal.SIGTERM)
            _wait(group, FAREWELL_S)
        for role in living:
            if role.status is None:
                role.process.kill()
            role.process.wait()
        for role in roles:
            self._forget(role)

    def _forget(self, role: Role) -> None:
        for pipe in (role.process.stdin, role.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        if role.log.exists() and not role.log.stat().st_size:
            role.log.unlink()
        if role in self.roles:
            self.roles.remove(role)


class Watch:
    """Follows one cell: the router's events, and whether everybody lives."""

    def __init__(self, crew: Crew, router: Role, crowd: Sequence[Role], follow: Follow) -> None:
        """All of them have been started."""
        self.crew, self.router, self.crowd, self.follow = crew, router, crowd, follow
        self._selector = selectors.DefaultSelector()
        assert router.process.stdout is not None
        self._selector.register(router.process.stdout, selectors.EVENT_READ)
        self._rest = b""
        self._open = True

    def until(self, event: str) -> None:
        """Until the router says `event`. Raises CellFailed when it cannot come any more."""
        while not any(said["event"] == event for said in self._events()):
            self._check()

    def until_gone(self, roles: Sequence[Role]) -> None:
        """Until these have ended by themselves, all with success. Raises CellFailed."""
        while any(role.status is None for role in roles):
            self._check()
            self._events()
        self._check()

    def _events(self) -> list[dict[str, Any]]:
        """What the router said within a tenth of a second; what it tells of losses is acted on."""
        if not self._open:
            time.sleep(LOOK_EVERY_S)
            return []
        events = []
        for key, _ in self._selector.select(LOOK_EVERY_S):
            data = key.fileobj.read1()  # type: ignore[union-attr]
            if not data:
                self._open = False
                self._selector.close()
            *lines, self._rest = (self._rest + data).split(b"\n")
            events += [orjson.loads(line) for line in lines]
        for event in events:
            self.follow(event)
            if event["event"] in ("worker_lost", "client_lost"):
                self._lost(event)
        return events

    def _lost(self, event: Mapping[str, Any]) -> None:
        """End the cell; every client hears from the router what became of its requests."""
        self._end_as_failed()
        who = "the worker" if event["event"] == "worker_lost" else f"client {event['index']}"
        raise CellFailed(f"{who} was lost: {event['detail']}")

    def _check(self) -> None:
        if self.crew.stop.requested:
            raise Interrupted("interrupted")
        worker = self.crew.worker
        for role in [*self.crowd, self.router, *([worker] if worker else [])]:
            if role.status is not None and (role.status != 0 or role is worker):
                self._died(role)

    def _died(self, role: Role) -> None:
        status = role.status or 0
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        words = role.last_words()
        if role is self.crew.worker:
            self._await_loss()
        self._end_as_failed()
        raise CellFailed(f"{role.name} {how}{': ' + words if words else ''}")

    def _await_loss(self) -> None:
        """The router finds out by itself that the worker is gone, and says so in the ends of its requests."""
        deadline = now() + round(SILENCE_S * SECOND)
        while now() < deadline and self._open and not self.crew.stop.requested:
            try:
                self._events()
            except CellFailed:
                return

    def _end_as_failed(self) -> None:
        """A stopping router fails what it has and tells the clients, which leave by themselves; where there is no
        router they find out by its silence. An impatient user ends the wait."""
        if self.router.status is None:
            self.router.process.send_signal(signal.SIGTERM)
        deadline = now() + round(SILENCE_S * SECOND)
        while any(r.status is None for r in self.crowd) and now() < deadline and not self.crew.stop.requested:
            _wait(self.crowd, LOOK_EVERY_S)


def _in_order(roles: Sequence[Role]) -> list[list[Role]]:
    """Clients, then the router, then the worker: each tells the next that it leaves."""
    crowd = [role for role in roles if ".client-" in role.name]
    routers = [role for role in roles if role.name.endswith(".router")]
    rest = [role for role in roles if role not in crowd and role not in routers]
    return [group for group in (crowd, routers, rest) if group]


def _wait(roles: Sequence[Role], at_most_s: float) -> None:
    deadline = now() + round(at_most_s * SECOND)
    for role in roles:
        try:
            role.process.wait(max(0.0, (deadline - now()) / SECOND))
        except subprocess.TimeoutExpired:
            return
