"""Run the viewer on a loopback address until it is stopped."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from treadle.core.errors import ConfigError
from treadle.core.untrusted.origin_guard import is_loopback_name

_SHUTDOWN_S = 1


def serve(app: ASGIApp, host: str, port: int, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `on_listening` is called with the URL.

    Raise ConfigError if the address is not a loopback address or the port is taken.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    with listen(host, port) as listener:
        taken = listener.getsockname()[1]
        on_listening(f"http://[{host}]:{taken}/" if ":" in host else f"http://{host}:{taken}/")
        uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Open a socket on a loopback address; port 0 picks a free one. Raise ConfigError."""
    if not is_loopback_name(host):
        raise ConfigError(f"the viewer listens only on loopback addresses, not on {host}; use a tunnel to reach it")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Connections inherit it; without it parts of a response wait for acknowledgements, about 40 ms each.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}; choose another --port") from error
