"""Signals and parents: a role stops when it is told to, and when the process that held its standard input is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.process import resident_bytes

pytestmark = pytest.mark.alone

DEADLINE_S = 20

# Says "ready", then loops like a role does; "stopped" means that the loop ended by itself.
LOOP = """
import sys, time
from protocol.process import StopRequest, end_with_parent
stop = StopRequest()
if "watch" in sys.argv:
    end_with_parent()
print("ready", flush=True)
while not stop.requested:
    time.sleep(0.01)
print("stopped", flush=True)
"""

# A parent that holds the input of a child with its own output, and waits to be killed.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "watch"], stdin=subprocess.PIPE)
child.wait()
"""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process whose first line was "ready"; it is gone afterwards."""
    command = [sys.executable, "-c", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_to_stop(number: signal.Signals) -> None:
    with running(LOOP) as process:
        process.send_signal(number)
        assert process.communicate(timeout=DEADLINE_S)[0] == "stopped\n"
        assert process.returncode == 0


def test_a_second_signal_changes_nothing() -> None:
    with running(LOOP) as process:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=DEADLINE_S)[0] == "stopped\n"
        assert process.returncode == 0


def test_the_end_of_standard_input_is_a_request_to_stop() -> None:
    with running(LOOP, "watch") as process:
        assert process.communicate(timeout=DEADLINE_S)[0] == "stopped\n"
        assert process.returncode == 0


def test_words_on_standard_input_are_not_its_end() -> None:
    with running(LOOP, "watch") as process:
        assert process.stdin is not None
        process.stdin.write("still here\n" * 1_000)
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        assert process.communicate(timeout=DEADLINE_S)[0] == "stopped\n"


def test_without_the_watch_the_end_of_standard_input_means_nothing() -> None:
    with running(LOOP) as process:
        assert process.stdin is not None
        process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


def test_a_child_ends_with_a_parent_that_was_killed() -> None:
    with running(PARENT, LOOP) as parent:
        parent.kill()
        assert parent.communicate(timeout=DEADLINE_S)[0] == "stopped\n"  # ends when the child closes it, too


def test_a_program_that_ends_first_is_not_disturbed_by_its_watch() -> None:
    code = "from protocol.process import end_with_parent; end_with_parent(); print('ready', flush=True)"
    with running(code) as process:
        assert process.wait(DEADLINE_S) == 0


def test_resident_bytes_grow_with_what_is_held() -> None:
    before = resident_bytes()
    held = os.urandom(64 * 2**20)
    assert resident_bytes() - before > len(held) // 2
