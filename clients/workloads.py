"""What the crowd asks for: the prompts of a run and the lengths of their replies, built in or from a file."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import orjson

from clients import needle
from clients import sorting as email_sorting
from protocol.fields import Check, integer, one_of, shown
from protocol.messages import ChatTurn, Submit, checks_of

WORKLOADS = {
    "emails": "support emails to an outdoor gear shop; a reply ends where the model ends it, or at the cap",
    "mixed": "the same emails with seeded reply lengths: 3 of 4 short, 1 of 4 as long as the cap",
    "sorting": "emails to be sorted, behind rules and ten worked examples that all prompts share",
    "sorting-stamped": "the same with the time first, so that no two prompts start alike",
    "needle:TOKENS": "one customer's name to be found in a pile of emails of about so many tokens",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request before it is tokenized. Lengths are reply tokens, `deadline_s` counts seconds from receipt.

    `max_tokens` caps the reply, which may end sooner. `exact_tokens` fixes its length, whatever the model's end
    of sequence. None leaves the choice to the run. The first `shared_turns` turns are other prompts' too.
    """

    turns: tuple[ChatTurn, ...]
    max_tokens: int | None = None
    exact_tokens: int | None = None
    user: str | None = None
    priority: int = 0
    deadline_s: float | None = None
    expected_tokens: int | None = None
    shared_turns: int = 0


def limits(prompt: Prompt, default_max_tokens: int, ignore_eos: bool) -> tuple[int, bool]:
    """`max_tokens` and `ignore_eos` of the prompt's `Submit`: its own where it has them, else the run's."""
    if prompt.exact_tokens is not None:
        return prompt.exact_tokens, True
    return prompt.max_tokens or default_max_tokens, ignore_eos


def expected_tokens(prompt: Prompt, default_max_tokens: int, ignore_eos: bool) -> int | None:
    """What a client announces as the length of the reply: what the prompt says, else the length itself where it is
    fixed, and None where the model decides."""
    most, fixed = limits(prompt, default_max_tokens, ignore_eos)
    return most if prompt.expected_tokens is None and fixed else prompt.expected_tokens


def shared_probes(prompt: Prompt) -> tuple[tuple[ChatTurn, ...], ...]:
    """Two conversations that agree with the prompt, and with each other, in the turns it shares and in nothing after
    them: what all three have in common, once they are tokens, is what is shared. None where nothing is."""
    shared = prompt.turns[: prompt.shared_turns]
    if not shared:
        return ()
    follows = "assistant" if shared[-1].role == "user" else "user"  # some templates insist that roles take turns
    role = prompt.turns[len(shared)].role if len(shared) < len(prompt.turns) else follows
    return tuple((*shared, ChatTurn(role, word)) for word in ("0", "a"))


def common_start(lists: Sequence[Sequence[int]]) -> int:
    """How many tokens all of them begin with."""
    return next((i for i, column in enumerate(zip(*lists, strict=False)) if len(set(column)) > 1), min(map(len, lists)))


# --- built in ---


def prompts_for(workload: str, n: int, max_tokens: int, seed: int) -> tuple[Prompt, ...]:
    """The `n` prompts of a workload in `WORKLOADS`, by request id. `max_tokens` is the run's cap on a reply.

    Raises ValueError for an unknown name, n < 1 or max_tokens < 1.
    """
    if n < 1:
        raise ValueError(f"a workload has at least 1 request, not {n}")
    match workload.partition(":"):
        case ("emails", "", ""):
            return emails(n)
        case ("mixed", "", ""):
            return mixed(n, max_tokens, seed)
        case ("sorting" | "sorting-stamped", "", ""):
            return sorting(n, workload == "sorting-stamped")
        case ("needle", ":", tokens) if tokens.isdecimal():
            return needles(n, int(tokens), seed)
    raise ValueError(f"no workload called {workload!r}; there are {', '.join(WORKLOADS)}")


def emails(n: int) -> tuple[Prompt, ...]:
    """`n` prompts, each the next of the shipped emails, over and over. Raises ValueError for n < 1."""
    return cycled([Prompt((ChatTurn("user", text),)) for text in _shipped_emails()], n)


