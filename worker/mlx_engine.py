"""The engine that runs a real model, on mlx-lm's BatchGenerator as it is in mlx-lm 0.32.2.

No other module touches the insides of `mlx_lm.generate`, whose interface changes from release to release.
"""

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from protocol.messages import ChatTurn, Row, Sampling, Submit
from worker.blas import preload
from worker.engine import StepOutcome
from worker.models import LoadedModel, device
from worker.text import TextStream

preload(device())  # whoever imports this module first: MLX binds to the BLAS that is there when it loads

import mlx.core as mx  # noqa: E402
from mlx_lm.generate import BatchGenerator, StopSequences  # noqa: E402
from mlx_lm.sample_utils import make_sampler  # noqa: E402

Sampler = Callable[[Any], Any]
WarmUpCase = tuple[int, ...]

_CPU_WARM_UP_PROMPT = 32  # on a CPU nothing depends on a prompt's exact length, and reading is slow there
_WIDEST_MARGIN = 1e9


@dataclass(slots=True)
class _Flight:
    """A request in the generator."""

    id: int
    text: TextStream
    margins: bool
    read: int = 0


class MLXEngine:
    """An `Engine` on a loaded model: decodes all its rows together and reads prompts between two tokens.

    `seats` is the largest number of rows that decode at once (a `warm_up` may raise it), `prefill_batch` how many
    prompts are read together, and `prefill_step` how many tokens of each in one step. Every token that the model
    chose counts as the request's, also those that spell a stop string and are not in its text; the one exception
    is the stop token.
    """

    def __init__(self, model: LoadedModel, *, seats: int, prefill_step: int, prefill_batch: int) -> None:
        self._model = model
        self._seats = seats
        self._prefill_step = prefill_step
        self._prefill_batch = prefill_batch
        self._until_eos = StopSequences([[token] for token in sorted(model.tokenizer.eos_token_ids)])
        self._until_length = StopSequences()
        self._warm: set[WarmUpCase] = set()
        self._flights: dict[int, _Flight] = {}  # by the generator's own numbers
        self._uids: dict[int, int] = {}  # its number of each request
        self._generator = self._built()

    def _built(self) -> Any:
        return BatchGenerator(
            self._model.network,
            completion_batch_size=self._seats,
            prefill_batch_size=self._prefill_batch,
            prefill_step_size=self._prefill_step,
        )

    # --- what it is ------------------------------------------------------------------------------------------

    @property
    def context(self) -> int:
        return self._model.context

    @property
    def facts(self) -> dict[str, Any]:
        model = self._model
        return {
            "engine": "mlx",
            "model": model.name,
            "weights": model.weights,
            "context": model.context,
            "device": model.device,
            "dtype": model.dtype,
            "blas": model.blas.name,
            "blas_source": model.blas.source,
            "blas_settings": model.blas.settings,
            "blas_warning": model.blas.warning,
            "mlx": version("mlx"),
            "mlx_lm": version("mlx-lm"),
            "chat_template_args": json.dumps(dict(model.chat_template_args), sort_keys=True),
            "prefill_step": self._prefill_step,
            "prefill_batch": self._prefill_batch,
        }

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def peak_memory(self) -> int:
        return int(mx.get_peak_memory())

    # --- requests in and out ---------------------------------------------------------------------------------

    def tokenize(self, conversations: Sequence[Sequence[ChatTurn]]) -> list[list[int]]:
        if not self._model.tokenizer.has_chat_template:
            raise ValueError(f"{self._model.name} has no chat template: use a model that is tuned for conversations")
        return [self._prompt(turns) for turns in conversations]

    def _prompt(self, turns: Sequence[ChatTurn]) -> list[int]:
        spoken = [{"role": turn.role, "content": turn.content} for turn in turns]
        template = self._model.tokenizer.apply_chat_template
        try:
            return list(template(spoken, add_generation_prompt=True, **self._model.chat_template_args))
        except Exception as error:  # a template is a program of the model's maker
            raise ValueError(f"the chat template does not take this conversation: {error}") from error

    def insert(self, requests: Sequence[Submit]) -> None:
        self._refuse(requests)
        if not requests:
            return
        with mx.stream(self._generator.stream):
            uids = self._generator.insert(
                prompts=[list(request.tokens) for request in requests],
                max_tokens=[request.max_tokens for request in requests],
                samplers=[self._sampler(request.sampling) for request in requests],
                stop_sequences=[self._until_length if r.ignore_eos else self._until_eos for r in requests],
            )
        for uid, request in zip(uids, requests, strict=True):
            text = TextStream(self._model.tokenizer.detokenizer, request.stop)
            self._flights[uid] = _Flight(request.id, text, request.margins)
            self._uids[request.id] = uid

    def _refuse(self, requests: Sequence[Submit]) -> None:
        """Raises ValueError if one of the requests cannot be taken."""
        seen = set(self._uids)
        for request in requests:
            prompt, reply = len(request.tokens), request.max_tokens
            if request.id in seen:
                raise ValueError(f"request {request.id} is in the engine already")
            if not prompt or reply < 1:
                raise ValueError(f"request {request.id} needs a prompt and a reply of at least 1 token")
            if prompt + reply > self.context:
                raise ValueError(
                    f"request {request.id}: {prompt} prompt tokens and {reply} reply tokens "
                    f"are over the model's context of {self.context}"
                )
            if not 0 <= min(request.tokens) <= max(request.tokens) < self._model.vocabulary:
                raise ValueError(
                    f"request {request.id} has a token outside of the model's vocabulary of {self._model.vocabulary}"
                )
            seen.add(request.id)

    def _sampler(self, sampling: Sampling) -> Sampler:
        """Equal parameters give the same object: only rows that share it are sampled in one call."""
        top_k = sampling.top_k if sampling.top_k < self._model.vocabulary else 0  # all of them: no restriction
        greedy = sampling.temperature == 0 or sampling.top_p == 0
        return _sampler(0.0, 1.0, 0) if greedy else _sampler(sampling.temperature, sampling.top_p, top_k)

    def remove(self, ids: Iterable[int]) -> None:
        self._remove([self._uids[known] for known in ids if known in self._uids])

    def _remove(self, uids: Sequence[int]) -> None:
        if not uids:
            return
        with mx.stream(self._generator.stream):
            self._generator.remove(uids)
        for uid in set(uids):
            self._forget(uid)

    def _forget(self, uid: int) -> None:
        del self._uids[self._flights.pop(uid).id]

    # --- one step --------------------------------------------------------------------------------------------

    def step(self) -> StepOutcome:
        try:
            prompts, tokens = self._generator.next()
            for response in tokens:
                response.prompt_cache = None  # lazy: until it is dropped it keeps the whole batch's buffers
            margins = self._margins(tokens)
        except Exception as error:
            raise RuntimeError(f"MLX failed in a step: {type(error).__name__}: {error}") from error
        read = tuple(self._progress(response) for response in prompts)
        rows = tuple(self._row(response, margins) for response in tokens)
        self._remove([self._uids[row.id] for row in rows if row.finish and row.id in self._uids])
        return StepOutcome(len(tokens), read, rows)

    def _progress(self, response: Any) -> tuple[int, int]:
        """A request's id and its prompt tokens read in this step; the last one counts when its row starts to decode."""
        flight = self._flights[response.uid]
        before, flight.read = flight.read, response.progress[0]
        return flight.id, flight.read - before

    def _row(self, response: Any, margins: dict[int, float]) -> Row:
        """What a request got: text may lag behind its tokens, and ends before a stop string."""
        flight, finish = self._flights[response.uid], response.finish_reason
        chosen: tuple[int, ...] = () if finish == "stop" else (response.token,)
        text = "".join([flight.text.add(token) for token in chosen])
        if finish and not flight.text.stopped:
            text += flight.text.finish()
        if flight.text.stopped:
            finish = "stop"
        gaps = tuple(margins[response.uid] for _ in chosen) if flight.margins else None
        return Row(flight.id, chosen, text, finish, gaps)

    def _margins(self, responses: Sequence[Any]) -> dict[int, float]:
        """Gap between the two best candidates' logits, for the requests that asked; its size is the row's doubt."""
        asked = [response for response in responses if self._flights[response.uid].margins]
        if not asked:
            return {}
        with mx.stream(self._generator.stream):
            best = mx.topk(mx.stack([response.logprobs for response in asked]).astype(mx.float32), 2, axis=-1)
            gaps: Any = mx.nan_to_num(mx.abs(best[:, 0] - best[:, 1]), nan=0.0, posinf=_WIDEST_MARGIN).tolist()
        return {response.uid: float(gap) for response, gap in zip(asked, gaps, strict=True)}

    # --- its life --------------------------------------------------------------------------------------------

    def warm_up(self, seats: int, prompt_lengths: Sequence[int]) -> None:
        self._seats = max(self._seats, seats)
        self.reset()
        longest = min(self.context - 1, _CPU_WARM_UP_PROMPT if self._model.device == "cpu" else self.context)
        lengths = [min(length, longest) for length in prompt_lengths if length > 0]
        for case in warm_up_cases(seats, lengths, min(self._prefill_batch, seats)):
            if case not in self._warm:
                self._run_through(case)
                self._warm.add(case)
        self.reset()

    def _run_through(self, case: WarmUpCase) -> None:
        self.insert([Submit(n, "", (0,) * length, 1, True) for n, length in enumerate(case)])
        while self.in_flight:
            self.step()

    def reset(self) -> None:
        self.close()
        self._generator = self._built()
        mx.random.seed(0)  # so that a cell with sampling draws the same numbers whatever ran before it
        mx.reset_peak_memory()

    def close(self) -> None:
        if self._generator is not None:
            mx.synchronize(self._generator.stream)
            self._generator.close()  # gives back the wired limit, which the next one raises anew
        self._generator = None
        self._flights.clear()
        self._uids.clear()
        mx.clear_cache()


@functools.lru_cache(maxsize=1_024)
def _sampler(temperature: float, top_p: float, top_k: int) -> Sampler:
    sampler: Sampler = make_sampler(temp=temperature, top_p=top_p, top_k=top_k)
    return sampler


def warm_up_cases(seats: int, lengths: Sequence[int], together: int) -> list[WarmUpCase]:
    """Batches that between them show an engine the shapes it will meet; a case is the prompt length of each row.

    First the decode batches, doubling up to `seats`; then the shortest, middle and longest prompt, alone and
    `together`, the number of prompts that are read at once; then short and long ones together.
    """
    sizes = [*(2**power for power in range(seats.bit_length()) if 2**power < seats), seats]
    cases: list[WarmUpCase] = [(1,) * size for size in sizes]
    ordered = sorted(lengths)
    if not ordered:
        return cases
    for length in (ordered[0], ordered[len(ordered) // 2], ordered[-1]):
        cases += [(length,), (length,) * together]
    cases.append((ordered[0], *[ordered[-1]] * (together - 1)))
    return list(dict.fromkeys(cases))
