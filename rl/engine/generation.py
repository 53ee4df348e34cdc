"""Generate completions for a batch of requests with the policy in training, using transformers on the CPU.

All sequences go through the model in one packed row, without padding. Keys and values are kept between the turns of a
trajectory and shared between sequences with a common prefix. A finished sequence leaves the batch. Apart from rounding,
a completion does not depend on the other requests.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.errors import Diverged
from treadle.core.errors import ConfigError
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.rl.engine.attention import Layout, packed, require_supported
from treadle.rl.engine.key_value_store import Decode, KeyValueStore, Prefill
from treadle.rl.groups.branching import ENTROPY_WINDOW

_PREFILL_TOKENS = 4096
"""Maximum number of tokens in one prefill pass; a single longer context gets a pass of its own."""
_MAX_CACHE_BYTES = 4 * 1024**3
"""Memory budget for keys and values, in bytes."""
_MAX_SEQUENCES = 256


class TokenSampler:
    """Tokens sampled so far for one request, with the random stream that decides the next one.

    The stream depends only on the request's seed, so a result does not depend on the rest of the batch.

    Attributes:
        ids: Sampled token ids.
        logprobs: Log-probability of each id at the request's temperature, before `top_p`, `top_k` or `min_p` apply.
        entropies: Entropy in nats at each position, for at least the first `ENTROPY_WINDOW` ones; empty if not
            requested.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self._stream = torch.Generator().manual_seed(seed)

    def uniform(self) -> float:
        """Return the next random number in [0, 1)."""
        return float(torch.rand((), dtype=torch.float64, generator=self._stream))


@dataclass(slots=True)
class _Sequence:
    """One request in progress."""

    request: CompletionRequest
    slot: int
    draw: TokenSampler
    finish_reason: str = ""
    stop_reason: str | None = None


