"""The shipped emails are many, different, and as long as the product's figures assume."""

import pytest

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


@pytest.mark.model
def test_each_is_40_to_70_tokens_of_the_embedded_model() -> None:
    from worker import models
    from worker.mlx_engine import MLXEngine

    engine = MLXEngine(models.load(), seats=1, prefill_step=512, prefill_batch=1)
    try:
        lengths = [len(tokens) for tokens in engine.tokenize([prompt.turns for prompt in emails(72)])]
    finally:
        engine.close()
    assert min(lengths) >= 40
    assert max(lengths) <= 70
    assert len(set(lengths)) > 8, "crowds do not write emails of one length"
