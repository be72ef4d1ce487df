"""How often a policy that guesses the lengths of replies puts two of them in the wrong order."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clients.workloads import expected_tokens
from experiments.analysis import CellRecords, written
from experiments.report.texts import prompts_of
from experiments.twin.crowd import Crowd
from protocol.records import RequestRecord
from router.policies import POLICIES, Policy

COMPARED = 2_000


class Guessed(NamedTuple):
    """What a guess may go by, named as in `router.policies.Waiting`, and the `length` of the reply in tokens."""

    id: int
    prompt_tokens: int
    max_tokens: int
    expected_tokens: int | None
    length: int


def wrong_order(policy: Policy, replies: Sequence[Guessed]) -> float | None:
    """Of all pairs of replies that differ in length, the share of which the longer one was guessed to be shorter; a
    guess that they are alike counts as half: so a coin toss has 0.5. Of at most COMPARED replies, evenly spread. None
    for a policy that guesses nothing, and where all are of one length."""
    guess = getattr(policy, "predicted", None)
    if guess is None:
        return None
    some = [replies[int(place)] for place in np.linspace(0, len(replies) - 1, min(len(replies), COMPARED))]
    lengths, guesses = np.array([each.length for each in some]), np.array([guess(each) for each in some])
    longer = np.greater.outer(lengths, lengths)
    higher = np.sign(np.subtract.outer(guesses, guesses))[longer]
    return float((1 - higher.mean()) / 2) if len(higher) else None


def of_records(cell: CellRecords, inputs: Mapping[str, Any], simulated: bool) -> float | None:
    """That of a cell's policy, from its records; in a simulation every reply is as long as it may be. `inputs` are the
    manifest's."""
    router = cell.router
    if router is None or not hasattr(POLICIES.get(router.policy), "predicted"):
        return None
    plan = cell.clients[0].plan if cell.clients else {}
    prompts, most, ignore = prompts_of(cell, inputs), plan.get("max_tokens", 1), bool(plan.get("ignore_eos"))
    expected = [expected_tokens(prompt, most, ignore and not simulated) for prompt in prompts]
    known = [r for r in cell.requests if r.prompt_tokens and r.max_tokens and (simulated or r.end == "completed")]
    return wrong_order(POLICIES[router.policy](**router.params), [_guessed(r, expected, simulated) for r in known])


def of_crowd(policy: Policy, crowd: Crowd) -> float | None:
    """The same of a crowd that is simulated."""
    if not hasattr(policy, "predicted"):
        return None
    return wrong_order(
        policy, [Guessed(a.id, len(a.tokens), a.max_tokens, a.expected_tokens, a.max_tokens) for a in crowd.requests()]
    )


def _guessed(request: RequestRecord, expected: Sequence[int | None], simulated: bool) -> Guessed:
    most = request.max_tokens or 1
    said = expected[request.id] if request.id < len(expected) else None
    return Guessed(request.id, request.prompt_tokens or 1, most, said, most if simulated else written(request))
