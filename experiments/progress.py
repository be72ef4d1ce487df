"""What a person sees while a cell runs: two live lines on a terminal, one plain line a cell elsewhere."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from experiments.cell import Cell
from protocol.clock import now, seconds

# Drawing takes milliseconds of a processor that is being measured.
REDRAWS_PER_S = 2


class TwoLines(Progress):
    """A cell's title, bar and time left, and beneath them its counts in words."""

    words = "getting ready"

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        yield Text(f"  {self.words}", no_wrap=True, overflow="ellipsis")


class CellProgress:
    """One cell's lines; fed with the router's events."""

    def __init__(self, console: Console, title: str, cell: Cell) -> None:
        """Use as a context manager."""
        self._console, self._title, self._cell = console, title, cell
        self._began = now()
        self._live: TwoLines | None = None
        self._state: Mapping[str, Any] = {}
        self._started: int | None = None

    def __enter__(self) -> "CellProgress":
        if self._console.is_terminal and not self._console.quiet:
            self._live = TwoLines(
                TextColumn("{task.description}"),
                BarColumn(bar_width=16),
                TimeRemainingColumn(compact=True),
                TextColumn("left"),
                console=self._console,
                transient=True,
                refresh_per_second=REDRAWS_PER_S,
            )
            self._task = self._live.add_task(self._title, total=self._cell.requests)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._live is not None:
            self._live.stop()
        took = seconds(now() - (self._started or self._began))
        done = self._state.get("completed", 0)
        how = f"{done} of {self._cell.requests} replies in" if kind is None else "cut short after"
        self._console.print(f"{self._title}: {how} {took:.1f} s")

    def follow(self, event: Mapping[str, Any]) -> None:
        """Take one event of the router."""
        if event["event"] == "started":
            self._started = now()
            if self._live is not None:
                self._live.reset(self._task)
        if event["event"] != "progress":
            return
        self._state = event
        if self._live is not None:
            lasted = seconds(now() - (self._started or self._began))
            self._live.words = counts(event, self._cell.requests, lasted)
            self._live.update(self._task, completed=work_done(event, self._cell))


def work_done(event: Mapping[str, Any], cell: Cell) -> float:
    """How many requests' worth of work is done: those that ended, or the share of all tokens that was written, if that
    is more. Batches end together, so their ends alone would say nothing of the time left until the last moment."""
    done: float = max(event["ended"], event["tokens"] / cell.max_tokens)
    return min(cell.requests, done)


def counts(event: Mapping[str, Any], requests: int, lasted_s: float) -> str:
    """Where the requests are, in words. Sent are those that the router has received."""
    sent = event["waiting"] + event["running"] + event["ended"]
    rate = event["tokens"] / lasted_s if lasted_s > 0 else 0.0
    return (
        f"{sent} sent, {event['waiting']} waiting, {event['running']} running, "
        f"{event['ended']} of {requests} done, {rate:.0f} tokens/s"
    )
