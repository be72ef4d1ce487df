"""How a process gets to run on time: asked of the real system, in processes whose priority dies with them."""

import os
import subprocess
import sys

import pytest

from protocol.priority import LONGEST_WAKE_UP

pytestmark = pytest.mark.alone

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux offers it")


def may_run_first() -> bool:
    """Asked of a process that ends at once: this one is to stay as it is."""
    ask = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"
    return sys.platform == "linux" and not subprocess.run([sys.executable, "-c", ask], capture_output=True).returncode


real_time = pytest.mark.skipif(not may_run_first(), reason="needs Linux, and root or a limit on rtprio")


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


@real_time
def test_carriers_run_first_on_the_core_of_the_router_and_nobody_else_does() -> None:
    seen = "look = lambda: (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, *os.sched_getaffinity(0));"
    code = seen + "import threading; found = []; thread = threading.Thread(target=lambda: found.extend(look()));"
    code += "before = look();\nwith on_the_wire(2): thread.start(); thread.join()\nprint(*found, before == look())"
    assert alone(code) == [str(os.SCHED_FIFO), "2", str(max(os.sched_getaffinity(0))), "True"]


@real_time
def test_a_client_spins_after_the_router_and_sends_before_it() -> None:
    rank = "rank = lambda: os.sched_getparam(0).sched_priority; how = run_first(CLIENT_RANK); ranks = [rank()];"
    code = rank + "\nwith spinning(how): ranks.append(rank())\nprint(*ranks, rank(), ROUTER_RANK)"
    sends, spins, sends_again, router = map(int, alone(code))
    assert sends == sends_again > router > spins


@linux
def test_who_may_not_run_first_spins_and_carries_as_it_is() -> None:
    denied = "\ndef denied(*_): raise PermissionError\nos.sched_setscheduler = denied\nlook = os.sched_getaffinity;"
    code = denied + "before = look(0)\nwith spinning('default'), on_the_wire(1): print(look(0) == before)"
    assert alone(code) == ["True"]


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
