"""Amounts of memory in words: what a person types, and what a person reads."""

import re
from fractions import Fraction

_UNITS = {"": 1, "b": 1}
for power, letter in enumerate("kmgt", start=1):
    _UNITS |= {letter: 1000**power, f"{letter}b": 1000**power, f"{letter}ib": 1024**power}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", re.IGNORECASE)
MOST = 2**60


def parse_bytes(text: str) -> int:
    """Bytes in `48GB`, `512MiB` or `1000`. Raises ValueError in one line."""
    match = _FORM.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or Fraction(match[1]) * unit > MOST:
        raise ValueError(f"an amount of memory is such as 48GB or 512MiB, not {text!r}")
    return int(Fraction(match[1]) * unit)


def bytes_text(count: int) -> str:
    """A size in decimal units (1 GB is 10^9 bytes), three digits or more: 4.83 GB."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            value = count / unit
            digits = 0 if value >= 999.95 else 1 if value >= 9.995 else 2
            return f"{value:,.{digits}f} {name}"
    return f"{count} B"


def binary_text(count: int) -> str:
    """A size in KiB (2^10 bytes) or MiB (2^20): 144 KiB."""
    unit, name = (2**20, "MiB") if count >= 2**20 else (2**10, "KiB")
    return f"{count / unit:,.1f}".removesuffix(".0") + f" {name}"
