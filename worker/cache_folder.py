"""Where a machine keeps what Headway makes once: a compiled shim, the embedded model."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory


def cache_folder() -> Path:
    """`HEADWAY_CACHE` when it is set, else `headway` in the user's cache folder; it need not exist yet."""
    if chosen := os.environ.get("HEADWAY_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headway"


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, a file or a folder, made by `make(scratch path)` if it is not there.

    It appears whole or not at all, and of two processes that make it at once the first to finish wins.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        made = Path(scratch) / target.name
        make(made)
        try:
            made.rename(target)
        except OSError:  # a folder cannot be renamed onto the one that another process has just put there
            if not target.exists():
                raise
    return target