def mixed(n: int, max_tokens: int, seed: int) -> tuple[Prompt, ...]:
    """`n` emails with known reply lengths, `expected_tokens` among them. The first ones do not change with `n`.

    Of every four in a row, one takes all `max_tokens` and three take 1/16 to 3/16 of them (8 to 24 of 128).
    Raises ValueError for n < 1 or max_tokens < 1.
    """
    if max_tokens < 1:
        raise ValueError(f"a reply is capped at 1 token or more, not {max_tokens}")
    # A generator of its own: one seeded like the arrivals' would tie lengths to gaps.
    draw = random.Random(f"reply lengths {seed}")
    shortest, short = max(1, max_tokens // 16), max(1, max_tokens * 3 // 16)
    lengths: list[int] = []
    while len(lengths) < n:
        four = [draw.randint(shortest, short) for _ in range(3)]
        four.insert(draw.randrange(4), max_tokens)
        lengths += four
    pairs = zip(emails(n), lengths, strict=False)
    return tuple(Prompt(p.turns, exact_tokens=tokens, expected_tokens=tokens) for p, tokens in pairs)


def sorting(n: int, stamped: bool) -> tuple[Prompt, ...]:
    """`n` emails to be sorted, over and over; what they share is declared as shared, whether or not it is the same."""
    shared = email_sorting.SHARED_TURNS
    return tuple(Prompt(email_sorting.conversation(i, stamped), shared_turns=shared) for i in range(n))


def needles(n: int, tokens: int, seed: int) -> tuple[Prompt, ...]:
    """`n` piles of about `tokens` tokens, each with another name to be found. ValueError for fewer than 200 tokens."""
    return tuple(Prompt(needle.conversation(i, tokens, seed)) for i in range(n))


def cycled(prompts: Sequence[Prompt], n: int) -> tuple[Prompt, ...]:
    """The first `n` of `prompts`, from the start again where they run out. ValueError if there are none of either."""
    if n < 1 or not prompts:
        raise ValueError(f"a workload has at least 1 request and 1 prompt, not {n} and {len(prompts)}")
    return tuple(islice(cycle(prompts), n))


@cache
def _shipped_emails() -> tuple[str, ...]:
    return tuple(orjson.loads(resources.files("clients").joinpath("emails.json").read_bytes()))


# --- from a file ---


EXAMPLE = '{"prompt": "Hello"}'
MAX_TURNS = 1_024

_ROLE = one_of("system", "user", "assistant")
_TEXT = checks_of(ChatTurn)["content"]
_SUBMIT = checks_of(Submit)

# The checks of the message itself, so that a file never holds what the router would refuse.
OPTIONS: dict[str, Check] = {
    "max_tokens": _SUBMIT["max_tokens"],
    "exact_tokens": _SUBMIT["max_tokens"],
    "user": _SUBMIT["user"],
    "priority": _SUBMIT["priority"],
    "deadline_s": _SUBMIT["deadline"],
    "expected_tokens": _SUBMIT["expected_tokens"],
    "shared_turns": integer(0, MAX_TURNS),
}


def from_file(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a JSON Lines file, in its order; blank lines are skipped.

    A line is an object with `prompt` (one user turn) or `messages` (objects of role and content), and any of
    `OPTIONS`; null is the same as leaving a key out. Raises ValueError, one line that names file and line, when
    the file cannot be read, is empty or has a bad line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    prompts = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            if line.strip():
                prompts.append(parse_line(line))
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
    if not prompts:
        raise ValueError(f"{path}: empty; a prompt file has a line such as {EXAMPLE}")
    return tuple(prompts)


def parse_line(line: bytes) -> Prompt:
    """The prompt in one line of a file. Raises ValueError that says what is wrong and what is expected."""
    given = {key: value for key, value in _json_object(line).items() if value is not None}
    unknown = [key for key in given if key not in SOURCES and key not in OPTIONS]
    if unknown:
        raise ValueError(f"unknown key {unknown[0][:40]!r}; known are {', '.join([*SOURCES, *OPTIONS])}")
    sources = [key for key in given if key in SOURCES]
    if len(sources) != 1:
        found = "both prompt and" if sources else "neither prompt nor"
        raise ValueError(f"{found} messages; expected one of the two")
    turns = _named(sources[0], SOURCES[sources[0]], given.pop(sources[0]))
    prompt = Prompt(turns, **{key: _named(key, OPTIONS[key], value) for key, value in given.items()})
    exact, cap = prompt.exact_tokens, prompt.max_tokens
    if exact is not None and cap is not None and exact > cap:
        raise ValueError(f"exact_tokens {exact} is above max_tokens {cap}; expected at most that, or no max_tokens")
    if prompt.shared_turns > len(turns):
        raise ValueError(f"shared_turns {prompt.shared_turns} is more than its {len(turns)} turns")
    return prompt


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}; expected e.g. {EXAMPLE}") from None
    if type(value) is not dict:
        raise ValueError(f"not an object: {shown(value)}; expected e.g. {EXAMPLE}")
    return value


def _named(key: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _content(value: Any) -> str:
    words: str = _TEXT(value)
    if not words.strip():
        raise ValueError("blank; expected some text")
    return words


def _one_turn(value: Any) -> tuple[ChatTurn, ...]:
    return (ChatTurn("user", _content(value)),)


def _turns(value: Any) -> tuple[ChatTurn, ...]:
    if type(value) is not list or not 1 <= len(value) <= MAX_TURNS:
        raise ValueError(f"not a list of 1 to {MAX_TURNS} turns: {shown(value)}")
    return tuple(_named(f"turn {i}", _turn, item) for i, item in enumerate(value, start=1))


def _turn(value: Any) -> ChatTurn:
    if type(value) is not dict or value.keys() != {"role", "content"}:
        raise ValueError(f"not an object of exactly role and content: {shown(value)}")
    return ChatTurn(_named("role", _ROLE, value["role"]), _named("content", _content, value["content"]))


SOURCES: dict[str, Callable[[Any], tuple[ChatTurn, ...]]] = {"prompt": _one_turn, "messages": _turns}
