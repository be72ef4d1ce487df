"""Only protocol/wire.py makes sockets."""

import re
from pathlib import Path

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
