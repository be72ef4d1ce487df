"""What a step costs: cost profiles, from files or shipped ones, linear between the points they were measured at."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

SCHEMA = 1
MOST_ROWS, MOST_CONTEXT = 100_000, 2**20
SHIPPED = files("worker") / "profiles"


class ProfileError(ValueError):
    """A profile that cannot be used, in one line that says what to do."""


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One measured decode step: rows at once, tokens of context of the longest row, seconds."""

    rows: int
    context: int
    s: float


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Seconds to read one chunk: a part for the chunk, one for each prompt in it, one for each token in it, and one for
    each pair of tokens that attend to each other. Prompts are padded to the longest of them, and what fills them up
    counts. The largest chunk measured had `most_prompts` and `most_tokens`; None where that is not known."""

    per_chunk_s: float
    per_prompt_s: float
    per_token_s: float
    per_pair_s: float = 0.0
    most_prompts: int | None = None
    most_tokens: int | None = None

    def covers(self, prompts: int, longest: int) -> bool:
        """Whether chunks as large were measured: so many prompts, of the longest of them so many tokens."""
        return (self.most_prompts is None or prompts <= self.most_prompts) and (
            self.most_tokens is None or prompts * longest <= self.most_tokens
        )


@dataclass(frozen=True, slots=True)
class StartCost:
    """Seconds of a step in which prompts get their last token and join the rows that decode, beside what it takes to
    decode those: a part for the step, and one for each of the prompts."""

    per_step_s: float = 0.0
    per_prompt_s: float = 0.0


@dataclass(frozen=True)
class CostProfile:
    """The costs of a model on a machine. `decode` is sorted by context, then rows; every context has its own curve."""

    name: str
    source: str
    decode: tuple[DecodePoint, ...]
    read: ReadCost
    start: StartCost = StartCost()

    def decode_s(self, rows: int, context: int) -> float:
        """Seconds of one decode step, linear between measured points, held constant outside them."""
        return interpolate([(at, interpolate(curve, rows)) for at, curve in self.curves.items()], context)

    def read_s(self, prompts: int, longest: int) -> float:
        """Seconds to read a chunk of `prompts` prompts, `longest` tokens of the longest of them; 0 for an empty one."""
        if not prompts:
            return 0.0
        read, tokens = self.read, prompts * longest
        parts = read.per_prompt_s * prompts + read.per_token_s * tokens + read.per_pair_s * pairs(prompts, longest)
        return read.per_chunk_s + parts

    def start_s(self, prompts: int) -> float:
        """Seconds that a step takes for `prompts` prompts that get their last token in it."""
        return self.start.per_step_s + self.start.per_prompt_s * prompts if prompts else 0.0

    def covers(self, rows: int, context: int) -> bool:
        """Whether such a decode step lies inside what was measured; one context alone says cost ignores it."""
        contexts = [*self.curves]
        if len(contexts) == 1:
            return self._curve_covers(contexts[0], rows)
        below, above = [c for c in contexts if c <= context], [c for c in contexts if c >= context]
        if not below or not above:
            return False
        return self._curve_covers(below[-1], rows) and self._curve_covers(above[0], rows)

    @cached_property
    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """(rows, seconds) of each context: a paced engine asks for costs at every step."""
        by_context = groupby(self.decode, key=lambda point: point.context)
        return {context: [(point.rows, point.s) for point in points] for context, points in by_context}

    @property
    def range(self) -> str:
        """What was measured, in words."""
        rows, contexts = [p.rows for p in self.decode], sorted({p.context for p in self.decode})
        said = [f"{min(rows)} to {max(rows)} rows"]
        said += [f"contexts of {contexts[0]} to {contexts[-1]} tokens"] if len(contexts) > 1 else []
        said += [f"chunks of up to {self.read.most_tokens} tokens"] if self.read.most_tokens is not None else []
        said += [f"of {self.read.most_prompts} prompts"] if self.read.most_prompts is not None else []
        return ", ".join(said)

    def _curve_covers(self, context: int, rows: int) -> bool:
        curve = self.curves[context]
        return curve[0][0] <= rows <= curve[-1][0]


def pairs(prompts: int, longest: int) -> float:
    """Pairs of tokens that attend to each other in a chunk."""
    return prompts * longest**2 / 2


def extended(profile: CostProfile) -> CostProfile:
    """The profile with its outermost slopes carried on, in rows and in context; no cost falls that way."""
    contexts = [*profile.curves]
    sizes = sorted({1, *(p.rows for p in profile.decode), MOST_ROWS})
    curves = {context: _carried_on(curve, sizes) for context, curve in profile.curves.items()}
    if len(contexts) > 1:
        far = sorted({0, *contexts, MOST_CONTEXT})
        by_rows = [_carried_on([(c, curves[c][i]) for c in contexts], far) for i in range(len(sizes))]
        curves = {c: [costs[i] for costs in by_rows] for i, c in enumerate(far)}
    points = [DecodePoint(rows, c, s) for c, costs in curves.items() for rows, s in zip(sizes, costs, strict=True)]
    return replace(profile, decode=_sorted(points))


def _carried_on(points: Sequence[tuple[int, float]], at: Sequence[int]) -> list[float]:
    """A curve's values there: linear between its points, and beyond them with the slope of the outermost two, if that
    rises; at least 0."""
    (low, first), (high, last) = points[0], points[-1]
    below = _slope(points[:2]) if len(points) > 1 else 0.0
    above = _slope(points[-2:]) if len(points) > 1 else 0.0
    return [
        max(0.0, first - below * (low - x)) if x < low
        else last + above * (x - high) if x > high
        else interpolate(points, x)
        for x in at
    ]  # fmt: skip


def _slope(points: Sequence[tuple[int, float]]) -> float:
    (x0, y0), (x1, y1) = points
    return max(0.0, (y1 - y0) / (x1 - x0))


def interpolate(points: Sequence[tuple[int, float]], at: int) -> float:
    right = bisect_right(points, (at, float("inf")))
    if right == 0 or right == len(points):
        return points[0 if right == 0 else -1][1]
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def profile_names() -> list[str]:
    """The shipped profiles."""
    return sorted(path.name.removesuffix(".json") for path in SHIPPED.iterdir() if path.name.endswith(".json"))


def load_profile(name: str) -> CostProfile:
    """A shipped profile by name, or one from a JSON file by path. Raises ProfileError in one line."""
    if name in profile_names():
        return parse_profile((SHIPPED / f"{name}.json").read_bytes(), name)
    path = Path(name)
    try:
        if not path.is_file():
            raise ProfileError(f"unknown profile {name!r}; name a JSON file or one of {', '.join(profile_names())}")
        return parse_profile(path.read_bytes(), name)
    except OSError as error:
        raise ProfileError(f"profile {name}: {error.strerror}") from None


def parse_profile(data: bytes, where: str) -> CostProfile:
    """A profile from JSON: `{schema, name, source, decode: [{rows, context, s}], read: {per_chunk_s, ...}}`, and
    `start: {per_step_s, ...}` if that costs anything."""
    try:
        raw = orjson.loads(data)
        if raw["schema"] != SCHEMA:
            raise ProfileError(f"profile {where}: schema {raw['schema']!r} is not {SCHEMA}")
        points = [DecodePoint(_count(p, "rows", 1), _count(p, "context", 0), _cost(p, "s")) for p in raw["decode"]]
        reading, starting = {"per_pair_s": 0.0} | raw["read"], asdict(StartCost()) | raw.get("start", {})
        chunk, prompt, token, pair = [_cost(reading, f"per_{of}_s") for of in ("chunk", "prompt", "token", "pair")]
        most = _most(reading, "most_prompts"), _most(reading, "most_tokens")
        read = ReadCost(chunk, prompt, token, pair, *most)
        start = StartCost(_cost(starting, "per_step_s"), _cost(starting, "per_prompt_s"))
        profile = CostProfile(str(raw["name"]), str(raw["source"]), _sorted(points), read, start)
    except ProfileError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"profile {where}: not a cost profile ({type(error).__name__}: {error})") from None
    return profile


def _sorted(points: list[DecodePoint]) -> tuple[DecodePoint, ...]:
    ordered = sorted(points, key=lambda point: (point.context, point.rows))
    if not ordered or len({(p.context, p.rows) for p in ordered}) != len(ordered):
        raise ValueError("decode needs points, one for each context and number of rows")
    return tuple(ordered)


def _count(values: Mapping[str, Any], key: str, low: int) -> int:
    if type(values[key]) is not int or values[key] < low:
        raise ValueError(f"{key} must be a whole number of at least {low}")
    return int(values[key])


def _most(values: Mapping[str, Any], key: str) -> int | None:
    return None if values.get(key) is None else _count(values, key, 1)


def _cost(values: Mapping[str, Any], key: str) -> float:
    if type(values[key]) not in (int, float) or not 0 <= values[key] < float("inf"):
        raise ValueError(f"{key} must be a number of seconds, 0 or more")
    return float(values[key])


def as_json(profile: CostProfile) -> dict[str, Any]:
    """A profile as its file holds it; `parse_profile` reads it back."""
    return {"schema": SCHEMA, **asdict(profile)}
