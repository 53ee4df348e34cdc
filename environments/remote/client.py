"""Call an environment service; retry only requests that the service will not carry out twice."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from multidict import CIMultiDict
from yarl import URL

from treadle.core.llm.client import HttpClient, key_of
from treadle.core.llm.failures import Failure, parse_retry_after
from treadle.core.work_clock import work_clock
from treadle.environments.remote.replies import (
    ServiceRefused,
    ServiceState,
    ServiceUnavailable,
    data_of,
    score_of,
    state_of,
    task_ids,
)
from treadle.environments.remote.settings import ServiceSettings

_log = logging.getLogger(__name__)

_PROFILE = "/get_env_profile"
_CONNECT_TIMEOUT_S = 10.0
_MAX_REPLY_BYTES = 64 << 20
_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 15.0
_MAX_ASKED_PAUSE_S = 60.0
"""Longest pause that a service may ask for."""
_RELEASE_S = 15.0
"""Seconds that a release may take; if it fails, the service ends the instance when it has been idle for long."""

Sleep = Callable[[float], Awaitable[object]]


class ServiceClient:
    """Connections to one service, shared by all episodes of a process.

    Calls raise ServiceRefused, ServiceUnavailable, InstanceLost and ReplyUnusable. They stop the work clock: their time
    does not count towards the time limit of a rollout.

    Attributes:
        keeps_replies: Whether the service answers a repeated `request_id` with its stored reply. Other services would
            carry out a repeated step twice, so there a step is retried only if the service did not begin it.
    """

    def __init__(self, settings: ServiceSettings, *, sleep: Sleep = asyncio.sleep) -> None:
        """Prepare; tests replace `sleep`."""
        self._settings = settings
        self._base = URL(settings.url)
        self._sleep = sleep
        self._random = random.Random()
        self._http: HttpClient | None = None
        self._headers: CIMultiDict[str] = CIMultiDict({"Content-Type": "application/json"})
        self.keeps_replies = False

    async def __aenter__(self) -> ServiceClient:
        """Connect. Raises ConfigError for a missing API key, and the errors of calls."""
        if self._settings.api_key_env is not None:
            self._headers["Authorization"] = f"Bearer {key_of(self._settings.api_key_env, 'environment.url')}"
        self._http = HttpClient(_CONNECT_TIMEOUT_S, _MAX_REPLY_BYTES)
        try:
            self.keeps_replies = b'"request_id"' in await self._schema()
        except BaseException:
            await self._http.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def profile(self, split: str) -> list[str]:
        """Return the ids of the tasks of a split."""
        data = await self._call(_PROFILE, {"params": {**self._settings.params, "split": split}})
        return task_ids(self._place(_PROFILE), data)

    async def create(self, task_id: str, instance_id: str, params: Mapping[str, Any]) -> ServiceState:
        """Create an instance; a retry replaces the instance of the request whose reply was lost."""
        body = {
            "task_id": task_id,
            "instance_id": instance_id,
            "request_id": instance_id,
            "params": {**self._settings.params, **params, "replace": True},
        }
        return state_of(self._place("/create"), await self._call("/create", body), is_first=True)

    async def step(self, instance_id: str, request_id: str, message: Mapping[str, Any]) -> ServiceState:
        """Send the model's message; return the next state. A service that keeps replies acts once per `request_id`."""
        body = {
            "instance_id": instance_id,
            "request_id": request_id,
            "messages": message,
            "params": self._settings.params,
        }
        data = await self._call("/step", body, repeats=self.keeps_replies)
        return state_of(self._place("/step"), data, is_first=False)

    async def evaluate(self, instance_id: str) -> float:
        """Return the score of an instance."""
        params = {**self._settings.params, "sparse": self._settings.sparse}
        data = await self._call("/evaluate", {"instance_id": instance_id, "params": params})
        return score_of(self._place("/evaluate"), data, sparse=self._settings.sparse)

    async def release(self, instance_id: str) -> None:
        """End an instance; one that the service no longer has is no error."""
        async with asyncio.timeout(_RELEASE_S):
            await self._call("/release", {"instance_id": instance_id})

    def _place(self, path: str) -> str:
        return f"environment service, {self._base}{path}"

    async def _schema(self) -> bytes:
        """Return the service's OpenAPI schema, which shows whether it takes a `request_id`; empty if it has none."""
        reply = await self._repeated("/openapi.json", None, repeats=True)
        return reply[1] if reply[0] == 200 else b""

    async def _call(self, path: str, body: Mapping[str, Any], *, repeats: bool = True) -> Any:
        env_type = {"env_type": self._settings.env_type} if self._settings.env_type is not None else {}
        with work_clock().hold():
            status, data = await self._repeated(path, orjson.dumps({**env_type, **body}), repeats=repeats)
        return data_of(self._place(path), status, data, is_of_instance=path != _PROFILE)

    async def _repeated(self, path: str, body: bytes | None, *, repeats: bool) -> tuple[int, bytes]:
        """Send a request, with up to `retry_limit` retries; return status and body of the answer.

        Without `repeats`, retry only if the service did not begin to act: no connection, or status 429.
        """
        failures, pause_s, place = 0, _FIRST_PAUSE_S, self._place(path)
        while True:
            asked_s, may_repeat = 0.0, repeats
            try:
                status, headers, data = await self._sent(path, body)
            except Failure as failure:
                if failure.kind == "refused":
                    raise ServiceRefused(f"{place}: {failure}") from None
                hint = "; start the service, or correct its `url`" if failure.kind == "connect" else ""
                error = ServiceUnavailable(f"{place}: {failure}{hint}")
                may_repeat = repeats or failure.kind == "connect"
            else:
                if status not in (429, 503):
                    return status, data
                error = ServiceUnavailable(f"{place}: HTTP {status}, the service is full or stopping")
                asked_s = min(parse_retry_after(headers.get("Retry-After")) or 0.0, _MAX_ASKED_PAUSE_S)
                may_repeat = repeats or status == 429  # a proxy may say 503 after the service has acted
            failures += 1
            if failures > self._settings.retry_limit or not may_repeat:
                raise error
            _log.info("%s; it is asked again", error)
            await self._sleep(max(asked_s, pause_s * self._random.uniform(0.5, 1.0)))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _sent(self, path: str, body: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        assert self._http is not None
        url = self._base / path.lstrip("/")
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                if body is None:
                    return await self._http.get(url, self._headers)
                return await self._http.post(url, body, self._headers)
        except TimeoutError:
            raise Failure("timeout", f"no answer in {self._settings.timeout_s:g} s") from None
