"""Run the retrieval service in uvicorn, from start to shutdown."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import uvicorn

from treadle.retriever.index import Index
from treadle.retriever.service.app import ServiceExtension, make_app
from treadle.retriever.service.config import ServiceSettings
from treadle.retriever.service.listening import KEEP_ALIVE_S, listen, url_of


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
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.shutdown_s,
    )
    server = uvicorn.Server(config)

    def fail(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    app.state.on_failure = fail
    with listen(settings) as listener:
        on_listening(url_of(listener))
        server.run(sockets=[listener])
    if failures:
        raise failures[0]
