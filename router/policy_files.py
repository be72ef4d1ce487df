"""A user's own policy: a class in a file of theirs, checked as far as that is possible without asking it to decide."""

import hashlib
import inspect
import re
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, get_type_hints

PREFIX = "policy file "
NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@cache
def load(file: str, name: str) -> type[Any]:
    """The class `name` of a Python file, the same one at every call. Raises ValueError, one line that names the file
    and, where there is one, the line."""
    module = _module(file)
    kind = vars(module).get(name)
    if not isinstance(kind, type):
        own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
        known = ", ".join(f"{each.__name__} (line {_line(each)})" for each in own) or "no class at all"
        raise ValueError(f"{file}: no class {name!r}; it has {known}")
    _check(kind)
    return kind


def _check(kind: type[Any]) -> None:
    """Raises ValueError for what is no policy."""
    wrong, where = _lack(kind), f"{file_of(kind)}:{_line(kind)}"
    try:
        if wrong is None:
            kind()
            where = place(kind, TypeError())
            inspect.signature(kind.decide).bind(None, 0, None)
    except Exception as error:
        wrong = str(error)
    if wrong is not None:
        raise ValueError(f"{where}: class {kind.__name__} is no policy: {wrong}")


@cache
def _module(file: str) -> ModuleType:
    """Run the file. Not by an import: that would leave a cache beside it, and might take an older one."""
    module = ModuleType(PREFIX + file)
    module.__file__ = file
    try:
        source = Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read: {error.strerror or error}") from None
    vars(module)["__sha256__"] = hashlib.sha256(source).hexdigest()
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    try:
        exec(compile(source, file, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{file}:{_line_of(error, file) or 1}: {in_words(error)}") from None
    return module


def file_of(kind: type[Any]) -> str:
    """The file that a policy's class is from, as it was named."""
    return inspect.getfile(kind)


def sha256(kind: type[Any]) -> str | None:
    """Of the file that a user's policy is from, as it was when it was loaded; None for one of ours."""
    digest: str | None = vars(sys.modules[kind.__module__]).get("__sha256__")
    return digest


def place(kind: type[Any], error: BaseException) -> str:
    """Where in its file a policy went wrong, as `file:line`; its `decide` where it was called wrongly."""
    file = file_of(kind)
    return f"{file}:{_line_of(error, file) or _line(vars(kind).get('decide', kind))}"


def in_words(error: BaseException) -> str:
    """What an error says, on one line."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return " ".join(f"{type(error).__name__}: {said}".split())


def _line_of(error: BaseException, file: str) -> int | None:
    """The last line of the file that had to do with an error."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return lines[-1] if lines else None


def _line(thing: Any) -> int:
    """Where a class or function begins; 1 for what was not written down as one."""
    try:
        return max(1, inspect.getsourcelines(thing)[1])
    except (OSError, TypeError):
        return 1


def _lack(kind: type[Any]) -> str | None:
    """What a class lacks to be a policy."""
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return "put @dataclass(frozen=True) above it"
    if not NAME.fullmatch(str(getattr(kind, "name", ""))):
        return "it needs a name of small letters, such as name: ClassVar[str] = 'mine'"
    if not callable(getattr(kind, "decide", None)):
        return "it needs decide(self, now, view)"
    hints = get_type_hints(kind)
    settings = {field.name: hints[field.name] for field in fields(kind)}
    if "seats" not in settings and not hasattr(kind, "seats"):
        return "it needs seats, such as seats: int = 64"
    other = [name for name, type in settings.items() if type not in (int, float, str)]
    return f"its setting {other[0]} is none of int, float and str" if other else None
