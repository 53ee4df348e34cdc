"""The real retrieval service over an index, on loopback and in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from treadle.retriever.index import Index
from treadle.retriever.service.app import ServiceExtension, make_app
from treadle.retriever.service.config import ServiceSettings


@asynccontextmanager
async def served(
    index: Index | asyncio.Future[Index], *, extension: ServiceExtension | None = None, **settings: Any
) -> AsyncIterator[str]:
    """Serve an index, or one that is loaded later, with these settings of the service; yields its URL."""

    async def load() -> Index:
        return index if isinstance(index, Index) else await index

    app = make_app(ServiceSettings(port=0, **settings), load, extension)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    except BaseException:
        server.force_exit = True  # A test that failed may have left searches held for ever.
        raise
    finally:
        server.should_exit = True
        await running
