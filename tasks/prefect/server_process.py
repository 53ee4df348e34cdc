"""Serve Prefect's API and UI behind the origin guard: `python -m treadle.tasks.prefect.server_process PORT`.

`prefect server start` checks neither `Host` nor `Origin`, so any web page could reach a server on loopback. The
settings come from the environment, as they do there.
"""

from __future__ import annotations

import sys

import uvicorn

from treadle.core.untrusted.origin_guard import OriginGuard

HOST = "127.0.0.1"


def main(port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    uvicorn.run(
        OriginGuard(create_app(final=True), "Prefect server"),
        host=HOST,
        port=port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
        proxy_headers=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
