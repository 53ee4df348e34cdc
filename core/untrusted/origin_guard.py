"""Refuse requests that a page of another origin makes a browser send to a server on this machine.

Every page in the user's browser can reach servers that listen on loopback. Three checks stop such pages. The `Host`
header must name this machine, which defeats DNS rebinding. An `Origin` header must be the server's own. The
`Sec-Fetch-*` headers must describe a request from the server's own pages, or a plain link to one of them. Programs send
neither of the last two and pass. The rules are in docs/behaviour/servers.md.

Engines import this module in environments of their own, so it uses only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_OCTET = rb"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LOOPBACK_NAME = re.compile(rb"(?:127(?:\." + _OCTET + rb"){3}|localhost|\[::1\])(?::[0-9]{1,5})?")
"""Pattern of the accepted `Host` headers. Any port is accepted, because the server may be reached through a tunnel.
Other names that resolve to this machine are not accepted."""

_POLICY_VIOLATION = 1008


def is_loopback_name(host: str) -> bool:
    """Return whether a server that listens on `host` can be reached by one of the names that the guard accepts."""
    return _LOOPBACK_NAME.fullmatch(f"[{host}]".encode() if ":" in host else host.lower().encode()) is not None


def find_refusal(
    name: str, method: str, headers: Iterable[tuple[bytes, bytes]], *, has_query: bool, any_host: bool = False
) -> tuple[int, str] | None:
    """Return status and text if a request must be refused, else None.

    `name` is the server's name in the text, such as "viewer". `any_host` is for a server that the user bound to another
    address: its names are unknown, so `Host` is not checked, and DNS rebinding is not prevented.
    """
    sent = [(key.lower(), value.lower()) for key, value in headers]
    hosts = [value for key, value in sent if key == b"host"]
    host = hosts[0] if len(hosts) == 1 else b""
    if not any_host and _LOOPBACK_NAME.fullmatch(host) is None:
        return 421, f"This {name} answers to loopback addresses and localhost alone."
    if _is_cross_origin(dict(sent), host, method, has_query):
        return 403, f"This {name} answers to no other page. Open its address by itself."
    return None


def _is_cross_origin(sent: dict[bytes, bytes], host: bytes, method: str, has_query: bool) -> bool:
    """Return whether a request comes from a page of another origin; a link to a page without a query is allowed."""
    if b"origin" in sent and sent[b"origin"].partition(b"://")[2] != (host or None):
        return True
    if sent.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
        return False
    is_link = (sent.get(b"sec-fetch-mode"), sent.get(b"sec-fetch-dest")) == (b"navigate", b"document")
    return not is_link or method != "GET" or has_query


class OriginGuard:
    """An ASGI middleware that accepts only loopback names, and no request from a page of another origin.

    HTTP requests are refused with 421 (wrong `Host`) or 403; WebSockets are closed before they are accepted.
    """

    any_host = False

    def __init__(self, app: ASGIApp, name: str = "server") -> None:
        """Wrap an app; `name` is the server's name in refusals, such as "viewer"."""
        self._app = app
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] in ("http", "websocket") and (refusal := self._refusal(scope)) is not None:
            if scope["type"] == "websocket":
                return await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return await _refuse(send, *refusal)
        return await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        return find_refusal(
            self._name,
            scope.get("method", ""),
            scope["headers"],
            has_query=bool(scope["query_string"]),
            any_host=self.any_host,
        )


class AnyHostGuard(OriginGuard):
    """An OriginGuard for a server that the user bound to another address: `Host` is not checked."""

    any_host = True


async def _refuse(send: Send, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
