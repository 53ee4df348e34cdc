"""Serve a corpus with `treadle retriever serve`, each search delayed by a fixed time, as by a slow service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from aiohttp import web

TREADLE = Path(sys.executable).with_name("treadle")


@contextlib.contextmanager
def delayed_search(corpus: Path, latency_s: float) -> Iterator[str]:
    """Yield the URL of a service whose searches take `latency_s` seconds longer; searches at once wait side by side."""
    with _retriever(corpus) as url:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        proxy = _Proxy(url, latency_s)
        try:
            yield asyncio.run_coroutine_threadsafe(proxy.start(), loop).result()
        finally:
            asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class _Proxy:
    """Proxy that delays POST requests."""

    def __init__(self, url: str, latency_s: float) -> None:
        self._url, self._latency_s = url, latency_s
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Begin to listen on a free port; return the URL."""
        self._session = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Stop listening."""
        assert self._runner is not None and self._session is not None
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.Response:
        assert self._session is not None
        body = await request.read()
        if request.method == "POST":
            await asyncio.sleep(self._latency_s)
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        url = f"{self._url}/{request.match_info['path']}"
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)


@contextlib.contextmanager
def _retriever(corpus: Path) -> Iterator[str]:
    command = [str(TREADLE), "retriever", "serve", "--corpus", str(corpus), "--port", "0"]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            while child.poll() is None:
                text = os.pread(said.fileno(), 100_000, 0).decode()
                if "ready:" in text:
                    break
                time.sleep(0.05)
            else:
                raise RuntimeError(f"treadle retriever serve ended: {text}")
            yield text.split("listening on ")[1].split(" ")[0]
        finally:
            child.terminate()
            child.wait()
