"""verl's client of its servers, played by a scripted generator: no verl and no pytest needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.agent.model_types import ChatCodec
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed

Script = Callable[[CompletionRequest], Completion]


@dataclass
class StubOutput:
    """The fields of verl's `TokenOutput` that a loop may read."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    stop_reason: str | None = "completed"
    extra_fields: dict[str, Any] = field(default_factory=dict)


class StubClient:
    """Answers by a script; notes ids and sampling parameters of every request."""

    def __init__(self, script: Script, make_output: Callable[..., Any] = StubOutput, *, version: int = 4) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._script = script
        self._make_output = make_output
        self._version = version

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """Generate like verl's client, as far as a text-only loop can observe."""
        self.requests.append((request_id, sampling_params))
        request = CompletionRequest(
            prompt=list(prompt_ids),
            max_tokens=sampling_params["max_tokens"],
            sampling=Sampling(temperature=sampling_params["temperature"]),
            stop=tuple(sampling_params["stop"]),
            seed=sampling_params["seed"],
        )
        answer = self._script(request)
        versions = {"min_global_steps": self._version, "max_global_steps": self._version}
        logprobs = list(answer.logprobs) if sampling_params.get("logprobs") and answer.logprobs is not None else None
        return self._make_output(
            token_ids=list(answer.token_ids or ()),
            log_probs=logprobs,
            stop_reason="completed",
            extra_fields=versions,
        )


def caller(codec: ChatCodec, calls: dict[int, int], call: str, answer: str) -> Script:
    """Return a model that makes the number of calls that `calls` has for its seed, then answers."""
    turns = {derive_seed(seed, turn): call for seed, number in calls.items() for turn in range(number)}
    last = {derive_seed(seed, number): answer for seed, number in calls.items()}

    def script(request: CompletionRequest) -> Completion:
        text = {**turns, **last}[request.seed]
        ids = codec.encode(text)
        return Completion(
            text, tuple(ids), "stop", None, len(request.prompt), len(ids), "stub", 0.0, 0, tuple(-0.5 for _ in ids)
        )

    return script
