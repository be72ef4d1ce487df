"""Real sockets: nothing is dropped in silence, nobody suffers for another peer, and nothing blocks for ever."""

import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from protocol.clock import SECOND, ceil_ms, now
from protocol.messages import MAX_BYTES, Beat, Bye, Hello, Message, Ping, Pong, Refused, decode, encode
from protocol.wire import (
    HIGH_WATER,
    LONGEST_IPC_PATH,
    Dealer,
    Mailbox,
    PeerGone,
    PeerSlow,
    WireError,
    check_endpoint,
    dealer,
    fresh_instance,
    ipc_folder,
    mailbox,
    poller,
)

Context = zmq.Context[zmq.Socket[bytes]]
OpenDealer = Callable[..., Dealer]
OpenMailbox = Callable[..., Mailbox]

RUN = "run-1"
DEADLINE = 10 * SECOND
HELLO = Hello("client", "c-0")
# What both ends can hold of messages of a kilobyte, and the kernel between them: tens of megabytes for tcp.
MOST_IN_FLIGHT = 10 * HIGH_WATER


def arrival(end: Dealer | Mailbox) -> bool:
    """Whether something arrives before the deadline."""
    return end.wait(ceil_ms(DEADLINE))


def heard(line: Dealer) -> Message:
    """The next good message."""
    deadline = now() + DEADLINE
    while (left := deadline - now()) > 0:
        line.wait(ceil_ms(left))
        if (message := line.receive()) is not None:
            return message
    raise AssertionError("no message came")


def taken(box: Mailbox) -> tuple[bytes, Message]:
    """The next message, and who sent it."""
    assert arrival(box), "no message came"
    got = box.receive()
    assert got is not None
    return got[0], decode(got[1], RUN)[1]


def connect(line: Dealer) -> None:
    assert line.socket.poll(ceil_ms(DEADLINE), zmq.POLLOUT), "no router came"


def introduce(box: Mailbox, line: Dealer) -> bytes:
    """The identity by which the router knows this line."""
    connect(line)
    line.send(HELLO)
    peer, message = taken(box)
    assert message == HELLO
    return peer


def send_until_gone(box: Mailbox, peer: bytes) -> None:
    """Raises PeerGone once the peer's leaving is known here."""
    deadline = now() + DEADLINE
    while now() < deadline:
        box.send(peer, Beat("router"))
        box.wait(5)


def fill(send: Callable[[Message], None]) -> int:
    """How many messages of a kilobyte were taken before PeerSlow."""
    for sent in range(MOST_IN_FLIGHT):
        try:
            send(Refused("x" * 1_000, sent))
        except PeerSlow:
            return sent
    raise AssertionError(f"{MOST_IN_FLIGHT} messages that nobody read were taken")


# --- to and fro ---


def test_messages_go_both_ways_in_order(endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer) -> None:
    box, line = open_mailbox(endpoint), open_dealer(endpoint)
    peer = introduce(box, line)
    assert line.connected
    for n in range(100):
        line.send(Ping(n))
        box.send(peer, Pong(n, 0))
    assert [taken(box) for _ in range(100)] == [(peer, Ping(n)) for n in range(100)]
    assert [heard(line) for _ in range(100)] == [Pong(n, 0) for n in range(100)]
    assert box.receive() is None
    assert line.receive() is None


