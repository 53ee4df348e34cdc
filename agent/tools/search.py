"""The search tool: an agent's query becomes documents, without ever stalling the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, field_validator

from treadle.agent.tools.outcome import OutcomeStatus, ToolOutcome
from treadle.core.config import Operational, Section
from treadle.core.errors import ConfigError
from treadle.core.inputs import file_sha256
from treadle.retriever.bm25 import Bm25Index, Hit, open_index

EMPTY_QUERY = "The search query is empty."
NO_HIT = "No documents were found for this query."


class SearchToolSettings(Section):
    """Search over a corpus, indexed in this process."""

    engine: Literal["bm25"] = "bm25"
    """How documents are ranked."""
    corpus: Operational[tuple[Path, ...]] = ()
    """Files of documents: .jsonl, .json or .parquet with {id, contents} or {id, title, text}."""
    corpus_sha256: tuple[str, ...] | None = None
    """Content of the files; filled in when the run starts."""
    top_n: int = Field(default=4, ge=1, le=100)
    """Documents per query."""
    document_chars: int = Field(default=1_200, ge=1)
    """A longer document is cut to so many characters, marked by three dots."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one query."""
    cache_folder: Operational[Path | None] = None
    """Where indexes are kept; default: the folder `indexes` in $TREADLE_CACHE or ~/.cache/treadle."""
    num_threads: Operational[int] = Field(default=2, ge=1)
    """Queries that are answered at once."""

    @field_validator("corpus", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value

    def with_digests(self) -> SearchToolSettings:
        """Fill in the content of the corpus files as part of the fingerprint; raises ConfigError or DataError."""
        if not self.corpus:
            raise ConfigError("the search tool has no corpus; set its corpus to a .jsonl or .parquet file of documents")
        return self.model_copy(update={"corpus_sha256": tuple(file_sha256(path) for path in self.corpus)})


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
        self._index: Bm25Index | None = None

    async def open(self) -> None:
        """Load the index, or build it where the cache does not have it."""
        settings = self._settings if self._settings.corpus_sha256 else self._settings.with_digests()
        self._threads = ThreadPoolExecutor(settings.num_threads, thread_name_prefix="search")
        self._index = await asyncio.get_running_loop().run_in_executor(
            self._threads,
            lambda: open_index(settings.corpus, digests=settings.corpus_sha256, cache=settings.cache_folder),
        )

    async def search(self, query: str, top_n: int) -> Sequence[Hit]:
        """Ask the index in a worker thread."""
        if self._index is None:
            raise RuntimeError("search before open")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._index.search, query, top_n)

    async def close(self) -> None:
        """Let the threads go; a query that still runs ends by itself."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
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
