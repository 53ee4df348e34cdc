"""Run the retrieval service in uvicorn, from start to shutdown."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable

import uvicorn

from treadle.core.errors import ConfigError
from treadle.retriever.index import Index
from treadle.retriever.service.app import ServiceExtension, make_app
from treadle.retriever.service.config import ServiceSettings

_KEEP_ALIVE_S = 75
"""Longer than an agent's pause between two searches, so that its connection stays open."""


def serve(
    settings: ServiceSettings,
    open_index: Callable[[], Index],
    on_listening: Callable[[str], None],
    extension: ServiceExtension | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests in flight are finished.

    `open_index` runs in a thread while the service already reports that it is loading. `on_listening` is called with
    the URL. `extension` adds routes. Raises ConfigError (no token, port in use) and whatever `open_index` or the
    extension raises.
    """
    failures: list[BaseException] = []

    async def load() -> Index:
        index = await asyncio.to_thread(open_index)
        # Exclude existing objects from garbage collection: scanning all of them repeatedly would stop every search for
        # a tenth of a second.
        gc.collect()
        gc.freeze()
        return index

    app = make_app(settings, load, extension)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.shutdown_s,
    )
    server = uvicorn.Server(config)

    def fail(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    app.state.on_failure = fail
    with _listen(settings) as listener:
        host, port = listener.getsockname()[:2]
        on_listening(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        server.run(sockets=[listener])
    if failures:
        raise failures[0]


def _listen(settings: ServiceSettings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror or error}; choose another --host or --port"
        ) from error
