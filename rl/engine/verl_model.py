"""verl's inference servers as a model for rollouts: ids in, ids and log-probabilities out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from treadle.agent.rollout import ChatCodec
from treadle.core.errors import EndpointUnavailable, ModelError
from treadle.core.llm.types import Completion, CompletionRequest


class Client(Protocol):
    """The one method of verl's `LLMServerClient` that is used."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """A `TokenOutput`: token_ids, log_probs, stop_reason, extra_fields."""
        ...


class VerlModel:
    """The policy, for one group: all its requests carry the group's id, so that one server's prefix cache has them."""

    def __init__(self, client: Client, group_id: str, sampling: Mapping[str, Any], codec: ChatCodec) -> None:
        """`sampling`: verl's parameters, which say how to draw; stop strings, lengths and seeds are the rollout's."""
        self._client = client
        self._group_id = group_id
        self._sampling = dict(sampling)
        self._codec = codec
        self._versions: list[int] = []

    def versions(self, unknown: int) -> tuple[int, int]:
        """Oldest and newest weights that answered, in verl's count; `unknown` where it does not say."""
        return min(self._versions, default=unknown), max(self._versions, default=unknown)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """One completion; waiting for it uses up no trajectory's time, so `deadline` plays no part.

        Raises EndpointUnavailable where a server or Ray timed out or broke it off, and ModelError.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not isinstance(request.prompt, list):
            raise ModelError("verl's servers take token ids only")
        parameters = {
            **self._sampling,
            "stop": list(request.stop),
            "include_stop_str_in_output": True,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
        }
        try:
            output = await self._client.generate(self._group_id, prompt_ids=request.prompt, sampling_params=parameters)
        except TimeoutError as error:
            raise EndpointUnavailable(f"verl's server did not answer: {type(error).__name__}: {error}") from error
        # Ray hands on whatever was raised in another process.
        except Exception as error:
            raise ModelError(f"verl's server failed: {type(error).__name__}: {error}") from error
        if output.stop_reason == "aborted":
            raise EndpointUnavailable("verl's server broke the request off")
        for name in ("min_global_steps", "max_global_steps"):
            if (version := output.extra_fields.get(name)) is not None:
                self._versions.append(int(version))
        return self._completion(request, list(output.token_ids), output.log_probs, loop.time() - began)

    def _completion(
        self, request: CompletionRequest, ids: list[int], logprobs: Sequence[float] | None, seconds: float
    ) -> Completion:
        # verl does not say what ended it: neither which stop string, nor whether any.
        ended = bool(ids) and ids[-1] in self._codec.eos_ids
        text = self._codec.decode(ids[:-1] if ended else ids)
        stop = next((stop for stop in request.stop if text.endswith(stop)), None)
        full = len(ids) >= request.max_tokens and stop is None and not ended
        return Completion(
            text=text,
            token_ids=tuple(ids),
            finish_reason="length" if full else "stop",
            stop_reason=stop,
            prompt_tokens=len(request.prompt),
            completion_tokens=len(ids),
            endpoint="verl",
            seconds=seconds,
            retries=0,
            logprobs=tuple(map(float, logprobs)) if logprobs is not None else None,
        )
