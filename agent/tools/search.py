"""The search tool: an agent's query becomes documents, without ever stalling the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pydantic import Field

from treadle.agent.tools.outcome import OutcomeStatus, ToolOutcome
from treadle.core.config import Operational
from treadle.retriever.config import IndexSettings
from treadle.retriever.index import Hit, Index
from treadle.retriever.opening import open_index

EMPTY_QUERY = "The search query is empty."
NO_HIT = "No documents were found for this query."


class SearchToolSettings(IndexSettings):
    """Search over a corpus, indexed in this process."""

    top_n: int = Field(default=4, ge=1, le=100)
    """Documents per query."""
    document_chars: int = Field(default=1_200, ge=1)
    """A longer document is cut to so many characters, marked by three dots."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one query."""
    num_threads: Operational[int] = Field(default=2, ge=1)
    """Queries that are answered at once."""


class Searcher(Protocol):
    """Where documents come from: an index in this process, or a service."""

    async def open(self) -> None:
        """Get ready; raises TreadleError where that is impossible."""
        ...

    async def search(self, query: str, top_n: int) -> Sequence[Hit]:
        """At most `top_n` documents, best first. Cancelled at the call's deadline."""
        ...

    async def close(self) -> None:
        """Give everything back; calls in flight may go on to their end."""
        ...


class LocalSearcher:
    """An index in this process, asked from a few worker threads."""

    def __init__(self, settings: SearchToolSettings) -> None:
        self._settings = settings
        self._threads: ThreadPoolExecutor | None = None
        self._index: Index | None = None

    async def open(self) -> None:
        """Load the index, or build it where the cache does not have it."""
        self._threads = ThreadPoolExecutor(self._settings.num_threads, thread_name_prefix="search")
        self._index = await asyncio.get_running_loop().run_in_executor(self._threads, open_index, self._settings)

    async def search(self, query: str, top_n: int) -> Sequence[Hit]:
        """Ask the index in a worker thread."""
        if self._index is None:
            raise RuntimeError("search before open")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._index.search, query, top_n)

    async def close(self) -> None:
        """Let the threads go; a query that still runs ends by itself."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._index is not None:
            self._index.close()
        self._threads, self._index = None, None


class SearchTool:
    """The tool `search`: documents joined by blank lines, each as its title line and text."""

    name = "search"

    def __init__(self, settings: SearchToolSettings, searcher: Searcher | None = None) -> None:
        self._settings = settings
        self._searcher = searcher if searcher is not None else LocalSearcher(settings)

    async def __aenter__(self) -> SearchTool:
        try:
            await self._searcher.open()
        except BaseException:
            await self._searcher.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._searcher.close()

    async def call(self, argument: str, *, deadline: float) -> ToolOutcome:
        """Answer one query; `deadline` is in the event loop's clock."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        query = argument.strip()
        status: OutcomeStatus
        if not query:
            status, text = "invalid", EMPTY_QUERY
        else:
            status, text = await self._answer(query, min(deadline, started + self._settings.timeout_s))
        return ToolOutcome(status, text, loop.time() - started)

    async def _answer(self, query: str, deadline: float) -> tuple[OutcomeStatus, str]:
        try:
            async with asyncio.timeout_at(deadline):
                hits = await self._searcher.search(query, self._settings.top_n)
        except TimeoutError:
            return "timeout", "The search took too long and was stopped."
        if not hits:
            return "empty", NO_HIT
        return "ok", "\n\n".join(self._cut(hit.contents) for hit in hits).strip()

    def _cut(self, contents: str) -> str:
        limit = self._settings.document_chars
        return contents if len(contents) <= limit else contents[:limit] + "..."
