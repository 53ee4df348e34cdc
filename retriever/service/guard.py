"""Check the token and the size of requests before they are parsed."""

from __future__ import annotations

import hmac

import orjson
from fastapi import HTTPException, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

_OPEN_PATHS = frozenset({"/health"})


class TokenGuard:
    """A middleware that answers 401 to requests without the token; `/health` is open to all."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if self._expected is None or scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected):
            return await self._app(scope, receive, send)
        body = orjson.dumps({"detail": "send the service's token as 'Authorization: Bearer ...'"})
        refusal = Response(body, 401, {"WWW-Authenticate": "Bearer"}, "application/json")
        await refusal(scope, receive, send)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request; raise HTTPException as soon as it is known to be too long."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise HTTPException(413, f"a request may have at most {max_bytes} bytes; this one has {announced}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise HTTPException(413, f"a request may have at most {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)
