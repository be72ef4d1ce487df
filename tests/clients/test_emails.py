"""The shipped emails are many, different, and of the length that the other figures assume."""

from clients.workloads import emails


def test_at_least_64_different_single_user_messages() -> None:
    prompts = emails(72)
    assert len({prompt.turns for prompt in prompts}) == 72
    assert emails(73)[72] == prompts[0], "the file holds 72; more requests start over"
    for prompt in prompts:
        (turn,) = prompt.turns
        assert turn.role == "user"
        assert turn.content == turn.content.strip()
        assert turn.content.isascii()
