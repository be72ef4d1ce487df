"""Reads a run's summary.json back into what it was written from."""

from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from experiments.analysis import by_cell
from experiments.run_folder import SCHEMA, SUMMARY, RunFolderError, Summary, build_summary, read_manifest
from protocol.records import read_folder


def summary_of(folder: Path) -> Summary:
    """A run's summary: the one that was kept, or if there is none, computed from the records. Raises RunFolderError."""
    if (folder / SUMMARY).is_file():
        return read_summary(folder)
    return build_summary(read_manifest(folder), by_cell(read_folder(folder)))


def read_summary(folder: Path) -> Summary:
    """The summary that was kept. Raises RunFolderError, in one line, where there is none of this version."""
    path, again = folder / SUMMARY, f"make it with: headway analyse {folder}"
    try:
        kept = orjson.loads(path.read_bytes())
        if kept["schema"] != SCHEMA:
            raise ValueError(kept["schema"])
        made: Summary = restored(Summary, kept)
    except OSError:
        raise RunFolderError(f"{folder}: no {SUMMARY}; {again}") from None
    except orjson.JSONDecodeError:
        raise RunFolderError(f"{path}: not JSON; {again}") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise RunFolderError(f"{path}: of another version; {again}") from None
    return made


def restored(kind: Any, value: Any) -> Any:
    """A value of this type from that of its JSON: dataclasses, lists and tuples of plain values, or None. Raises
    AttributeError, KeyError or TypeError for a dataclass of other fields."""
    parts = [part for part in get_args(kind) if part is not NoneType]
    if value is None:
        return None
    if is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(**{name: restored(types[name], each) for name, each in value.items()})  # type: ignore[operator]
    match get_origin(kind):
        case origin if origin in (Union, UnionType):
            return restored(parts[0], value)
        case origin if origin is list:
            return [restored(parts[0], each) for each in value]
        case origin if origin is tuple:
            return tuple(value)
    return value
