"""Add security headers to responses, and refuse requests that come from other pages."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.core.untrusted.origin_guard import OriginGuard

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
    """Middleware around `OriginGuard` that adds security headers to every response, also to refusals.

    Other web pages cannot read, frame or include the viewer. They also cannot make it run a search, the duration of
    which would reveal whether a text occurs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = OriginGuard(app, "viewer")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request and add the headers to its response; the viewer has no WebSockets."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        await self._app(scope, receive, guarded)
