"""Options that take several values at once: `1,2,4`."""

from collections.abc import Sequence


def whole_numbers(option: str, text: str, low: int, high: int) -> tuple[int, ...]:
    """Whole numbers, ascending. Raises ValueError in one line."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not low <= min(numbers) <= max(numbers) <= high or len(set(numbers)) != len(numbers):
        raise ValueError(f"{option} takes different whole numbers from {low} to {high}, such as 1,8,32; not {text!r}")
    return tuple(sorted(numbers))


def words(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Some of the known words, in the order given. Raises ValueError in one line."""
    given = tuple(part.strip() for part in text.split(","))
    if any(word not in known for word in given) or len(set(given)) != len(given):
        raise ValueError(f"{option} takes some of {', '.join(known)}, such as {','.join(known[:2])}; not {text!r}")
    return given
