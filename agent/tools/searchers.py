"""Search a corpus, with an index in this process or through retrieval services."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Protocol

from treadle.retriever.batching import MicroBatcher
from treadle.retriever.client import ServiceClient, ServiceClientSettings
from treadle.retriever.config import IndexSettings
from treadle.retriever.index import Hit, Index
from treadle.retriever.open_index import open_index

_MAX_BATCH = 64
"""Most queries that are encoded together."""


class DocumentLike(Protocol):
    """Document of a search result."""

    @property
    def contents(self) -> str:
        """Title line and text."""
        ...


class Searcher(Protocol):
    """Interface of a corpus search."""

    async def open(self) -> None:
        """Prepare for searches. Raises TreadleError if that is impossible."""
        ...

    async def search(self, query: str, top_n: int, *, deadline: float) -> Sequence[DocumentLike]:
        """Return at most `top_n` documents, best first; `deadline` is in the event loop's clock.

        Raises TimeoutError if the deadline passes during a search, and ToolError or ModelError if searching is
        impossible.
        """
        ...

    async def close(self) -> None:
        """Release all resources; calls in progress may run to their end."""
        ...


class LocalSearcher:
    """Index in this process, searched by a few worker threads; queries that need encoding are batched."""

    def __init__(self, settings: IndexSettings, num_threads: int) -> None:
        self._settings = settings
        self._num_threads = num_threads
        self._threads: ThreadPoolExecutor | None = None
        self._index: Index | None = None
        self._batcher: MicroBatcher | None = None
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Load the index, or build it if it is not cached."""
        self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix="search")
        self._index = await asyncio.get_running_loop().run_in_executor(self._threads, open_index, self._settings)
        if self._index.info.encoder is not None:
            # The queue needs no limit: it never holds more queries than there are rollouts.
            batcher = MicroBatcher(
                self._index, num_workers=self._num_threads, max_batch=_MAX_BATCH, max_waiting=sys.maxsize
            )
            self._batcher = await self._stack.enter_async_context(batcher)

    async def search(self, query: str, top_n: int, *, deadline: float) -> Sequence[Hit]:
        """Search the index in a worker thread, which is left to finish if the deadline passes first."""
        if self._index is None:
            raise RuntimeError("search before open")
        async with asyncio.timeout_at(deadline):
            if self._batcher is None:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self._index.search, query, top_n)
            (ranking,) = await self._batcher.rank([query], top_n)
        documents = ((self._index.documents[row], score) for row, score in ranking)
        return [Hit(document.id, document.title, document.text, score) for document, score in documents]

    async def close(self) -> None:
        """Release the threads; a query in progress ends by itself."""
        await self._stack.aclose()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._index is not None:
            self._index.close()
        self._threads, self._index, self._batcher = None, None, None


def searcher_for(index: IndexSettings, service: ServiceClientSettings | None, top_n: int, num_threads: int) -> Searcher:
    """Return the client of the services if there are any, else the index in this process."""
    return ServiceClient(service, top_n=top_n) if service is not None else LocalSearcher(index, num_threads)
