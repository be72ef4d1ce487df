"""The engine that runs a real model, on mlx-lm's BatchGenerator as it is in mlx-lm 0.32.2.

No other module touches the insides of `mlx_lm.generate`, whose interface changes from release to release.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.messages import ChatTurn, Row, Submit
from worker.engine import StepOutcome
from worker.models import LoadedModel
from worker.prefix_cache import PrefixCache
from worker.serving import margins, model_facts, refuse, reply_row, sampler_for, tokenize
from worker.shared_prefixes import Boarding, SharedPrefixes, shared_start
from worker.text import TextStream

import mlx.core as mx  # isort: skip (after the BLAS that comes with `serving`)
from mlx_lm.generate import BatchGenerator, StopSequences  # isort: skip
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache  # isort: skip

WarmUpCase = tuple[int, ...]

_CPU_WARM_UP_PROMPT = 32  # on a CPU nothing depends on a prompt's exact length, and reading is slow there


@dataclass(slots=True)
class _Flight:
    """A request in the generator. Its first `keep` tokens are kept for others once they are read."""

    request: Submit
    text: TextStream
    reused: int = 0
    keep: int = 0
    read: int = 0

    @property
    def id(self) -> int:
        return self.request.id


class MLXEngine:
    """An `Engine` on a loaded model: decodes all its rows together and reads prompts between two tokens.

    `seats` is the largest number of rows that decode at once (a `warm_up` may raise it), `prefill_batch` how many
    prompts are read together, and `prefill_step` how many tokens of each in one step. The caches of shared starts
    take `prefix_bytes` at most; 0 keeps none. Every token that the model chose counts as the request's, also those
    that spell a stop string and are not in its text; the one exception is the stop token.
    """

    def __init__(
        self, model: LoadedModel, *, seats: int, prefill_step: int, prefill_batch: int, prefix_bytes: int = 0
    ) -> None:
        self._model = model
        self._seats = seats
        self._prefill_step = prefill_step
        self._prefill_batch = prefill_batch
        self._until_eos = StopSequences([[token] for token in sorted(model.tokenizer.eos_token_ids)])
        self._until_length = StopSequences()
        self._warm: set[WarmUpCase] = set()
        self._flights: dict[int, _Flight] = {}  # by the generator's own numbers
        self._uids: dict[int, int] = {}  # its number of each request
        self._prefixes = SharedPrefixes(PrefixCache(prefix_bytes))
        self._reused: list[tuple[int, int]] = []
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
        return model_facts(self._model) | {
            "prefill_step": self._prefill_step,
            "prefill_batch": self._prefill_batch,
            "prefix_capacity_bytes": self._prefixes.kept.capacity,
            "prefix_bytes": self._prefixes.kept.bytes,
            "prefix_hits": self._prefixes.hits,
            "prefix_misses": self._prefixes.misses,
            "prefix_evicted": self._prefixes.kept.evicted,
        }

    @property
    def in_flight(self) -> int:
        return len(self._flights) + len(self._prefixes.waiting)

    def peak_memory(self) -> int:
        return int(mx.get_peak_memory())

    # --- requests in and out ---------------------------------------------------------------------------------

    def tokenize(self, conversations: Sequence[Sequence[ChatTurn]]) -> list[list[int]]:
        return tokenize(self._model, conversations)

    def insert(self, requests: Sequence[Submit]) -> None:
        refuse(self._model, requests, set(self._uids) | self._prefixes.waiting)
        self._board(self._prefixes.board(requests))

    def _board(self, boardings: Sequence[Boarding]) -> None:
        """Into the generator, all of them at once; caches are copied there."""
        if not boardings:
            return
        requests = [boarding.request for boarding in boardings]
        caches = [_own(boarding) for boarding in boardings]
        reused = [b.reused if cache is not None else 0 for b, cache in zip(boardings, caches, strict=True)]
        with mx.stream(self._generator.stream):
            uids = self._generator.insert_segments(
                segments=[_segments(b, skip) for b, skip in zip(boardings, reused, strict=True)],
                max_tokens=[request.max_tokens for request in requests],
                caches=caches,
                all_tokens=[list(r.tokens[:skip]) for r, skip in zip(requests, reused, strict=True)],
                samplers=[sampler_for(self._model, request.sampling) for request in requests],
                stop_sequences=[self._until_length if r.ignore_eos else self._until_eos for r in requests],
            )
        for uid, boarding, skip in zip(uids, boardings, reused, strict=True):
            request = boarding.request
            text = TextStream(self._model.tokenizer.detokenizer, request.stop)
            self._flights[uid] = _Flight(request, text, skip, boarding.keep)
            self._uids[request.id] = uid
            self._reused += [(request.id, skip)] if skip else []

    def remove(self, ids: Iterable[int]) -> None:
        gone = set(ids)
        self._prefixes.remove(gone)
        self._remove([self._uids[known] for known in gone if known in self._uids])

    def _remove(self, uids: Sequence[int]) -> None:
        if not uids:
            return
        with mx.stream(self._generator.stream):
            self._generator.remove(uids)
        for uid in set(uids):
            flight = self._flights.pop(uid)
            del self._uids[flight.id]
            if flight.keep:
                self._board(self._prefixes.given_up(shared_start(flight.request)))

    # --- one step --------------------------------------------------------------------------------------------

    def step(self) -> StepOutcome:
        try:
            prompts, tokens = self._generator.next()
            for response in tokens:
                response.prompt_cache = None  # lazy: until it is dropped it keeps the whole batch's buffers
            gaps = self._margins(tokens)
        except Exception as error:
            raise RuntimeError(f"MLX failed in a step: {type(error).__name__}: {error}") from error
        read = tuple(self._progress(response) for response in prompts)
        reused, self._reused = [(id, tokens) for id, tokens in self._reused if id in self._uids], []
        rows = tuple(self._row(response, gaps) for response in tokens)
        self._remove([self._uids[row.id] for row in rows if row.finish and row.id in self._uids])
        return StepOutcome(len(tokens), read, rows, tuple(reused))

    def _progress(self, response: Any) -> tuple[int, int]:
        """A request's id and its prompt tokens read in this step; the last one counts when its row starts to decode."""
        flight = self._flights[response.uid]
        before, flight.read = flight.read, response.progress[0]
        if flight.keep and flight.reused + flight.read >= flight.keep:
            self._keep(response.uid, flight)
        return flight.id, flight.read - before

    def _keep(self, uid: int, flight: _Flight) -> None:
        """The end of a shared start, where the generator stops reading for one step: keep what was read so far."""
        flight.keep = 0
        with mx.stream(self._generator.stream):
            cache, _ = self._generator.extract_cache([uid])[uid]
            mx.eval([layer.state for layer in cache])
        size = sum(layer.nbytes for layer in cache)
        self._board(self._prefixes.read(shared_start(flight.request), cache, size))

    def _row(self, response: Any, gaps: dict[int, float]) -> Row:
        flight = self._flights[response.uid]
        return reply_row(flight.request, flight.text, response.token, response.finish_reason, gaps.get(response.uid))

    def _margins(self, responses: Sequence[Any]) -> dict[int, float]:
        """By the generator's numbers, for the requests that asked."""
        asked = [response for response in responses if self._flights[response.uid].request.margins]
        if not asked:
            return {}
        with mx.stream(self._generator.stream):
            gaps = margins([response.logprobs for response in asked])
        return dict(zip([response.uid for response in asked], gaps, strict=True))

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
        self._prefixes.clear()
        self._reused.clear()
        mx.clear_cache()


def _segments(boarding: Boarding, skip: int) -> list[list[int]]:
    """The prompt without its first `skip` tokens, cut where the generator is to pause so that its cache can be kept."""
    tokens, cut = boarding.request.tokens, max(skip, boarding.keep)
    return [list(tokens[skip:cut]), list(tokens[cut:])]


def _own(boarding: Boarding) -> Any:
    """The cache that a request brings, without surplus tokens; None if there is none, or none that can be cut."""
    if not boarding.surplus:
        return boarding.cache
    if not can_trim_prompt_cache(boarding.cache):
        return None
    shorter = copy.deepcopy(boarding.cache)
    trim_prompt_cache(shorter, boarding.surplus)
    return shorter


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
