"""A retrieval service on loopback whose answers are scripted, and a client of it that does not sleep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web

from treadle.retriever.client import TRIAL_QUERY, ServiceClient, ServiceClientSettings

FOUND = [[{"id": "7", "contents": "Title\nText\nmore"}, {"id": "8", "contents": "bare"}], [2.0, 1.5]]
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class Service:
    """Answers searches with a script; the last answer is repeated. `None` cuts the connection, "hang" never answers.

    The search with which a client probes a service without a fingerprint gets `trial`, and is not in `asked`.
    """

    def __init__(
        self,
        *script: Answer | str | None,
        info: Answer = (200, {"fingerprint": "abc"}),
        trial: Answer | str | None = (200, FOUND),
    ) -> None:
        self.script = list(script or [(200, FOUND)])
        self.trial = [trial]
        self.tried: list[dict[str, Any]] = []
        self.info = [info]
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.url = ""
        self.freed = asyncio.Event()

    async def on_info(self, request: web.Request) -> web.StreamResponse:
        return await self._say(request, self.info[0] if len(self.info) == 1 else self.info.pop(0))

    async def on_search(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("query") == TRIAL_QUERY or body.get("queries") == [TRIAL_QUERY]:
            self.tried.append(body)
            return await self._say(request, self.trial[0] if len(self.trial) == 1 else self.trial.pop(0))
        self.asked.append(body)
        self.headers.append(request.headers.get("Authorization"))
        return await self._say(request, self.script[0] if len(self.script) == 1 else self.script.pop(0))

    async def _say(self, request: web.Request, answer: Answer | str | None) -> web.StreamResponse:
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(answer, str):
            await self.freed.wait()
            return web.Response()
        status, content, *headers = answer
        text = content if isinstance(content, str) else json.dumps(content)
        return web.Response(status=status, text=text, headers=headers[0] if headers else None)


@asynccontextmanager
async def serving(*services: Service) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for service in services:
            app = web.Application()
            app.router.add_get("/info", service.on_info)
            app.router.add_post("/search", service.on_search)
            app.router.add_post("/retrieve", service.on_search)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            stack.callback(service.freed.set)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield


class Pauses:
    """Replaces sleeping; records the durations, and tells them to `on_pause`."""

    def __init__(self, on_pause: Callable[[float], None] = lambda seconds: None) -> None:
        self.seconds: list[float] = []
        self._on_pause = on_pause

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._on_pause(seconds)


@asynccontextmanager
async def client(*urls: str, pauses: Pauses | None = None, **settings: Any) -> AsyncIterator[ServiceClient]:
    made = ServiceClientSettings.model_validate({"endpoints": [{"url": url} for url in urls], **settings})
    searcher = ServiceClient(made, sleep=pauses or Pauses())
    try:
        await searcher.open()
        yield searcher
    finally:
        await searcher.close()


def later(seconds: float = 60.0) -> float:
    return asyncio.get_running_loop().time() + seconds
