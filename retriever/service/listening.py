"""Listen on an address, and keep callers without the token out, for services that are served by uvicorn."""

from __future__ import annotations

import hmac
import socket

import orjson
from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.core.errors import ConfigError
from treadle.retriever.service.config import ListenSettings

NO_TOKEN = "send the service's token as 'Authorization: Bearer ...'"
KEEP_ALIVE_S = 75
"""Seconds until an idle connection is closed: longer than an agent's usual pause between two requests."""


class TokenGuard:
    """A middleware that answers 401 to requests without the token; `open_path` is open to all."""

    def __init__(self, app: ASGIApp, token: str | None, open_path: str, refusal: object = None) -> None:
        """Wrap an app; `refusal` is the body of the answer, JSON-able."""
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None
        self._open_path = open_path
        self._refusal = orjson.dumps({"detail": NO_TOKEN} if refusal is None else refusal)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if self._expected is None or scope["type"] != "http" or scope["path"] == self._open_path:
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected):
            return await self._app(scope, receive, send)
        refusal = Response(self._refusal, 401, {"WWW-Authenticate": "Bearer"}, "application/json")
        await refusal(scope, receive, send)


def listen(settings: ListenSettings) -> socket.socket:
    """Return a listening socket. Raises ConfigError if the address cannot be bound."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
        # Connections inherit it; asyncio sets it only for sockets whose protocol is named. Without it the second part
        # of a response waits for the acknowledgement of the first, about 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror or error}; choose another --host or --port"
        ) from error


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
