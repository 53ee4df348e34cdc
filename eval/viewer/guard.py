"""What stands between a browser and the viewer: who may ask, and what the browser may do with the answer."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN_HOST = re.compile(rb"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")
"""Any port: the viewer may be reached through a tunnel."""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


class Guard:
    """Middleware that answers only to names of this machine, and tells the browser to load nothing from elsewhere.

    A page of the web whose name was made to point to 127.0.0.1 sends its own name as `Host` and is refused; it cannot
    read, frame or include what the viewer shows either. Nor can a page from elsewhere make the viewer search, and learn
    from the time it takes: browsers say where a request comes from, and all but a plain link to a page is refused.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or refuse it."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return None

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not _OWN_HOST.fullmatch(hosts[0].lower()):
            return await _refuse(guarded, 421, b"This viewer answers to 127.0.0.1, localhost and [::1] alone.\n")
        if _is_from_elsewhere(scope, hosts[0].lower()):
            return await _refuse(guarded, 403, b"This viewer answers to no other page. Open its address by itself.\n")
        return await self._app(scope, receive, guarded)


def _is_from_elsewhere(scope: Scope, host: bytes) -> bool:
    """Whether a page of another origin asks; a link to a page without a choice behind `?` is no such thing.

    What says nothing of it (old browsers, programs) is taken as the user's own.
    """
    told = {
        name: value.lower() for name, value in scope["headers"] if name == b"origin" or name.startswith(b"sec-fetch-")
    }
    if b"origin" in told and told[b"origin"].partition(b"://")[2] != host:
        return True
    if told.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
        return False
    is_link = (told.get(b"sec-fetch-mode"), told.get(b"sec-fetch-dest")) == (b"navigate", b"document")
    return not is_link or bool(scope["query_string"])


async def _refuse(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
