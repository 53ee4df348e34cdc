"""Search one index for the routes of the service, through a cache and a queue, and report its state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel

from treadle.core.errors import TreadleError
from treadle.core.untrusted.sanitize import one_line
from treadle.retriever.batching import MicroBatcher, QueueFull
from treadle.retriever.index import Index, Ranking
from treadle.retriever.service.cache import RankingCache
from treadle.retriever.service.config import ServiceSettings
from treadle.retriever.service.metrics import Metrics

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024


class RetrieverState(BaseModel):
    """The number of workers, and of free ones."""

    total: int
    available: int


class HealthReport(BaseModel):
    """The answer of `GET /health`; with `api = "afm"` it also has a `timestamp` in seconds since 1970."""

    status: str
    """`healthy`, or `loading` (with status 503)."""
    retrievers: RetrieverState


class RetrievalService:
    """One index with its cache, queue and metrics. Call `open` only once."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self._cache = RankingCache(int(settings.cache_mib * _MIB))
        self._index: Index | None = None
        self._batcher: MicroBatcher | None = None
        self.metrics = Metrics(self._num_waiting, self._num_free)

    async def open(self, index: Index) -> None:
        """Start answering searches in this index."""
        settings = self.settings
        batcher = MicroBatcher(
            index,
            num_workers=settings.num_workers,
            max_batch=settings.max_batch,
            max_waiting=settings.max_waiting,
            on_batch=self.metrics.batch_size.observe,
        )
        self._batcher = await batcher.__aenter__()
        self._index = index

    async def close(self) -> None:
        """Stop the workers and close the index."""
        if self._batcher is not None:
            await self._batcher.__aexit__()
        if self._index is not None:
            self._index.close()

    def health(self) -> tuple[int, HealthReport]:
        """Return status code and state."""
        state = RetrieverState(total=self.settings.num_workers, available=int(self._num_free()))
        if self._index is None:
            return 503, HealthReport(status="loading", retrievers=state)
        return 200, HealthReport(status="healthy", retrievers=state)

    def info(self) -> dict[str, Any]:
        """Return a description of the index; raise HTTPException while it is loading."""
        facts = self._ready()[0].info
        names = ("engine", "encoder", "dimension", "num_documents", "num_bytes", "fingerprint")
        return {**{name: getattr(facts, name) for name in names}, "max_top_n": self.settings.max_top_n}

    async def search(self, queries: Sequence[str], top_n: int) -> list[Ranking]:
        """Return the rankings in the order of the queries; raise HTTPException."""
        _, batcher = self._ready()
        if top_n > self.settings.max_top_n:
            raise HTTPException(422, f"top_n must be at most {self.settings.max_top_n}")
        stripped = [query.strip() for query in queries]
        rankings = {query: self._cache.get(query, top_n) for query in stripped}
        missing = [query for query, ranking in rankings.items() if ranking is None]
        self.metrics.cached.inc(len(rankings) - len(missing))
        if missing:
            rankings |= zip(missing, await self._ask(batcher, missing, top_n), strict=True)
        return [ranking for ranking in map(rankings.__getitem__, stripped) if ranking is not None]

    async def _ask(self, batcher: MicroBatcher, queries: list[str], top_n: int) -> list[Ranking]:
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                found = await batcher.rank(queries, top_n)
        except QueueFull as error:
            raise HTTPException(429, str(error), {"Retry-After": str(error.retry_after_s)}) from None
        except TimeoutError:
            raise HTTPException(504, f"the search took longer than {self.settings.timeout_s:g} s") from None
        except TreadleError as error:
            _log.error("a search failed: %s", one_line(str(error)))
            raise HTTPException(503 if error.retryable else 500, one_line(str(error))) from error
        # An unforeseen error must end the request with an answer, and not with a traceback for the operator.
        except Exception as error:
            _log.error("a search failed unexpectedly: %s: %s", type(error).__name__, one_line(str(error)))
            raise HTTPException(500, "the search failed; see the service's log") from error
        for query, ranking in zip(queries, found, strict=True):
            self._cache.put(query, top_n, ranking)
        return found

    def documents(self, ranking: Ranking) -> list[dict[str, str]]:
        """Return the documents of a ranking."""
        documents = self._ready()[0].documents
        found = (documents[row] for row, _ in ranking)
        return [{"id": document.id, "contents": document.contents} for document in found]

    def _ready(self) -> tuple[Index, MicroBatcher]:
        if self._index is None or self._batcher is None:
            raise HTTPException(503, "the index is being loaded", {"Retry-After": "1"})
        return self._index, self._batcher

    def _num_waiting(self) -> float:
        return self._batcher.num_waiting if self._batcher else 0

    def _num_free(self) -> float:
        return self._batcher.num_free if self._batcher else 0