def test_encoded_messages_are_like_others(
    ipc_endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, line = open_mailbox(ipc_endpoint), open_dealer(ipc_endpoint)
    peer = introduce(box, line)
    line.send_encoded(encode(Ping(5), RUN))
    assert taken(box) == (peer, Ping(5))


def test_a_poller_sees_every_end(ipc_endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer) -> None:
    box, line = open_mailbox(ipc_endpoint), open_dealer(ipc_endpoint)
    ready = poller(box, line)
    peer = introduce(box, line)
    line.send(Ping(1))
    assert dict(ready.poll(ceil_ms(DEADLINE))) == {box.socket: zmq.POLLIN}
    assert taken(box) == (peer, Ping(1))
    box.send(peer, Pong(1, 2))
    assert dict(ready.poll(ceil_ms(DEADLINE))) == {line.socket: zmq.POLLIN}


def test_no_two_instances_have_one_name() -> None:
    assert len({fresh_instance() for _ in range(1_000)}) == 1_000


# --- peers that leave, and peers that do not read ---


def test_nobody_by_that_name(endpoint: str, open_mailbox: OpenMailbox) -> None:
    with pytest.raises(PeerGone):
        open_mailbox(endpoint).send(b"nobody", Beat("router"))


def test_a_vanished_peer_is_gone_and_others_are_not(
    endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, leaving, staying = open_mailbox(endpoint), open_dealer(endpoint), open_dealer(endpoint)
    gone, here = introduce(box, leaving), introduce(box, staying)
    leaving.close()
    with pytest.raises(PeerGone):
        send_until_gone(box, gone)
    box.send(here, Ping(1))
    assert heard(staying) == Ping(1)


def test_a_slow_peer_is_told_from_a_fast_one(endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer) -> None:
    box, slow, fast = open_mailbox(endpoint), open_dealer(endpoint), open_dealer(endpoint)
    slow_peer, fast_peer = introduce(box, slow), introduce(box, fast)
    count = fill(lambda message: box.send(slow_peer, message))
    assert count >= HIGH_WATER
    box.send(fast_peer, Ping(1))
    assert heard(fast) == Ping(1)
    received = [heard(slow) for _ in range(count)]
    assert [message.id for message in received if isinstance(message, Refused)] == [*range(count)]


def test_a_router_that_does_not_read_slows_its_peers(
    endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, line = open_mailbox(endpoint), open_dealer(endpoint)
    peer = introduce(box, line)
    count = fill(line.send)
    assert count >= HIGH_WATER - 1  # its hello may still hold a place
    received = [taken(box) for _ in range(count)]
    assert received == [(peer, Refused("x" * 1_000, n)) for n in range(count)]


# --- routers that are not there ---


def test_what_is_said_to_no_router_reaches_no_later_one(
    endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    line = open_dealer(endpoint)
    assert not line.connected
    with pytest.raises(PeerSlow):
        line.send(Ping(1))
    box = open_mailbox(endpoint)
    connect(line)
    line.send(Ping(2))
    assert taken(box)[1] == Ping(2)
    assert box.receive() is None


def test_what_is_said_between_two_routers_is_not_kept(
    endpoint: str, context: Context, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    first, line = mailbox(context, endpoint, RUN), open_dealer(endpoint)
    introduce(first, line)
    first.close()
    deadline = now() + DEADLINE
    while line.connected and now() < deadline:
        line.wait(5)
    with pytest.raises(PeerSlow):
        line.send(Ping(1))
    second = open_mailbox(endpoint)
    connect(line)
    line.send(Ping(2))
    assert taken(second)[1] == Ping(2)


# --- endpoints ---


def test_a_second_router_is_refused_and_the_first_goes_on(
    endpoint: str, context: Context, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, line = open_mailbox(endpoint), open_dealer(endpoint)
    peer = introduce(box, line)
    with pytest.raises(WireError, match="another router") as error:
        mailbox(context, endpoint, RUN)
    assert str(error.value).startswith(endpoint)
    assert "\n" not in str(error.value)
    line.send(Ping(1))
    assert taken(box) == (peer, Ping(1))
    newcomer = open_dealer(endpoint)
    introduce(box, newcomer)


def test_a_closed_routers_endpoint_is_free(
    endpoint: str, make_context: Callable[[], Context], open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    own = make_context()
    mailbox(own, endpoint, RUN).close()
    own.term()
    introduce(open_mailbox(endpoint), open_dealer(endpoint))


def test_an_endpoint_that_cannot_be_bound_leaves_nothing_behind(
    ipc_endpoint: str, context: Context, open_mailbox: OpenMailbox
) -> None:
    path = Path(ipc_endpoint.removeprefix("ipc://"))
    path.mkdir()
    with pytest.raises(WireError, match="cannot be bound"):
        mailbox(context, ipc_endpoint, RUN)
    path.rmdir()
    open_mailbox(ipc_endpoint)


def test_a_folder_that_is_not_there_is_named(context: Context) -> None:
    with pytest.raises(WireError, match=r"^ipc:///no/such/folder/r: No such file or directory; name a folder"):
        mailbox(context, "ipc:///no/such/folder/r", RUN)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short, fresh folder for ipc endpoints."""
    made = ipc_folder()
    yield made
    shutil.rmtree(made)


def path_of(folder: Path, size: int, letter: str = "x") -> str:
    """An ipc endpoint in the folder whose path has `size` bytes."""
    left = size - len(f"{folder}/")
    letters = letter * (left // len(letter.encode()))
    return f"ipc://{folder}/{letters}" + "x" * (left - len(letters.encode()))


@pytest.mark.parametrize("letter", ["x", "é"])
def test_the_longest_ipc_path_works_and_a_longer_one_is_refused(
    folder: Path, letter: str, context: Context, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    longest, longer = (path_of(folder, size, letter) for size in (LONGEST_IPC_PATH, LONGEST_IPC_PATH + 1))
    introduce(open_mailbox(longest), open_dealer(longest))
    for make in (mailbox, dealer):
        with pytest.raises(WireError, match="an ipc path has 1 to 107 bytes"):
            make(context, longer, RUN)
    assert not Path(longer.removeprefix("ipc://") + ".lock").exists()


def test_ipc_folders_are_new_and_nobody_else_may_enter(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    other = ipc_folder()
    assert other != folder
    other.rmdir()


FAR_HOSTS = (
    "192.0.2.1", "0.0.0.0", "*", "lo", "128.0.0.1", "example.invalid", "localhost.example.invalid",
    "127.0.0.1.example", "127.0.0.256", "127.1", "127.0.0.1;127.0.0.1", "[::]", "[2001:db8::1]", "127.0.0.1:5", "::1",
    "１27.0.0.1",
)  # fmt: skip


@pytest.mark.parametrize("host", FAR_HOSTS)
def test_tcp_stays_on_loopback(host: str, context: Context) -> None:
    for make in (mailbox, dealer):
        with pytest.raises(WireError, match="stays on loopback; reach another host by an SSH tunnel") as error:
            make(context, f"tcp://{host}:5555", RUN)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "127.255.255.254", "localhost"])
def test_loopback_is_taken(host: str) -> None:
    check_endpoint(f"tcp://{host}:1")
    check_endpoint(f"tcp://{host}:65535")


BAD_PORTS = ("", "0", "65536", "99999", "123456", "-1", "x", "*", "80 ", "5555\n", "٥٥٥")
NO_ENDPOINTS = (
    "", "tcp://", "tcp://127.0.0.1", "tcp://:5555", "127.0.0.1:5555", "/a/path", "udp://127.0.0.1:5555",
    "inproc://router", "TCP://127.0.0.1:5555", "ipc:/a/path", "ipc://*", "ipc://@router",
)  # fmt: skip


@pytest.mark.parametrize("endpoint", [*(f"tcp://127.0.0.1:{port}" for port in BAD_PORTS), *NO_ENDPOINTS])
def test_what_is_no_endpoint_is_refused_with_an_example(endpoint: str, context: Context) -> None:
    for make in (mailbox, dealer):
        with pytest.raises(WireError, match="write ipc:///a/path"):
            make(context, endpoint, RUN)


def test_an_empty_ipc_path_is_refused(context: Context) -> None:
    for make in (mailbox, dealer):
        with pytest.raises(WireError, match="an ipc path has 1 to 107 bytes"):
            make(context, "ipc://", RUN)


# --- limits ---


def option(end: Dealer | Mailbox, name: int) -> int:
    return int(end.socket.getsockopt(name))


def test_every_end_has_limits(ipc_endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer) -> None:
    for end in (open_mailbox(ipc_endpoint), open_dealer(ipc_endpoint)):
        assert 0 < option(end, zmq.SNDHWM) <= HIGH_WATER
        assert 0 < option(end, zmq.RCVHWM) <= HIGH_WATER
        assert 0 <= option(end, zmq.LINGER) <= 2_000


def test_libzmq_does_not_beat(ipc_endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer) -> None:
    """With heartbeats, an end whose RCVHWM is full loses a living peer with all it sent, and aborts when one leaves
    (libzmq 4.3.5: `Assertion failed: !_io_error`). The tests of closing below abort, too, when they are on."""
    for end in (open_mailbox(ipc_endpoint), open_dealer(ipc_endpoint)):
        assert option(end, zmq.HEARTBEAT_IVL) == 0


def test_the_peer_of_an_oversized_message_is_cut_and_others_go_on(
    endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, large, small = open_mailbox(endpoint), open_dealer(endpoint), open_dealer(endpoint)
    large_peer, small_peer = introduce(box, large), introduce(box, small)
    large.send_encoded(b"x" * (MAX_BYTES + 1))
    with pytest.raises(PeerGone):
        send_until_gone(box, large_peer)
    small.send(Ping(1))
    assert taken(box) == (small_peer, Ping(1))
    box.send(small_peer, Pong(1, 2))
    assert heard(small) == Pong(1, 2)
    assert introduce(box, large) != large_peer  # it comes back, as somebody else


def test_a_message_of_the_largest_size_passes(
    endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, line = open_mailbox(endpoint), open_dealer(endpoint)
    peer = introduce(box, line)
    line.send_encoded(b"x" * MAX_BYTES)
    assert arrival(box)
    assert box.receive() == (peer, b"x" * MAX_BYTES)


def test_an_oversized_message_is_not_sent_and_the_line_stays(
    ipc_endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, line = open_mailbox(ipc_endpoint), open_dealer(ipc_endpoint)
    peer = introduce(box, line)
    huge = Bye("x" * MAX_BYTES)
    with pytest.raises(ValueError, match="over the limit"):
        line.send(huge)
    with pytest.raises(ValueError, match="over the limit"):
        box.send(peer, huge)
    line.send(Ping(1))
    assert taken(box) == (peer, Ping(1))


# --- strays and garbage ---

GARBAGE = [
    b"",
    b"\xc1",
    b"not msgpack",
    encode(Ping(1), "run-2"),
    encode(Ping(1), ""),
    encode(Ping(1), RUN)[:-1],
    b"\x94\x02\xa4ping\xa5run-1\x07",
]


def test_a_dealer_counts_strays_and_garbage_and_delivers_the_rest(
    endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, line = open_mailbox(endpoint), open_dealer(endpoint)
    peer = introduce(box, line)
    for n, data in enumerate(GARBAGE):
        box.socket.send_multipart([peer, data])
        box.send(peer, Ping(n))
    assert [heard(line) for _ in GARBAGE] == [Ping(n) for n in range(len(GARBAGE))]
    assert line.receive() is None
    assert line.bad == len(GARBAGE)


def test_a_stray_run_hears_nothing_of_ours(endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer) -> None:
    box, stray = open_mailbox(endpoint), open_dealer(endpoint, "run-2")
    connect(stray)
    stray.send(HELLO)
    assert arrival(box)
    got = box.receive()
    assert got is not None
    assert decode(got[1], "run-2") == ("run-2", HELLO)
    box.send(got[0], Ping(1))
    assert arrival(stray)
    assert stray.receive() is None
    assert stray.bad == 1


@pytest.mark.parametrize("frames", [[b"a", b"b"], [b"", encode(Ping(1), RUN)], [b"a", b"b", b"c"]])
def test_a_mailbox_takes_frames_of_the_wrong_number_for_nothing(
    frames: list[bytes], ipc_endpoint: str, open_mailbox: OpenMailbox, open_dealer: OpenDealer
) -> None:
    box, line = open_mailbox(ipc_endpoint), open_dealer(ipc_endpoint)
    peer = introduce(box, line)
    line.socket.send_multipart(frames)
    line.send(Ping(1))
    assert arrival(box)
    assert box.receive() == (peer, b"")
    assert taken(box) == (peer, Ping(1))


# --- the end ---


def check_ends_in_time(context: Context) -> None:
    ended = threading.Thread(target=context.term, daemon=True)
    ended.start()
    ended.join(DEADLINE / SECOND)
    assert not ended.is_alive(), "closing blocks on what nobody reads"


def test_a_dealer_with_unsent_messages_closes_in_time(
    endpoint: str, make_context: Callable[[], Context], open_mailbox: OpenMailbox
) -> None:
    own = make_context()
    box, line = open_mailbox(endpoint), dealer(own, endpoint, RUN)
    introduce(box, line)
    fill(line.send)
    line.close()
    check_ends_in_time(own)


def test_a_mailbox_with_unsent_messages_closes_in_time(
    endpoint: str, make_context: Callable[[], Context], open_dealer: OpenDealer
) -> None:
    own = make_context()
    box, line = mailbox(own, endpoint, RUN), open_dealer(endpoint)
    peer = introduce(box, line)
    fill(lambda message: box.send(peer, message))
    box.close()
    check_ends_in_time(own)


def test_the_last_words_arrive_although_the_speaker_is_gone(
    endpoint: str, make_context: Callable[[], Context], open_mailbox: OpenMailbox
) -> None:
    own = make_context()
    box, line = open_mailbox(endpoint), dealer(own, endpoint, RUN)
    peer = introduce(box, line)
    for _ in range(20):
        line.send_encoded(b"x" * 2**20)  # so much that the last word is still here at the close
    line.send(Bye("done"))
    line.close()
    check_ends_in_time(own)
    for _ in range(20):
        assert arrival(box)
        assert box.receive() == (peer, b"x" * 2**20)
    assert taken(box) == (peer, Bye("done"))


# --- nobody else makes sockets ---

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "router", "worker", "clients", "experiments")
SOCKET_KINDS = "ROUTER|DEALER|REQ|REP|PUB|SUB|XPUB|XSUB|PUSH|PULL|PAIR|STREAM|SERVER|CLIENT|RADIO|DISH|GATHER|SCATTER"
MAKES_SOCKETS = re.compile(
    rf"\.socket\(|zmq\.({SOCKET_KINDS})\b|SocketType|zmq\.Socket\(|zmq\.(asyncio|devices|green)|from zmq|socketpair"
)


def offenders(pattern: re.Pattern[str]) -> set[str]:
    """The source files of the packages that contain the pattern."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > len(PACKAGES)
    return {str(path.relative_to(ROOT)) for path in sources if pattern.search(path.read_text())}


def test_only_the_wire_makes_sockets() -> None:
    assert offenders(MAKES_SOCKETS) == {"protocol/wire.py"}


def test_contexts_are_made_by_running_loops_and_shared_by_nobody() -> None:
    assert offenders(re.compile(r"^\w.*zmq\.Context\(\)|Context\.instance\(|Context\.shadow\(", re.MULTILINE)) == set()
