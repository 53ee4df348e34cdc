"""Generate completions with the vLLM engine that TRL runs in its own process, on the trainer's GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from treadle.core.chat import ChatTokenizer
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.rl.groups.branching import ENTROPY_WINDOW, position_entropy

_CANDIDATES = 10
"""Number of most likely tokens per position from which the entropy is computed."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class VllmGenerator:
    """Generator that uses `trainer.vllm_generation` of TRL 1.16, in its mode `colocate`."""

    def __init__(self, trainer: Any, codec: ChatTokenizer) -> None:
        self._trainer = trainer
        self._codec = codec

    def refresh(self) -> None:
        """Load the current weights into vLLM, unless it has them."""
        step = self._trainer.state.global_step
        if self._trainer._last_loaded_step != step:
            self._trainer.vllm_generation.sync_weights()
            self._trainer._last_loaded_step = step

    def generate(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Return completions in the order of the requests."""
        from vllm import SamplingParams

        started = time.monotonic()
        outputs = self._trainer.vllm_generation.llm.generate(
            [{"prompt_token_ids": list(request.prompt)} for request in requests],
            sampling_params=[SamplingParams(**_parameters(request)) for request in requests],
            use_tqdm=False,
        )
        seconds = time.monotonic() - started
        return [self._completion(output, seconds) for output in outputs]

    def _completion(self, output: Any, seconds: float) -> Completion:
        made = output.outputs[0]
        ids = tuple(made.token_ids)
        candidates = [{id_: entry.logprob for id_, entry in place.items()} for place in made.logprobs]
        return Completion(
            text=self._codec.decode(ids),
            token_ids=ids,
            finish_reason=made.finish_reason,
            stop_reason=made.stop_reason if isinstance(made.stop_reason, str) else None,
            prompt_tokens=len(output.prompt_token_ids),
            completion_tokens=len(ids),
            endpoint="policy",
            seconds=seconds,
            retries=0,
            logprobs=tuple(place[id_] for id_, place in zip(ids, candidates, strict=True)),
            entropies=tuple(position_entropy(place.values()) for place in candidates[:ENTROPY_WINDOW]),
        )


def _parameters(request: CompletionRequest) -> dict[str, Any]:
    return {
        "max_tokens": request.max_tokens,
        **{name: getattr(request.sampling, name) for name in _SAMPLING},
        "stop": list(request.stop),
        "include_stop_str_in_output": True,
        "seed": request.seed,
        "logprobs": _CANDIDATES,
    }
