"""How a process gets to run on time: asked of the real system, in processes whose priority dies with them."""

import os
import subprocess
import sys

import pytest

from protocol.priority import LONGEST_WAKE_UP

pytestmark = pytest.mark.alone

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux offers it")


def alone(code: str) -> list[str]:
    """The words that this code prints, in a process of its own."""
    code = f"from protocol.priority import *; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split()


def test_this_machine_schedules_somehow() -> None:
    assert alone("from protocol.clock import MAX_SPIN; print(run_first(1) in MAX_SPIN)") == ["True"]


@linux
def test_tighten_timers_sets_the_slack_to_a_nanosecond() -> None:
    assert alone("get = 30; tighten_timers(); print(ctypes.CDLL(None).prctl(get, 0, 0, 0, 0))") == ["1"]


@linux
def test_threads_started_afterwards_stay_on_the_same_core() -> None:
    last = max(os.sched_getaffinity(0))
    code = "import threading; stay_on_one_core(); look = lambda: print(*os.sched_getaffinity(0));"
    assert alone(code + "thread = threading.Thread(target=look); thread.start(); thread.join()") == [str(last)]


@pytest.mark.skipif(not os.access(LONGEST_WAKE_UP, os.R_OK | os.W_OK), reason="needs Linux, and root")
def test_cores_are_awake_while_asked_for_and_no_longer() -> None:
    read = "read = lambda: int.from_bytes(LONGEST_WAKE_UP.open('rb').read(4), 'little');"
    held = "\nwith cores_awake() as awake: print(awake, read())"
    assert alone(read + held) == ["True", "0"]
    assert alone(read + "print(read() > 0)") == ["True"]


@linux
def test_what_is_in_memory_is_kept_there_where_that_is_granted() -> None:
    kept = "granted = stay_in_memory(); locked = [l.split()[1] for l in open('/proc/self/status') if 'VmLck' in l];"
    granted, locked = alone(kept + "print(granted, *locked)")
    assert (granted == "True") == (int(locked) > 1_000)


def test_where_cores_cannot_be_kept_awake_it_says_so() -> None:
    missing = "import protocol.priority as p; p.LONGEST_WAKE_UP = Path('/nowhere');"
    assert alone(missing + "\nwith p.cores_awake() as awake: print(awake)") == ["False"]
