"""Workloads have the lengths they promise, and a bad prompt file is refused in one line that says where and why."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.workloads import (
    WORKLOADS,
    Prompt,
    common_start,
    cycled,
    emails,
    expected_tokens,
    from_file,
    limits,
    mixed,
    parse_line,
    prompts_for,
    shared_probes,
)
from protocol.messages import ChatTurn, Submit, decode, encode

HELLO = (ChatTurn("user", "Hello"),)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("prompt", "ignore_eos", "expected"),
    [
        (Prompt(HELLO), False, (128, False)),
        (Prompt(HELLO), True, (128, True)),
        (Prompt(HELLO, max_tokens=9), False, (9, False)),
        (Prompt(HELLO, max_tokens=500), False, (500, False)),
        (Prompt(HELLO, exact_tokens=9), False, (9, True)),
        (Prompt(HELLO, max_tokens=20, exact_tokens=9), False, (9, True)),
    ],
)
def test_limits(prompt: Prompt, ignore_eos: bool, expected: tuple[int, bool]) -> None:
    assert limits(prompt, 128, ignore_eos) == expected


def test_a_length_is_announced_where_it_is_settled() -> None:
    turns = (ChatTurn("user", "a"),)
    assert expected_tokens(Prompt(turns), 128, ignore_eos=False) is None
    assert expected_tokens(Prompt(turns), 128, ignore_eos=True) == 128
    assert expected_tokens(Prompt(turns, max_tokens=9), 128, ignore_eos=True) == 9
    assert expected_tokens(Prompt(turns, exact_tokens=7), 128, ignore_eos=False) == 7
    assert expected_tokens(Prompt(turns, exact_tokens=7, expected_tokens=3), 128, ignore_eos=False) == 3
    assert expected_tokens(Prompt(turns, expected_tokens=0), 128, ignore_eos=True) == 0


# --- built in ---


def test_every_workload_has_a_sentence_and_prompts() -> None:
    for name, sentence in WORKLOADS.items():
        assert len(sentence) > 20
        assert len(prompts_for(name.replace("TOKENS", "400"), 100, 64, 12)) == 100
    assert prompts_for("emails", 5, 64, 12) == emails(5)
    assert prompts_for("mixed", 5, 64, 12) == mixed(5, 64, 12)


def test_an_unknown_workload_is_refused() -> None:
    known = "there are emails, mixed, sorting, sorting-stamped, needle:TOKENS"
    for unknown in ("mails", "emails:3", "needle", "needle:", "needle:many", "needle:-4"):
        with pytest.raises(ValueError, match=f"^no workload called '{unknown}'; {known}$"):
            prompts_for(unknown, 4, 64, 12)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_requests_are_refused(workload: str) -> None:
    with pytest.raises(ValueError, match="at least 1 request"):
        prompts_for(workload, 0, 64, 12)


def test_probes_agree_with_a_prompt_in_what_it_shares_and_in_nothing_else() -> None:
    turns = (ChatTurn("system", "Sort."), ChatTurn("user", "0 tents"))
    first, second = shared_probes(Prompt(turns, shared_turns=1))
    assert first[:1] == second[:1] == turns[:1]
    assert [probe[1].role for probe in (first, second)] == ["user", "user"]
    assert first[1].content[0] != second[1].content[0]
    assert len(shared_probes(Prompt(turns, shared_turns=2))[0]) == 3
    assert shared_probes(Prompt(turns)) == ()


@given(st.lists(st.integers(0, 3)), st.lists(st.lists(st.integers(0, 3)), min_size=1, max_size=4))
def test_the_common_start_is_the_longest(start: list[int], rests: list[list[int]]) -> None:
    lists = [[*start, *rest] for rest in rests]
    common = common_start(lists)
    assert common >= len(start)
    assert all(each[:common] == lists[0][:common] for each in lists)
    assert common == min(map(len, lists)) or len({each[common] for each in lists}) > 1


def test_emails_leave_lengths_to_the_run() -> None:
    assert emails(1)[0] == Prompt(emails(1)[0].turns)


def test_mixed_lengths_at_the_study_s_cap() -> None:
    lengths = [prompt.exact_tokens or 0 for prompt in mixed(400, 128, 12)]
    for i in range(0, 400, 4):
        *short, long = sorted(lengths[i : i + 4])
        assert long == 128
        assert all(8 <= tokens <= 24 for tokens in short)
    assert {lengths[i : i + 4].index(128) for i in range(0, 400, 4)} == {0, 1, 2, 3}
    assert {tokens for tokens in lengths if tokens != 128} == set(range(8, 25))


@given(st.integers(1, 200), st.integers(1, 5_000), st.integers())
def test_mixed_lengths_are_known_seeded_and_within_the_cap(n: int, max_tokens: int, seed: int) -> None:
    prompts = mixed(n, max_tokens, seed)
    assert prompts == mixed(n + 7, max_tokens, seed)[:n]
    assert [prompt.turns for prompt in prompts] == [prompt.turns for prompt in emails(n)]
    for prompt in prompts:
        assert prompt.exact_tokens is not None
        assert 1 <= prompt.exact_tokens <= max_tokens
        assert prompt.expected_tokens == prompt.exact_tokens
        assert limits(prompt, max_tokens, False) == (prompt.exact_tokens, True)


def test_the_seed_decides_the_mixed_lengths() -> None:
    assert mixed(40, 128, 1) != mixed(40, 128, 2)


def test_mixed_refuses_a_cap_of_nothing() -> None:
    with pytest.raises(ValueError, match=r"^a reply is capped at 1 token or more, not 0$"):
        mixed(4, 0, 12)


def test_cycled() -> None:
    one, two = Prompt(HELLO), Prompt(HELLO, max_tokens=2)
    assert cycled([one, two], 5) == (one, two, one, two, one)
    assert cycled([one, two], 1) == (one,)
    for prompts, n in (([], 3), ([one], 0)):
        with pytest.raises(ValueError, match="at least 1 request and 1 prompt"):
            cycled(prompts, n)


# --- from a file ---


def test_a_file_with_everything(written: Callable[[bytes], Path]) -> None:
    path = written(
        b'\xef\xbb\xbf{"prompt": "Hello"}\r\n'
        b"\n"
        b'  {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "\xc3\xa9t\xc3\xa9"}]'
        b', "max_tokens": 7, "user": "ada", "priority": -2, "deadline_s": 3, "expected_tokens": 0}  \n'
        b'{"prompt": "a\xe2\x80\xa8b", "exact_tokens": 5, "max_tokens": null}'
    )
    assert from_file(path) == (
        Prompt(HELLO),
        Prompt(
            (ChatTurn("system", "Be brief."), ChatTurn("user", "été")),
            max_tokens=7,
            user="ada",
            priority=-2,
            deadline_s=3.0,
            expected_tokens=0,
        ),
        Prompt((ChatTurn("user", "a\u2028b"),), exact_tokens=5),
    )


BAD_LINES = [
    (b"Hello", "not JSON: .+ at column 1; expected"),
    (b'{"prompt": "Hello"', "not JSON"),
    (b'{"prompt": "Hello", "deadline_s": NaN}', "not JSON"),
    (b'{"prompt": "\\ud800"}', "not JSON"),
    (b'{"prompt": "\xff"}', "not UTF-8 at byte 13"),
    (b'["Hello"]', "not an object: list; expected"),
    (b"null", "not an object: None"),
    (b"{}", "neither prompt nor messages"),
    (b'{"prompt": null}', "neither prompt nor messages; expected one of the two"),
    (b'{"prompt": "a", "messages": []}', "both prompt and messages; expected one of the two"),
    (b'{"prompt": "a", "max_token": 3}', "unknown key 'max_token'; known are prompt, messages, max_tokens, exact_"),
    (b'{"prompt": 5}', "prompt: not a text of at most 4194304 characters: 5"),
    (b'{"prompt": " "}', "prompt: blank; expected some text"),
    (b'{"messages": "Hello"}', "messages: not a list of 1 to 1024 turns: str"),
    (b'{"messages": []}', "messages: not a list of 1 to 1024 turns"),
    (b'{"messages": ["Hello"]}', "messages: turn 1: not an object of exactly role and content: str"),
    (b'{"messages": [{"role": "user"}]}', "messages: turn 1: not an object of exactly role and content"),
    (b'{"messages": [{"role": "usr", "content": "a"}]}', "messages: turn 1: role: not one of system, user, assistant"),
    (b'{"messages": [{"role": "user", "content": 1}]}', "messages: turn 1: content: not a text"),
    (b'{"prompt": "a", "max_tokens": 0}', "max_tokens: not a whole number from 1 to 1048576: 0"),
    (b'{"prompt": "a", "max_tokens": true}', "max_tokens: not a whole number from 1 to 1048576: True"),
    (b'{"prompt": "a", "max_tokens": 2.0}', "max_tokens: not a whole number"),
    (b'{"prompt": "a", "exact_tokens": -1}', "exact_tokens: not a whole number"),
    (b'{"prompt": "a", "exact_tokens": 9, "max_tokens": 8}', "exact_tokens 9 is above max_tokens 8"),
    (b'{"prompt": "a", "expected_tokens": "9"}', "expected_tokens: not a whole number"),
    (b'{"prompt": "a", "user": 1}', "user: not a text of at most 256 characters: 1"),
    (b'{"prompt": "a", "priority": 1.5}', "priority: not a whole number from -1000000 to 1000000: 1.5"),
    (b'{"prompt": "a", "priority": 99999999999999999999999}', "priority: not a whole number"),
    (b'{"prompt": "a", "deadline_s": -1}', "deadline_s: not a number from 0 to"),
    (b'{"prompt": "a", "deadline_s": false}', "deadline_s: not a number"),
    (b'{"prompt": "a", "deadline_s": 1e400}', "not JSON|deadline_s: not a number"),
]


@pytest.mark.parametrize(("line", "complaint"), BAD_LINES)
def test_a_bad_line_is_refused(line: bytes, complaint: str, written: Callable[[bytes], Path]) -> None:
    with pytest.raises(ValueError, match=rf"prompts\.jsonl line 3: ({complaint})") as caught:
        from_file(written(b'{"prompt": "Hello"}\n\n' + line + b"\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n \r\n\t\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(data: bytes, written: Callable[[bytes], Path]) -> None:
    with pytest.raises(ValueError, match=r"prompts\.jsonl: empty; a prompt file has a line such as"):
        from_file(written(data))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: cannot be read: No such file or directory$"):
        from_file(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="cannot be read: "):
        from_file(tmp_path)


def test_another_encoding_is_refused(written: Callable[[bytes], Path]) -> None:
    with pytest.raises(ValueError, match="line 1: not UTF-8 at byte 1"):
        from_file(written('{"prompt": "Hello"}'.encode("utf-16")))


@given(st.binary(max_size=60))
def test_no_line_raises_anything_else(line: bytes) -> None:
    try:
        parse_line(line)
    except ValueError as error:
        assert "\n" not in str(error)


OPTIONAL = {
    "user": st.text(max_size=20),
    "priority": st.integers(-1_000_000, 1_000_000),
    "deadline_s": st.floats(0, 1e9),
    "expected_tokens": st.integers(0, 2**20),
}


@given(st.text(min_size=1).filter(str.strip), st.fixed_dictionaries({}, optional=OPTIONAL), st.integers(1, 2**20))
def test_a_good_line_is_taken_and_goes_over_the_wire(text: str, options: dict[str, object], cap: int) -> None:
    prompt = parse_line(orjson.dumps({"prompt": text, "max_tokens": cap, **options}))
    assert prompt.turns == (ChatTurn("user", text),)
    assert {key: value for key, value in asdict(prompt).items() if key in options} == options
    max_tokens, ignore_eos = limits(prompt, 128, False)
    submit = Submit(
        0,
        prompt.user or "",
        (1,),
        max_tokens,
        ignore_eos,
        expected_tokens=prompt.expected_tokens,
        priority=prompt.priority,
        deadline=prompt.deadline_s,
    )
    assert decode(encode(submit, "run"), "run") == submit
