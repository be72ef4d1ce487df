"""The only maker of sockets: endpoints, options, and sending and receiving messages of one run."""

import fcntl
import os
import re
import secrets
import select
import sys
import tempfile
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import IO

import zmq

from protocol.clock import SECOND
from protocol.fields import BadMessage
from protocol.messages import Message, decode, encode
from protocol.priority import on_the_wire

MAX_BYTES = 64 * 2**20
HIGH_WATER = 10_000
LINGER_MS = 1_000
RECONNECT_MS = 100
RECONNECT_MAX_MS = 400
LONGEST_IPC_PATH = 103 if sys.platform == "darwin" else 107


class WireError(Exception):
    """An endpoint that cannot be used, in one line that says what to do."""


class PeerGone(Exception):
    """The peer is no longer connected: what it waits for can be cancelled."""


class PeerSlow(Exception):
    """The peer does not take its messages: its share of the socket is full."""


def fresh_instance() -> str:
    """A name no other process start will ever have."""
    return secrets.token_hex(8)


def ipc_folder() -> Path:
    """A fresh folder for ipc endpoints that nobody else may enter, its path short enough for them."""
    usual = tempfile.gettempdir()
    short = len(os.fsencode(usual)) < LONGEST_IPC_PATH - 40
    return Path(tempfile.mkdtemp(prefix="headway-", dir=usual if short else "/tmp"))


def check_endpoint(endpoint: str) -> None:
    """Raises WireError unless this is an ipc path short enough for the system, or tcp on this machine's loopback."""
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        if not path or len(os.fsencode(path)) > LONGEST_IPC_PATH:
            raise WireError(f"{endpoint}: an ipc path has 1 to {LONGEST_IPC_PATH} bytes; choose a shorter one")
        if path[0] in "@*":  # to libzmq a name that no folder protects, or one that it invents
            raise WireError(f"{endpoint}: write ipc:///a/path")
        return
    address = re.fullmatch(r"tcp://(.+):([0-9]{1,5})", endpoint)
    if address is None or not 0 < int(address[2]) < 65_536:
        raise WireError(f"{endpoint}: write ipc:///a/path or tcp://127.0.0.1:PORT")
    if not _on_loopback(address[1]):
        raise WireError(f"{endpoint}: tcp is unencrypted and stays on loopback; reach another host by an SSH tunnel")


