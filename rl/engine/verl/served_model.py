"""Sample completions from verl's servers; the only part of verl that is used is one method of its server client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.agent.model_types import ChatCodec
from treadle.core.errors import EndpointUnavailable, ModelError
from treadle.core.llm.types import Completion, CompletionRequest


class VerlModel:
    """Model for one group; all requests carry the group's id, so that they share one server's prefix cache."""

    def __init__(self, client: Any, group_id: str, sampling: Mapping[str, Any], codec: ChatCodec) -> None:
        """Use verl's `LLMServerClient`, of which only `generate` is called, and its `sampling` parameters.

        Stop strings, lengths and seeds come from the rollout.
        """
        self._client = client
        self._group_id = group_id
        self._sampling = dict(sampling)
        self._codec = codec
        self._versions: list[int] = []

    def versions(self, unknown: int) -> tuple[int, int]:
        """Return the oldest and newest weights that answered, in verl's count; `unknown` if verl reports none."""
        return min(self._versions, default=unknown), max(self._versions, default=unknown)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return one completion; `deadline` is ignored, because model time does not count as a trajectory's time.

        Raises EndpointUnavailable if a server or Ray timed out or aborted the request, and ModelError.
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
        # Ray re-raises any exception of another process.
        except Exception as error:
            raise ModelError(f"verl's server failed: {type(error).__name__}: {error}") from error
        if output.stop_reason == "aborted":
            raise EndpointUnavailable("verl's server aborted the request")
        for name in ("min_global_steps", "max_global_steps"):
            if (version := output.extra_fields.get(name)) is not None:
                self._versions.append(int(version))
        return self._completion(request, list(output.token_ids), output.log_probs, loop.time() - began)

    def _completion(
        self, request: CompletionRequest, ids: list[int], logprobs: Sequence[float] | None, seconds: float
    ) -> Completion:
        # verl reports neither which stop string ended the completion nor whether one did.
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
