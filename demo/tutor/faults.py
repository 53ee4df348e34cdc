"""Inject faults and limit the request rate; a fault depends on a request's content and attempt, not on time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import Callable, Mapping

from aiohttp import web

from treadle.demo.tutor.seeded_draws import Draws
from treadle.demo.tutor.settings import FAULT_KINDS, FaultKind


def choose_fault(shares: Mapping[FaultKind, float], seed: int, digest: str, attempt: int) -> FaultKind | None:
    """Return the fault for the `attempt`-th arrival of a request, or None; each retry is a new draw."""
    if not shares:
        return None
    at = Draws("fault", seed, digest, attempt).share("kind")
    for kind in FAULT_KINDS:
        at -= shares.get(kind, 0.0)
        if at < 0:
            return kind
    return None


class RateLimit:
    """Token bucket with a capacity of one second. `clock` returns seconds."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._tokens = max(1.0, per_s)
        self._at = clock()

    def take(self) -> int | None:
        """Take one token; return None if there was one, else the whole seconds to wait (at least 1)."""
        if self._per_s <= 0:
            return None
        now = self._clock()
        self._tokens = min(max(1.0, self._per_s), self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return None
        return math.ceil((1 - self._tokens) / self._per_s)


async def fail(request: web.Request, kind: FaultKind, closing: asyncio.Event) -> web.StreamResponse:
    """Answer a request with a fault."""
    if kind == "500":
        return error_response(500, "seeded fault of the tutor", "InternalServerError")
    if kind == "429":
        return error_response(429, "seeded rate limit of the tutor", "RateLimitError", retry_after_s=1)
    if kind == "malformed":
        return web.Response(body=b'{"id": "cmpl-broken", "choices": [{"text": "', content_type="application/json")
    if kind == "hang":
        await closing.wait()
    reset(request)
    return web.Response()


def reset(request: web.Request) -> None:
    """Drop the connection so that the peer sees a reset."""
    if request.transport is None:
        return
    with contextlib.suppress(OSError):
        raw = request.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()


def error_response(status: int, message: str, kind: str, retry_after_s: int | None = None) -> web.Response:
    """Return an error in the form that vLLM uses."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return web.json_response(body, status=status, headers=headers)