def _on_loopback(host: str) -> bool:
    try:
        return host == "localhost" or IPv4Address(host).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class Dealer:
    """A client's or worker's end, used by the thread that made it; `bad` counts the messages it refused."""

    socket: "zmq.Socket[bytes]"
    run: str
    bad: int = 0

    def encoded(self, message: Message) -> bytes:
        """A message for `send_encoded`. Raises ValueError when it is larger than a router takes: sent all the same, it
        would cost the line."""
        data = encode(message, self.run)
        if len(data) > MAX_BYTES:
            raise ValueError(f"a {type(message).__name__} of {len(data)} bytes is over the limit of {MAX_BYTES}")
        return data

    def send(self, message: Message) -> None:
        """Raises PeerSlow when no router is there or it takes nothing more, ValueError as `encoded` does."""
        self.send_encoded(self.encoded(message))

    def send_encoded(self, data: bytes) -> None:
        """Like `send`, for a message encoded beforehand."""
        try:
            self.socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            raise PeerSlow("the router takes no messages") from None

    def receive(self) -> Message | None:
        """The next good message, None when there is none now; bad ones and strays are counted and dropped."""
        while (data := self.receive_encoded()) is not None:
            if (message := self.understood(data)) is not None:
                return message
        return None

    def receive_encoded(self) -> bytes | None:
        """Like `receive`, for a message to be understood later: this takes microseconds, whatever it holds."""
        try:
            return self.socket.recv(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def understood(self, data: bytes) -> Message | None:
        """The message in `data`; None for a bad one, which is counted."""
        try:
            return decode(data, self.run)
        except BadMessage:
            self.bad += 1
            return None

    def wait(self, timeout_ms: int) -> bool:
        """Whether something can be received within `timeout_ms`."""
        return bool(self.socket.poll(timeout_ms, zmq.POLLIN))

    def wait_precisely(self, timeout_ns: int) -> None:
        """Until a message may have come or `timeout_ns` is over; unlike `wait`, not in whole milliseconds.

        To be called when `receive` has just found nothing: the descriptor under the socket speaks once for each
        change, and only to those who have looked since.
        """
        if not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            select.select([self.socket.fileno()], [], [], max(0, timeout_ns) / SECOND)

    @property
    def connected(self) -> bool:
        """Whether a router is at the other end and takes messages."""
        return bool(self.socket.poll(0, zmq.POLLOUT))

    def close(self) -> None:
        """Let what was sent leave, for a second at most."""
        self.socket.close(linger=LINGER_MS)


@dataclass(slots=True)
class Mailbox:
    """The router's end: talks to many peers by their identity. Used by the thread that made it."""

    socket: "zmq.Socket[bytes]"
    run: str
    lock: IO[str] | None = None

    def send(self, peer: bytes, message: Message) -> None:
        """Raises PeerGone or PeerSlow, and the message is not sent."""
        try:
            data = encode(message, self.run)
            self.socket.send(peer, zmq.SNDMORE | zmq.DONTWAIT)
            self.socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            raise PeerSlow("does not take its messages") from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise PeerGone("is no longer connected") from None

    def receive(self) -> tuple[bytes, bytes] | None:
        """The next (peer, undecoded message), None when there is none now."""
        try:
            frames = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return frames[0], frames[1] if len(frames) == 2 else b""

    def wait(self, timeout_ms: int) -> bool:
        """Whether something can be received within `timeout_ms`."""
        return bool(self.socket.poll(timeout_ms, zmq.POLLIN))

    def close(self) -> None:
        """Let what was sent leave, for a second at most, and give the endpoint back."""
        self.socket.close(linger=LINGER_MS)
        if self.lock is not None:
            self.lock.close()


def carriers(rank: int) -> "zmq.Context[zmq.Socket[bytes]]":
    """A context whose threads carry messages at this rank, on the router's core (see `on_the_wire`)."""
    with on_the_wire(rank):
        context = zmq.Context()
        context.socket(zmq.PAIR).close()  # its threads start with its first socket
    return context


def dealer(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, run: str) -> Dealer:
    """Connect to a router. A message is sent only while one is there, never kept for a later one."""
    check_endpoint(endpoint)
    socket = context.socket(zmq.DEALER)
    _limit(socket)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.connect(endpoint)
    return Dealer(socket, run)


def mailbox(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, run: str) -> Mailbox:
    """Bind an endpoint. Raises WireError when it cannot be had, also when another router holds it."""
    check_endpoint(endpoint)
    lock = _lock(endpoint)
    socket = context.socket(zmq.ROUTER)
    _limit(socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        if lock is not None:
            lock.close()
        raise WireError(f"{endpoint}: cannot be bound ({error.strerror}); is another router running?") from None
    return Mailbox(socket, run, lock)


def poller(*ends: Dealer | Mailbox) -> zmq.Poller:
    """A poller for the reading side of these."""
    made = zmq.Poller()
    for end in ends:
        made.register(end.socket, zmq.POLLIN)
    return made


def _limit(socket: "zmq.Socket[bytes]") -> None:
    # No HEARTBEAT_IVL: with a full RCVHWM it cuts off living peers and aborts the process (libzmq 4.3.5, issue 3937).
    # The roles' own Beat messages tell who is dead.
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.LINGER, LINGER_MS)


def _lock(endpoint: str) -> IO[str] | None:
    """Hold the ipc path: a second bind would succeed and take the first one's peers away."""
    if not endpoint.startswith("ipc://"):
        return None
    path = Path(endpoint.removeprefix("ipc://") + ".lock")
    try:
        lock = path.open("w")
    except OSError as error:
        raise WireError(f"{endpoint}: {error.strerror}; name a folder you can write to") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise WireError(f"{endpoint}: another router is running there; stop it or choose another path") from None
    return lock
