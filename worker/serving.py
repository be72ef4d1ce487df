"""What every engine on a real model does alike: prompts into tokens, requests refused, samplers, facts, margins."""

import functools
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from protocol.messages import ChatTurn, Row, Sampling, Submit
from worker.blas import preload
from worker.models import LoadedModel, device
from worker.text import TextStream

preload(device())  # whoever imports this module first: MLX binds to the BLAS that is there when it loads

import mlx.core as mx  # noqa: E402
from mlx_lm.sample_utils import make_sampler  # noqa: E402

Sampler = Callable[[Any], Any]

_WIDEST_MARGIN = 1e9


def model_facts(model: LoadedModel) -> dict[str, Any]:
    """What a manifest should say of a model in memory; flat."""
    return {
        "engine": "mlx",
        "model": model.name,
        "weights": model.weights,
        "context": model.context,
        "device": model.device,
        "dtype": model.dtype,
        "bytes_per_step": model.bytes_per_step,
        "bandwidth_bytes_per_s": model.bandwidth,
        "blas": model.blas.name,
        "blas_source": model.blas.source,
        "blas_settings": model.blas.settings,
        "blas_warning": model.blas.warning,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "chat_template_args": json.dumps(dict(model.chat_template_args), sort_keys=True),
    }


def tokenize(model: LoadedModel, conversations: Sequence[Sequence[ChatTurn]]) -> list[list[int]]:
    """Prompt tokens of each conversation, chat template applied. Raises ValueError for one it cannot take."""
    if not model.tokenizer.has_chat_template:
        raise ValueError(f"{model.name} has no chat template: use a model that is tuned for conversations")
    return [_prompt(model, turns) for turns in conversations]


def _prompt(model: LoadedModel, turns: Sequence[ChatTurn]) -> list[int]:
    spoken = [{"role": turn.role, "content": turn.content} for turn in turns]
    try:
        return list(model.tokenizer.apply_chat_template(spoken, add_generation_prompt=True, **model.chat_template_args))
    except Exception as error:  # a template is a program of the model's maker
        raise ValueError(f"the chat template does not take this conversation: {error}") from error


def refuse(model: LoadedModel, requests: Sequence[Submit], here: set[int]) -> None:
    """Raises ValueError if one of the requests cannot be taken; `here` are the ids in the engine already."""
    seen = set(here)
    for request in requests:
        prompt, reply = len(request.tokens), request.max_tokens
        if request.id in seen:
            raise ValueError(f"request {request.id} is in the engine already")
        if not prompt or reply < 1:
            raise ValueError(f"request {request.id} needs a prompt and a reply of at least 1 token")
        if request.prefix > prompt:
            raise ValueError(f"request {request.id} shares {request.prefix} of its {prompt} prompt tokens")
        if prompt + reply > model.context:
            raise ValueError(
                f"request {request.id}: {prompt} prompt tokens and {reply} reply tokens "
                f"are over the model's context of {model.context}"
            )
        if not 0 <= min(request.tokens) <= max(request.tokens) < model.vocabulary:
            raise ValueError(
                f"request {request.id} has a token outside of the model's vocabulary of {model.vocabulary}"
            )
        seen.add(request.id)


def sampler_for(model: LoadedModel, sampling: Sampling) -> Sampler:
    """Equal parameters give the same object: only rows that share it are sampled in one call."""
    top_k = sampling.top_k if sampling.top_k < model.vocabulary else 0  # all of them: no restriction
    greedy = sampling.temperature == 0 or sampling.top_p == 0
    return _sampler(0.0, 1.0, 0) if greedy else _sampler(sampling.temperature, sampling.top_p, top_k)


@functools.lru_cache(maxsize=1_024)
def _sampler(temperature: float, top_p: float, top_k: int) -> Sampler:
    sampler: Sampler = make_sampler(temp=temperature, top_p=top_p, top_k=top_k)
    return sampler


def margins(logprobs: Sequence[Any]) -> list[float]:
    """Gap between the two best candidates' logits, for each row of log probabilities; its size is the row's doubt."""
    best = mx.topk(mx.stack(list(logprobs)).astype(mx.float32), 2, axis=-1)
    gaps: Any = mx.nan_to_num(mx.abs(best[:, 0] - best[:, 1]), nan=0.0, posinf=_WIDEST_MARGIN).tolist()
    return [float(gap) for gap in gaps]


def reply_row(request: Submit, text: TextStream, token: int, finish: str | None, gap: float | None) -> Row:
    """What a request gets from one step, in which `token` was chosen; a `finish` of "stop" says that it is the stop
    token, which is none of the reply. Text may lag behind its tokens, and ends before a stop string."""
    chosen: tuple[int, ...] = () if finish == "stop" else (token,)
    said = "".join([text.add(each) for each in chosen])
    if finish and not text.stopped:
        said += text.finish()
    if text.stopped:
        finish = "stop"
    asked = tuple(gap for _ in chosen if gap is not None) if request.margins else None
    return Row(request.id, chosen, said, finish, asked)
