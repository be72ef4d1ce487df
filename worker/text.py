"""Turns a reply's tokens into text as they come: whole characters only, and nothing of a stop string ever gets out."""

from collections.abc import Sequence
from typing import Protocol

_UNFINISHED = "�"  # what decoding makes of bytes that are no character, such as a character's first half


class Detokenizer(Protocol):
    """mlx-lm's streaming detokenizer; `last_segment` is the text since it was last read, whole characters only."""

    @property
    def last_segment(self) -> str: ...

    def add_token(self, token: int) -> None: ...

    def finalize(self) -> None: ...


class StopCutter:
    """Passes text through until one of the stop strings is complete in it, and ends it where that string begins.

    What is passed on depends on the whole text alone, not on how it was cut into pieces: the stop string that is
    complete first counts and, of several complete at the same character, the longest. Empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """More text; returns what is now certain to belong to the reply. After a stop that is always nothing."""
        if self.stopped:
            return ""
        self._held += text
        if (cut := self._match()) is not None:
            self.stopped = True
            passed, self._held = self._held[:cut], ""
            return passed
        certain = len(self._held) - self._partial()
        passed, self._held = self._held[:certain], self._held[certain:]
        return passed

    def flush(self) -> str:
        """The reply is over: returns what was held back, because it began like a stop string."""
        passed, self._held = self._held, ""
        return passed

    def _match(self) -> int | None:
        """Where the first stop string begins in the held text. What was passed on earlier can be no part of one."""
        found = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _partial(self) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        for length in range(min(len(self._held), self._longest - 1), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


class TextStream:
    """The text of one reply. A stop token is not for `add`: it has no text."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._cutter = StopCutter(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the reply."""
        return self._cutter.stopped

    def add(self, token: int) -> str:
        """The next token; returns the text that is certain now, often none."""
        self._detokenizer.add_token(token)
        return self._cutter.push(self._detokenizer.last_segment)

    def finish(self) -> str:
        """The reply is over; returns the rest of its text. A character that the end cut in half is left out, so
        that a shorter reply is always the beginning of a longer one."""
        self._detokenizer.finalize()
        rest = self._cutter.push(self._detokenizer.last_segment.rstrip(_UNFINISHED))
        return rest + self._cutter.flush()
