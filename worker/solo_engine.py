"""The engine for a quantized KV cache, which mlx-lm cannot batch: one request at a time, on the model itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.messages import ChatTurn, Submit
from worker.engine import CannotServe, StepOutcome
from worker.models import LoadedModel
from worker.options import NOT_BATCHED
from worker.serving import margins, model_facts, refuse, reply_row, sampler_for, tokenize
from worker.text import TextStream

import mlx.core as mx  # isort: skip (after the BLAS that comes with `serving`)
from mlx_lm.models.cache import KVCache, make_prompt_cache  # isort: skip

GROUP = 64
UNQUANTIZED = 16
_WARM_UP_PROMPT = 8


@dataclass(slots=True)
class _Solo:
    """The request in the engine: what is left of its prompt, and the tokens it has written."""

    request: Submit
    text: TextStream
    cache: list[Any]
    unread: tuple[int, ...]
    written: list[int] = field(default_factory=list)


class SoloEngine:
    """An `Engine` for one request at a time. Its KV cache takes `kv_bits` bits a number, 8 or 4, from the first chunk
    on; 16 leaves it as the model computes, so that runs with different bits differ in nothing else."""

    def __init__(self, model: LoadedModel, *, kv_bits: int, prefill_step: int) -> None:
        """Raises ValueError for a model whose cache cannot be quantized."""
        self._model, self._kv_bits, self._prefill_step = model, kv_bits, prefill_step
        self._stops = set(model.tokenizer.eos_token_ids)
        if kv_bits < UNQUANTIZED:
            _check_quantizable(model, kv_bits)
        self._solo: _Solo | None = None
        self._largest = 0

    # --- what it is ------------------------------------------------------------------------------------------

    @property
    def context(self) -> int:
        return self._model.context

    @property
    def facts(self) -> dict[str, Any]:
        return model_facts(self._model) | {
            "prefill_step": self._prefill_step,
            "kv_bits": self._kv_bits,
            "kv_bytes": self._largest or None,
        }

    @property
    def in_flight(self) -> int:
        return int(self._solo is not None)

    def peak_memory(self) -> int:
        return int(mx.get_peak_memory())

    # --- requests in and out ---------------------------------------------------------------------------------

    def tokenize(self, conversations: Sequence[Sequence[ChatTurn]]) -> list[list[int]]:
        return tokenize(self._model, conversations)

    def insert(self, requests: Sequence[Submit]) -> None:
        refuse(self._model, requests, {self._solo.request.id} if self._solo else set())
        if len(requests) + self.in_flight > 1:
            raise ValueError(f"{len(requests) + self.in_flight} requests at once: this engine serves one at a time")
        for request in requests:
            text = TextStream(self._model.tokenizer.detokenizer, request.stop)
            self._solo = _Solo(request, text, make_prompt_cache(self._model.network), request.tokens)

    def remove(self, ids: Iterable[int]) -> None:
        if self._solo is not None and self._solo.request.id in set(ids):
            self._solo = None
            mx.clear_cache()

    # --- one step --------------------------------------------------------------------------------------------

    def step(self) -> StepOutcome:
        """A chunk of the prompt or, once all but its last token are read, the next token of the reply."""
        solo = self._solo
        if solo is None:
            return StepOutcome(0, (), ())
        try:
            return self._read(solo) if len(solo.unread) > 1 else self._write(solo)
        except Exception as error:
            raise RuntimeError(f"MLX failed in a step: {type(error).__name__}: {error}") from error

    def _read(self, solo: _Solo) -> StepOutcome:
        size = min(self._prefill_step, len(solo.unread) - 1)
        chunk, solo.unread = solo.unread[:size], solo.unread[size:]
        self._run(solo, chunk)
        mx.eval([layer.state for layer in solo.cache])
        mx.clear_cache()
        return StepOutcome(0, ((solo.request.id, size),), ())

    def _write(self, solo: _Solo) -> StepOutcome:
        read = ((solo.request.id, 1),) if solo.unread else ()
        logits = self._run(solo, solo.unread or solo.written[-1:])[:, -1, :]
        solo.unread = ()
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        token = int(sampler_for(self._model, solo.request.sampling)(logprobs).item())
        gap = margins([logprobs[0]])[0] if solo.request.margins else None
        self._largest = max(self._largest, sum(layer.nbytes for layer in solo.cache))
        solo.written.append(token)
        row = reply_row(solo.request, solo.text, token, self._finish(solo), gap)
        if row.finish:
            self._solo = None
        return StepOutcome(1, read, (row,))

    def _finish(self, solo: _Solo) -> str | None:
        if solo.written[-1] in self._stops and not solo.request.ignore_eos:
            return "stop"
        return "length" if len(solo.written) == solo.request.max_tokens else None

    def _run(self, solo: _Solo, tokens: Sequence[int]) -> Any:
        """The model's logits; afterwards the cache is quantized if it is not yet, as mlx-lm does it."""
        logits = self._model.network(mx.array([list(tokens)]), cache=solo.cache)
        if self._kv_bits < UNQUANTIZED:
            solo.cache = [_quantized(layer, self._kv_bits) for layer in solo.cache]
        return logits

    # --- its life --------------------------------------------------------------------------------------------

    def warm_up(self, seats: int, prompt_lengths: Sequence[int]) -> None:
        if seats > 1:
            raise CannotServe(f"{NOT_BATCHED} (the router asked for {seats} seats)")
        self.insert([Submit(0, "", (0,) * _WARM_UP_PROMPT, 2, True)])
        while self.in_flight:
            self.step()
        self.reset()

    def reset(self) -> None:
        self._solo = None
        self._largest = 0
        mx.random.seed(0)
        mx.clear_cache()
        mx.reset_peak_memory()

    def close(self) -> None:
        self._solo = None


def _quantized(layer: Any, bits: int) -> Any:
    """A layer's cache in so many bits a number; one that has them already is left alone."""
    return layer.to_quantized(group_size=GROUP, bits=bits) if hasattr(layer, "to_quantized") else layer


def _check_quantizable(model: LoadedModel, kv_bits: int) -> None:
    """Raises ValueError: caches of other kinds cannot be quantized, nor heads that groups of 64 do not fit into."""
    cache = make_prompt_cache(model.network)
    kinds = {type(layer).__name__ for layer in cache if type(layer) is not KVCache}
    if kinds:
        raise ValueError(f"the KV cache of {model.name} ({', '.join(sorted(kinds))}) cannot be quantized")
    mx.eval(model.network(mx.array([[0]]), cache=cache))
    try:
        mx.eval([_quantized(layer, kv_bits).state for layer in cache])
    except ValueError as error:
        raise ValueError(f"the KV cache of {model.name} cannot be quantized: {str(error).splitlines()[0]}") from None
