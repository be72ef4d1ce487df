"""The facts of a run that its records do not hold: settings, versions, machine."""

import hashlib
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
import psutil

from router.policies import policy_file
from worker.cache_folder import cache_folder

PACKAGES = ("headway", "mlx", "mlx-lm", "pyzmq", "msgpack", "numpy", "click", "orjson", "scipy-openblas32")
BLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
COMPARED = ("settings", "inputs", "versions", "machine", "worker")


def versions() -> dict[str, str | None]:
    """Installed versions of what a measurement depends on; None for what is not installed."""
    return {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """This machine, as far as it decides how fast things are."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "on_battery": on_battery(),
        "blas_variables": {name: os.environ[name] for name in BLAS_VARIABLES if name in os.environ},
    }


def on_battery() -> bool | None:
    """Whether this machine runs on battery now; None where it has none, or does not say."""
    battery = getattr(psutil, "sensors_battery", lambda: None)()
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def first_manifest(experiment: str, settings: Mapping[str, Any], run: str) -> dict[str, Any]:
    """A run's manifest as it stands before anything was measured."""
    return {
        "schema": 1,
        "experiment": experiment,
        "run": run,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "complete": False,
        "reason": "still running, or ended without a word",
        "settings": dict(settings),
        "inputs": {
            "prompts": _digest(settings.get("prompts")),
            "profile": _digest(settings.get("server", {}).get("profile")),
            "policies": _policy_digests(settings.get("policies", ())),
        },
        "versions": versions(),
        "machine": machine(),
        "clock": {"name": "time.monotonic_ns", "resolution_s": time.get_clock_info("monotonic").resolution},
        "selftest": last_selftest(),
        "worker": {},
        "calibration": None,
        "planned": [],
        "lost": {},
        "refused": {},
        "drift": None,
        "on_battery_at_end": None,
    }


def keep_selftest(manifest: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Keep what a self-test found, for the runs that come after it on this machine."""
    path = _selftest_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    properties = {each["name"]: each["value"] for each in found["properties"]}
    path.write_bytes(orjson.dumps({"begun": manifest["begun"], "passed": found["passed"], "properties": properties}))


def last_selftest() -> dict[str, Any] | None:
    """The last self-test of this machine; None if there was none."""
    try:
        kept: dict[str, Any] = orjson.loads(_selftest_file().read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return kept


def _selftest_file() -> Path:
    return cache_folder() / f"selftest-{platform.node()}.json"


def _digest(path: str | None) -> str | None:
    """SHA-256 of a file that decides what is measured; None where there is no such file."""
    if path is None or not Path(path).is_file():
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _policy_digests(specs: Sequence[str]) -> dict[str, str | None] | None:
    """SHA-256 of the files of users' own policies; None where there is none."""
    files = [file for spec in specs if (file := policy_file(spec)) is not None]
    return {file: _digest(file) for file in files} or None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two manifests in all that a measurement depends on, one line each."""
    found = []
    for part in COMPARED:
        old, new = (_flat(manifest.get(part) or {}) for manifest in (before, after))
        found += [
            f"{part} {key}: {old.get(key)!r} then, {new.get(key)!r} now"
            for key in sorted({*old, *new})
            if _plain(old.get(key)) != _plain(new.get(key))
        ]
    return found


def _flat(part: Mapping[str, Any]) -> dict[str, Any]:
    """Without levels: what serves is part of the settings."""
    flat: dict[str, Any] = {}
    for key, value in part.items():
        flat |= _flat(value) if key == "server" else {key: value}
    return flat


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
