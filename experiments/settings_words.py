"""What was measured and on what machine, in two sentences from a run's manifest."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from protocol.sizes import bytes_text

SHOWN_VERSIONS = ("headway", "mlx", "mlx-lm", "python")
FILES, SERVED = ("prompts",), ("server", "model")


def settings_words(manifest: Mapping[str, Any]) -> str:
    """What serves and every setting that says something; of files their names alone. Empty without settings."""
    settings, name = manifest.get("settings") or {}, served(manifest)
    unused = {*SERVED, "loads"} if settings.get("rates") else {*SERVED}
    kept = {key: value for key, value in settings.items() if key not in unused and _says_something(value)}
    told = [f"{key.replace('_', ' ')} {_value(key, value)}" for key, value in kept.items()]
    return f"Settings: {'; '.join([*([name] if name else []), *told])}." if name or told else ""


def served(manifest: Mapping[str, Any]) -> str | None:
    """What served, or of a calculation the model it is about; None if the manifest does not say."""
    settings = manifest.get("settings") or {}
    server, model = settings.get("server"), settings.get("model")
    return server_name(server) if server else str(model["name"]) if model else None


def server_name(server: Mapping[str, Any]) -> str:
    """A model by its name, and its weights where these were chosen; the paced engine by its profile."""
    if server.get("engine") == "paced":
        return f"{_file(server.get('profile'))} (paced)"
    weights, bits = server.get("weights", "auto"), server.get("kv_bits")
    said = [*([f"{weights} weights"] if weights != "auto" else []), *([f"KV cache of {bits} bits"] if bits else [])]
    return _model(str(server.get("model"))) + (f" ({', '.join(said)})" if said else "")


def ran_on(manifest: Mapping[str, Any]) -> str:
    """Machine, versions and time. Empty of a run that left no manifest."""
    machine, versions = manifest.get("machine") or {}, manifest.get("versions") or {}
    if not machine:
        return ""
    where = [str(machine.get("processor")), f"{machine.get('cores')} cores", bytes_text(machine["memory_bytes"])]
    with_what = [f"{name} {versions[name]}" for name in SHOWN_VERSIONS if versions.get(name)]
    return f"Ran on {', '.join(where)}, {machine.get('system')}, with {', '.join(with_what)}, {manifest.get('begun')}."


def _model(model: str) -> str:
    """A hub id whole, of a folder its name alone."""
    return model if model.count("/") < 2 and not model.startswith((".", "/", "~")) else PurePath(model).name


def _file(path: Any) -> str:
    return PurePath(str(path)).name


def _says_something(value: Any) -> bool:
    return value is not None and value is not False and value not in ([], (), {})


def _value(key: str, value: Any) -> str:
    if key in FILES:
        return _file(value)
    if isinstance(value, list | tuple):
        return ", ".join(_value("", each) for each in value)
    return "yes" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
