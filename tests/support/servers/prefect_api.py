"""Ask a Prefect server as its own client does."""

from __future__ import annotations

from typing import Any

import httpx
from support.runs.processes import until


def credentials(password: str) -> tuple[str, str]:
    """`USER:PASSWORD` as httpx takes it."""
    user, _, secret = password.partition(":")
    return user, secret


def ask(
    method: str,
    url: str,
    body: dict[str, Any] | None = None,
    limit_s: float = 60.0,
    auth: tuple[str, str] | None = None,
) -> Any:
    """Return the response as JSON; retry while the server is unreachable or its database is locked.

    With status 503 the server reports that it has done nothing.
    """
    replies: list[httpx.Response] = []

    def taken() -> bool:
        try:
            replies.append(httpx.request(method, url, json=body, timeout=60, auth=auth))
        except httpx.TransportError:
            return False
        return replies[-1].status_code != 503

    until(taken, f"the server takes {method} {url}", limit_s, pause_s=0.2)
    assert replies[-1].is_success, replies[-1].text
    return replies[-1].json()