class PolicyGenerator:
    """Generator that uses a transformers model with the weights that it has when `generate` is called."""

    def __init__(
        self,
        model: Any,
        codec: ChatTokenizer,
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        dtype: torch.dtype | None = None,
        with_entropies: bool = True,
    ) -> None:
        """Prepare generation; `model` may be wrapped by PEFT.

        `autocast` sets the precision of the computation, `dtype` that of keys and values. Set `with_entropies` to False
        if entropies are not needed. Raises ConfigError if the model's attention is not supported.
        """
        self._model = model
        self._inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        config = self._inner.config.get_text_config()
        require_supported(config)
        self._codec = codec
        self._autocast = autocast
        self._with_entropies = with_entropies
        self._vocab_size = min(codec.vocab_size, config.vocab_size)
        self._store = KeyValueStore(config, dtype or self._inner.dtype, self._inner.device)
        self._stop_ends: dict[tuple[str, ...], _StopEnds] = {}

    def clear_cache(self) -> None:
        """Drop all keys and values; call it when the weights have changed."""
        self._store.clear()

    def num_sequences(self, longest: int) -> int:
        """Return how many sequences of this length fit in a batch, limited by the memory for keys and values."""
        return max(1, min(_MAX_SEQUENCES, _MAX_CACHE_BYTES // (longest * self._store.bytes_per_token)))

    def generate(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Return completions with log-probabilities, in the order of the requests."""
        started = time.monotonic()
        was_training = self._inner.training
        self._model.eval()
        try:
            with torch.no_grad(), packed(self._inner), self._autocast():
                sequences = self._generate(requests)
        finally:
            self._model.train(was_training)
        seconds = time.monotonic() - started
        return [self._completion(sequence, seconds) for sequence in sequences]

    def _generate(self, requests: Sequence[CompletionRequest]) -> list[_Sequence]:
        contexts = [_ids_of(request) for request in requests]
        room = max(len(context) + request.max_tokens for context, request in zip(contexts, requests, strict=True))
        slots = self._store.assign(contexts, room)
        sequences = [
            _Sequence(request, slot, TokenSampler(request.sampling, request.seed))
            for request, slot in zip(requests, slots, strict=True)
        ]
        logits = self._prefill(contexts, slots)
        live = sequences
        while live:
            draw(logits, [sequence.draw for sequence in live], self._vocab_size, with_entropies=self._with_entropies)
            for sequence in live:
                self._check_finished(sequence)
            live = [sequence for sequence in live if not sequence.finish_reason]
            if live:
                logits = self._step(live)
        return sequences

    def _prefill(self, contexts: Sequence[list[int]], slots: Sequence[int]) -> torch.Tensor:
        """Run the model on the ids of each context whose keys and values are not in its slot yet, and store these.

        Equal contexts go through the model once. Returns the logits after each context, (contexts, vocabulary).
        """
        first: dict[tuple[int, ...], int] = {}
        leaders = [first.setdefault(tuple(context), index) for index, context in enumerate(contexts)]
        rows: dict[int, torch.Tensor] = {}
        for batch in self._batches(contexts, slots, sorted(set(leaders))):
            starts = [len(self._store.ids[slots[index]]) for index in batch]
            new = [contexts[index][start:] for index, start in zip(batch, starts, strict=True)]
            mine = [slots[index] for index in batch]
            layout = Prefill(self._store, mine, starts, [len(ids) for ids in new])
            logits = self._forward([id_ for ids in new for id_ in ids], layout.places, layout, layout.last)
            for row, index in enumerate(batch):
                rows[index] = logits[row]
                self._store.ids[slots[index]] = list(contexts[index])
        for index, leader in enumerate(leaders):
            if index != leader:
                self._store.copy(slots[leader], slots[index], len(contexts[index]))
        return torch.stack([rows[leader] for leader in leaders])

    def _batches(self, contexts: Sequence[list[int]], slots: Sequence[int], indices: Sequence[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        tokens = 0
        for index in indices:
            new = len(contexts[index]) - len(self._store.ids[slots[index]])
            if not batches or tokens + new > _PREFILL_TOKENS:
                batches.append([])
                tokens = 0
            batches[-1].append(index)
            tokens += new
        return batches

    def _step(self, live: Sequence[_Sequence]) -> torch.Tensor:
        """Run the model on the newest id of each sequence and return the logits."""
        ids = [sequence.draw.ids[-1] for sequence in live]
        lengths = [len(self._store.ids[sequence.slot]) for sequence in live]
        layout = Decode(self._store, [sequence.slot for sequence in live], lengths)
        logits = self._forward(ids, layout.places, layout, None)
        for sequence, id_ in zip(live, ids, strict=True):
            self._store.ids[sequence.slot].append(id_)
        return logits

    def _forward(
        self, ids: Sequence[int], places: torch.Tensor, layout: Layout, kept: Sequence[int] | None
    ) -> torch.Tensor:
        """Return the logits, (tokens, vocabulary), at the positions `kept`, or at all if it is None."""
        device = self._inner.device
        answer = self._model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=places[None],
            use_cache=False,
            layout=layout,
            logits_to_keep=0 if kept is None else torch.tensor(kept, device=device),
        )
        logits: torch.Tensor = answer.logits[0]
        return logits

    def _check_finished(self, sequence: _Sequence) -> None:
        """Set the finish reason if the newest id ends the completion."""
        ids, request = sequence.draw.ids, sequence.request
        if ids[-1] in self._codec.eos_ids:
            sequence.finish_reason = "stop"
            return
        ends = self._stop_ends.setdefault(request.stop, _StopEnds(self._codec, request.stop))
        if (stop := ends.find(ids)) is not None:
            sequence.finish_reason, sequence.stop_reason = "stop", stop
        elif len(ids) >= request.max_tokens:
            sequence.finish_reason = "length"

    def _completion(self, sequence: _Sequence, seconds: float) -> Completion:
        made = sequence.draw
        return Completion(
            text=self._codec.decode(made.ids),
            token_ids=tuple(made.ids),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            prompt_tokens=len(sequence.request.prompt),
            completion_tokens=len(made.ids),
            endpoint="policy",
            seconds=seconds,
            retries=0,
            logprobs=tuple(made.logprobs),
            entropies=tuple(made.entropies) if self._with_entropies else None,
        )


class _StopEnds:
    """Detector of completed stop strings; it decodes the last tokens only if the newest one can complete a string."""

    def __init__(self, codec: ChatTokenizer, stops: Sequence[str]) -> None:
        self._codec = codec
        self._stops = stops
        self._lasts = {stop[-1] for stop in stops}
        self._window = max((len(stop.encode()) for stop in stops), default=0)
        self._texts: dict[int, str] = {}

    def find(self, ids: Sequence[int]) -> str | None:
        """Return the stop string that the newest id completes or contains, if any."""
        newest = self._texts.get(ids[-1])
        if newest is None:
            newest = self._texts.setdefault(ids[-1], self._codec.decode([ids[-1]]))
        if self._lasts.isdisjoint(newest):
            return None
        # Nearly every token has at least one byte, so this tail covers the longest stop string. Earlier tokens cannot
        # contain a whole stop string: generation would have ended there.
        tail = self._codec.decode(list(ids[-self._window - 1 :]))
        recent = tail[-(len(newest) + self._window) :]
        return next((stop for stop in self._stops if stop in recent), None)


def _ids_of(request: CompletionRequest) -> list[int]:
    if isinstance(request.prompt, str) or not request.prompt:
        raise ConfigError("the policy in training completes token ids only")
    return list(request.prompt)


def draw(
    logits: torch.Tensor, draws: Sequence[TokenSampler], vocab_size: int, *, with_entropies: bool = True
) -> list[int]:
    """Sample one token for each sequence and return the ids.

    `logits` has the shape (sequences, at least vocab_size); ids from vocab_size on are never sampled. Raises Diverged
    if the logits contain nan or inf.
    """
    scores = logits[:, :vocab_size].float()
    temperatures = [one.sampling.temperature or 1.0 for one in draws]
    if any(temperature != 1.0 for temperature in temperatures):
        scores = scores / torch.tensor(temperatures, device=scores.device)[:, None]
    logprobs = scores.log_softmax(-1)
    probabilities = logprobs.exp()
    if not torch.isfinite(probabilities.sum()):
        raise Diverged("the policy's logits contain nan or inf")
    chosen = _choose(probabilities, draws).to(logits.device)
    taken = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    if with_entropies and any(len(one.ids) < ENTROPY_WINDOW for one in draws):
        for one, entropy in zip(draws, torch.special.entr(probabilities).sum(-1).tolist(), strict=True):
            one.entropies.append(entropy)
    ids: list[int] = chosen.tolist()
    for one, id_, logprob in zip(draws, ids, taken, strict=True):
        one.ids.append(id_)
        one.logprobs.append(logprob)
    return ids


def _choose(probabilities: torch.Tensor, draws: Sequence[TokenSampler]) -> torch.Tensor:
    chosen = torch.empty(len(draws), dtype=torch.long)
    plain = [row for row, one in enumerate(draws) if one.sampling.temperature > 0 and _is_plain(one.sampling)]
    if plain:
        values = probabilities[plain].cpu().double().cumsum(-1)
        points = torch.tensor([draws[row].uniform() for row in plain], dtype=torch.float64) * values[:, -1]
        # The first id whose cumulative probability exceeds the point; its own probability is never 0.
        chosen[plain] = torch.searchsorted(values, points[:, None], right=True)[:, 0].clamp_max(values.shape[1] - 1)
    for row in sorted({*range(len(draws))} - {*plain}):
        chosen[row] = _choose_one(probabilities[row], draws[row])
    return chosen


def _is_plain(sampling: Sampling) -> bool:
    return sampling.top_p >= 1 and sampling.top_k <= 0 and sampling.min_p <= 0


def _choose_one(probabilities: torch.Tensor, one: TokenSampler) -> int:
    """Sample one id with `top_p`, `top_k` and `min_p`, or return the most likely id at temperature 0."""
    sampling = one.sampling
    if sampling.temperature == 0:
        return int(probabilities.argmax())
    values, ids = probabilities.double().sort(descending=True, stable=True)
    sums = values.cumsum(-1)
    # The mass before an id decides, so the most likely id is always kept.
    kept = (sums - values < sampling.top_p) & (values >= sampling.min_p * values[0])
    if sampling.top_k > 0:
        kept[sampling.top_k :] = False
    sums = torch.where(kept, values, 0.0).cumsum(-1)
    point = one.uniform() * sums[-1]
    place = torch.searchsorted(sums, point, right=True).clamp_max(int(kept.sum()) - 1)
    return int(ids[place])
