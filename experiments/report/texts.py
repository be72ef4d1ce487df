"""The words of a run: replies from its records, prompts made again by the plan that its clients kept; cut to fit."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.workloads import WORKLOADS, Prompt, cycled, from_file, prompts_for
from experiments.analysis import CellRecords

KNOWN = {name.partition(":")[0] for name in WORKLOADS}
LONGEST, ALL_TEXTS = 2_000, 600_000


@dataclass(frozen=True, slots=True)
class Words:
    """The prompt and the reply of each drawn customer as places in `Texts.all`; None for what nobody knows."""

    prompts: list[int | None]
    replies: list[int | None]


@dataclass(frozen=True, slots=True)
class Texts:
    """Every text once, and where each cell's customers find theirs; `longest` is where longer ones were cut."""

    all: list[str]
    longest: int
    cells: dict[str, Words]


NOTHING = Texts([], 0, {})


def texts(cells: Mapping[str, CellRecords], drawn: Mapping[str, Sequence[int]], inputs: Mapping[str, Any]) -> Texts:
    """The texts of the drawn customers, given as ids by cell. `inputs` are the manifest's: a file of prompts that has
    changed since is not what was asked."""
    places: dict[str, int] = {}

    def place(text: str | None) -> int | None:
        return None if text is None else places.setdefault(text, len(places))

    found = {}
    for name, ids in drawn.items():
        prompts = prompts_of(cells[name], inputs)
        replies = {request.id: request.text for request in cells[name].requests}
        asked = [place(conversation(prompts[id]) if id < len(prompts) else None) for id in ids]
        found[name] = Words(asked, [place(replies.get(id)) for id in ids])
    longest = min(LONGEST, ALL_TEXTS // max(1, len(places)))
    return Texts([cut(text, longest) for text in places], longest, found)


def cut(text: str, longest: int) -> str:
    """The text, or its beginning and how much more there was."""
    return text if len(text) <= longest else f"{text[:longest]} ... ({len(text) - longest:,} more characters)"


def conversation(prompt: Prompt) -> str:
    """A prompt as people read it: who says what, if it has several turns."""
    if len(prompt.turns) == 1:
        return prompt.turns[0].content
    return "\n\n".join(f"{turn.role}: {turn.content}" for turn in prompt.turns)


def prompts_of(cell: CellRecords, inputs: Mapping[str, Any]) -> tuple[Prompt, ...]:
    """What a cell's crowd asked, by request id; nothing where it cannot be told any more."""
    if not cell.clients:
        return ()
    plan, requests = cell.clients[0].plan, cell.clients[0].requests
    workload = str(plan.get("workload"))
    try:
        if workload.partition(":")[0] in KNOWN:
            return prompts_for(workload, requests, plan["max_tokens"], plan["seed"])
        same = hashlib.sha256(Path(workload).read_bytes()).hexdigest() == inputs.get("prompts")
        return cycled(from_file(Path(workload)), requests) if same else ()
    except (KeyError, OSError, TypeError, ValueError):
        return ()
