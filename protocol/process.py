"""What every role's process does about signals, its parent, and its own memory."""

import contextlib
import os
import platform
import signal
import threading
import time
from pathlib import Path
from types import FrameType

import psutil

LAST_GRACE_S = 4.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StopRequest:
    """Set by SIGINT or SIGTERM; loops look at it at every turn."""

    def __init__(self) -> None:
        """Take over both signals of this process; call from the main thread."""
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._set)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def end_with_parent() -> None:
    """Stop this process when standard input closes: the supervisor that held it open is gone. It is asked to, and
    ended a little later should it sit in a long call."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held by a daemon thread, aborts the interpreter at its end.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LAST_GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def host() -> str:
    """Names the machine whose clock this process reads: one start of a Linux kernel, elsewhere the host's name."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def resident_bytes() -> int:
    """This process's memory in use."""
    return int(psutil.Process().memory_info().rss)
