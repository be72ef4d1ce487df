"""Endpoints: which are taken, who holds one, and what is said of those that cannot be used."""

import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.messages import Ping
from protocol.wire import (
    LONGEST_IPC_PATH,
    WireError,
    check_endpoint,
    dealer,
    ipc_folder,
    mailbox,
)
from tests.protocol.lines import RUN, Context, OpenDealer, OpenMailbox, introduce, taken


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
