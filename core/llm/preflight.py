"""What must hold before the first request of a run: endpoints answer, serve the model, and agree with the config."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.core.errors import ConfigError, EndpointUnavailable
from treadle.core.llm.client import HttpClient, Target
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.types import CompletionRequest, ServerFacts
from treadle.core.llm.wire import Failure, completion_body, excerpt, failure_of, parse_completion

PROBE_IDS = [0]
"""Prompt of the probing completion: an id that every vocabulary has."""
PROBE_TEXT = "Hi"
_GREEDY = Sampling(temperature=0.0, top_p=1.0, max_tokens=1)
_NO_ROUTE = (404, 405, 501)
_STEP_TIME_S = 60.0
"""Most time for one token, on a server that may be busy with the work of others."""
_SILENCES = 2
"""Attempts without an answer after which a server is said to be silent, if the next one meets the same."""


@dataclass(frozen=True, slots=True)
class _Found:
    max_model_len: int | None
    token_ids: bool


async def inspect_endpoints(
    http: HttpClient,
    name: str,
    settings: ModelSettings,
    targets: Sequence[Target],
    sleep: Callable[[float], Awaitable[object]],
) -> ServerFacts:
    """Inspect all endpoints of a model at once; raises ConfigError or EndpointUnavailable naming the first bad one."""
    inspections = [_Inspection(http, name, settings, target, sleep).run() for target in targets]
    results = await asyncio.gather(*inspections, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    found = [result for result in results if isinstance(result, _Found)]
    windows = [item.max_model_len for item in found if item.max_model_len is not None]
    token_ids = all(item.token_ids for item in found) and settings.token_ids != "off"
    if settings.token_ids == "required" and not token_ids:
        bad = [target.url for target, item in zip(targets, found, strict=True) if not item.token_ids]
        raise ConfigError(f'models.{name}: token_ids = "required", but {", ".join(bad)} does not return token ids')
    return ServerFacts(
        model=settings.model,
        max_model_len=settings.max_model_len or min(windows, default=None),
        token_ids=token_ids,
        endpoints=tuple(target.url for target in targets),
    )


class _Inspection:
    """One endpoint's preflight. Passing troubles are tried again; a refused connection is not."""

    def __init__(
        self,
        http: HttpClient,
        name: str,
        settings: ModelSettings,
        target: Target,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self._http = http
        self._name = name
        self._settings = settings
        self._target = target
        self._sleep = sleep
        self._where = f"models.{name}: endpoint {target.url}"
        self._listed = False

    async def run(self) -> _Found:
        try:
            window = await self._with_retries(self._check_model)
            token_ids = await self._with_retries(self._check_completion)
        except Failure as failure:
            raise self._explain(failure) from failure
        wanted = self._settings.max_model_len
        if window is not None and wanted is not None and wanted > window:
            raise ConfigError(
                f"{self._where} serves a window of {window} tokens, fewer than max_model_len = {wanted}; "
                "lower max_model_len or start the server with a larger window"
            )
        return _Found(window, token_ids)

    async def _with_retries(self, step: Callable[[], Awaitable[Any]]) -> Any:
        for attempt in range(self._settings.retry_limit + 1):
            try:
                return await self._in_time(step)
            except Failure as failure:
                passing = failure.kind in ("server", "reset", "malformed", "rate_limit", "timeout")
                last = (
                    min(self._settings.retry_limit, _SILENCES)
                    if failure.kind == "timeout"
                    else self._settings.retry_limit
                )
                if not passing or attempt >= last:
                    raise
                pause = min(self._settings.backoff_max_s, self._settings.backoff_base_s * 2**attempt)
                await self._sleep(max(pause, failure.retry_after_s or 0.0))
        raise AssertionError("the last attempt returns or raises")

    async def _in_time(self, step: Callable[[], Awaitable[Any]]) -> Any:
        limit_s = min(_STEP_TIME_S, self._settings.request_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                return await step()
        except TimeoutError:
            raise Failure("timeout", f"no answer within {limit_s:g} s") from None

    async def _check_model(self) -> int | None:
        """The served window; raises ConfigError if the model is not among those listed."""
        status, headers, data = await self._http.get(self._target.models, self._target.headers)
        if status in _NO_ROUTE:
            return None
        if status != 200:
            raise failure_of(status, headers, data)
        try:
            cards = {str(card["id"]): card for card in orjson.loads(data)["data"]}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise Failure("malformed", f"/models does not list models: {excerpt(data)}") from None
        card = cards.get(self._settings.model)
        if card is None:
            served = excerpt(", ".join(sorted(cards)).encode("utf-8", "replace"))
            raise ConfigError(f"{self._where} does not serve model {self._settings.model!r}; it serves: {served}")
        self._listed = True
        window = card.get("max_model_len")
        return window if type(window) is int and window > 0 else None

    async def _check_completion(self) -> bool:
        """Whether ids go in and out; raises Failure if the server completes nothing."""
        if self._settings.token_ids != "off":
            try:
                return await self._complete(PROBE_IDS)
            except Failure as failure:
                if failure.kind != "refused":
                    raise
        await self._complete(PROBE_TEXT)
        return False

    async def _complete(self, prompt: list[int] | str) -> bool:
        request = CompletionRequest(prompt, max_tokens=1, sampling=_GREEDY, stop=(), seed=0)
        body = completion_body(self._settings.model, request, want_ids=isinstance(prompt, list))
        status, headers, data = await self._http.post(self._target.completions, body, self._target.headers)
        if status in _NO_ROUTE and self._listed:
            raise ConfigError(
                f"{self._where} lists the model, but {self._target.completions} answers HTTP {status}: Treadle asks "
                "every model for completions of a prompt, which chat-only services lack; name a server that has them, "
                "such as vLLM"
            )
        if status != 200:
            raise failure_of(status, headers, data)
        return parse_completion(data).token_ids is not None

    def _explain(self, failure: Failure) -> ConfigError | EndpointUnavailable:
        if failure.kind in ("connect", "reset", "timeout"):
            return EndpointUnavailable(
                f"{self._where} cannot be reached: {failure}; start the server or correct the URL"
            )
        if failure.kind in ("server", "rate_limit"):
            return EndpointUnavailable(f"{self._where} does not work: {failure}")
        if failure.kind == "malformed":
            return ConfigError(f"{self._where} does not speak the OpenAI API: {failure}")
        return ConfigError(f"{self._where} refused the preflight request: {failure}")
