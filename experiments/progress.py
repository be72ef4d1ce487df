"""What a person sees while a cell runs: a live line on a terminal, one plain line a cell elsewhere."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from protocol.clock import now, seconds

# Drawing takes milliseconds of a processor that is being measured.
REDRAWS_PER_S = 2


class CellProgress:
    """One cell's line; fed with the router's events."""

    def __init__(self, console: Console, title: str, requests: int) -> None:
        """Use as a context manager."""
        self._console, self._title, self._requests = console, title, requests
        self._began = now()
        self._live: Progress | None = None
        self._state: Mapping[str, Any] = {}
        self._started: int | None = None

    def __enter__(self) -> "CellProgress":
        if self._console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=16),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
                refresh_per_second=REDRAWS_PER_S,
            )
            self._task = self._live.add_task(self._title, total=self._requests, state="getting ready")
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._live is not None:
            self._live.stop()
        took = seconds(now() - (self._started or self._began))
        done = self._state.get("completed", 0)
        how = f"{done} of {self._requests} replies in" if kind is None else "cut short after"
        self._console.print(f"{self._title}: {how} {took:.1f} s")

    def follow(self, event: Mapping[str, Any]) -> None:
        """Take one event of the router."""
        if event["event"] == "started":
            self._started = now()
        if event["event"] != "progress":
            return
        self._state = event
        if self._live is not None:
            self._live.update(self._task, completed=event["ended"], state=self._words(event))

    def _words(self, event: Mapping[str, Any]) -> str:
        lasted = seconds(now() - (self._started or self._began))
        rate = event["tokens"] / lasted if lasted > 0 else 0.0
        return f"{event['waiting']} waiting, {event['running']} running, {rate:.0f} tokens/s"
