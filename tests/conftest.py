"""What every folder of tests shares: contexts that must end, endpoints on this machine, hypothesis without a clock."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
import zmq
from hypothesis import settings

from protocol.wire import Dealer, Mailbox, dealer, ipc_folder, mailbox

Context = zmq.Context[zmq.Socket[bytes]]

RUN = "run-1"
TERMINATION_S = 10

# A busy machine is not a failure of the code under test.
settings.register_profile("headway", deadline=None)
settings.load_profile("headway")


@pytest.fixture
def make_context() -> Iterator[Callable[[], Context]]:
    """Makes contexts; a socket or file that a test leaves open in one is a failure of that test."""
    files = psutil.Process().num_fds()
    made: list[Context] = []

    def make() -> Context:
        made.append(zmq.Context())
        return made[-1]

    yield make
    leaking = [context for context in made if not _terminates(context)]
    for context in leaking:
        context.destroy(linger=0)
    assert not leaking, "a socket was left open"
    assert psutil.Process().num_fds() <= files, "a file, lock or socket was left open"


def _terminates(context: Context) -> bool:
    """Whether the context ends; it never does while one of its sockets is open."""
    thread = threading.Thread(target=context.term, daemon=True)
    thread.start()
    thread.join(TERMINATION_S)
    return not thread.is_alive()


@pytest.fixture
def context(make_context: Callable[[], Context]) -> Context:
    """A context that must end with its test."""
    return make_context()


@pytest.fixture
def open_dealer(context: Context) -> Iterator[Callable[[str], Dealer]]:
    """Connects dealers of the run RUN; they are closed, by their own `close`, at the end of the test."""
    made: list[Dealer] = []

    def open_one(endpoint: str, run: str = RUN) -> Dealer:
        made.append(dealer(context, endpoint, run))
        return made[-1]

    yield open_one
    for end in made:
        end.close()


@pytest.fixture
def open_mailbox(context: Context) -> Iterator[Callable[[str], Mailbox]]:
    """Binds mailboxes of the run RUN; they are closed, by their own `close`, at the end of the test."""
    made: list[Mailbox] = []

    def open_one(endpoint: str, run: str = RUN) -> Mailbox:
        made.append(mailbox(context, endpoint, run))
        return made[-1]

    yield open_one
    for end in made:
        end.close()


@pytest.fixture
def ipc_endpoint() -> Iterator[str]:
    """An ipc endpoint that nobody else knows; pytest's own temporary paths are too long for one."""
    folder = ipc_folder()
    yield f"ipc://{folder}/router"
    shutil.rmtree(folder)


@pytest.fixture
def tcp_endpoint() -> str:
    """A tcp endpoint on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(params=["ipc", "tcp"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """An unused endpoint of each kind."""
    return str(request.getfixturevalue(f"{request.param}_endpoint"))
