"""A policy tried out before a run: a few made-up requests pass through the router's core, without a clock."""

from protocol.clock import MS
from protocol.messages import Row, Step, Submit
from router.core import Core
from router.policies import Policy, PolicyError
from router.policy_files import place

REQUESTS, USERS, PROMPT, REPLY = 12, 3, 5, 4
CONTEXT = 1_000
STEP = 20 * MS
ROUNDS = 10_000


def try_out(policy: Policy) -> None:
    """Raises PolicyError when it fails, or leaves seats free for good while requests wait."""
    core = Core(policy, "trial")
    core.worker_came(0, CONTEXT)
    for id in range(REQUESTS):
        core.submitted(id // 2 * MS, b"trial", _request(id))
    now = REQUESTS * MS
    for _ in range(ROUNDS):
        if core.running:
            now += STEP
            core.stepped(now, _step(core, now))
        elif core.wake_at is not None:
            now = max(now, core.wake_at)
            core.woken(now)
        if core.ended == REQUESTS:
            return
    kind = type(policy)
    raise PolicyError(
        f"policy {policy.name} leaves requests waiting for good: with nobody running it must admit one, or say when to "
        f"look again by wake_at ({place(kind, PolicyError())})"
    )


def _request(id: int) -> Submit:
    """Some know their length, some have a class or a deadline."""
    prompt = tuple(range(PROMPT + id))
    expected, deadline = (REPLY if id % 2 else None), (id / 10 if id % 4 == 0 else None)
    user = f"user-{id % USERS}"
    return Submit(id, user, prompt, REPLY, expected_tokens=expected, priority=id % 3 - 1, deadline=deadline)


def _step(core: Core, now: int) -> Step:
    """Prompts are read in one go; whoever was read writes a token."""
    read = tuple((passage.id, passage.unread) for passage in core.running if passage.unread)
    rows = tuple(
        Row(passage.id, (1,), "a", "length" if passage.written + 1 == REPLY else None)
        for passage in core.running
        if not passage.unread
    )
    return Step(now - STEP, now, len(rows), len(read), sum(tokens for _, tokens in read), rows, read)
