"""Serve a retrieval index over HTTP; docs/behaviour/services.md specifies the interface.

Routes are compatible with the services of FlashRAG and Search-R1: `/search`, `/batch_search` and `/retrieve` take the
same requests, ids are text, and `contents` is the document as indexed.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import orjson
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.core.errors import TreadleError
from treadle.core.untrusted.origin_guard import OriginGuard
from treadle.core.untrusted.sanitize import one_line
from treadle.retriever.batching import MicroBatcher, QueueFull
from treadle.retriever.index import Index, Ranking
from treadle.retriever.service.cache import RankingCache
from treadle.retriever.service.config import ServiceSettings
from treadle.retriever.service.http import OtherApi, body_of, json_response, read_request, respond
from treadle.retriever.service.metrics import Metrics
from treadle.retriever.service.retrieve import RetrieveRequest, retrieve

_log = logging.getLogger(__name__)

BLANK_QUERY = "Query content cannot be empty"
DEFAULT_TOP_N = 10
_MIB = 1024 * 1024
_OF_AFM = OtherApi("q", "this is a request of AFM's web search; start the service with --api afm, or send 'query'")
_OPEN_PATHS = frozenset({"/health"})


class _Options(BaseModel):
    model_config = ConfigDict(extra="ignore")

    top_n: int = Field(default=DEFAULT_TOP_N, ge=1)
    """Number of documents per query."""
    return_score: bool = False
    """Whether to return scores with the documents."""


class SearchRequest(_Options):
    """The body of `POST /search`."""

    query: str


class BatchSearchRequest(_Options):
    """The body of `POST /batch_search`; the field may be called `query` or `queries`."""

    queries: list[str] = Field(validation_alias=AliasChoices("query", "queries"))


class FoundDocument(BaseModel):
    """One document of an answer."""

    id: str
    contents: str
    """Title line and full text."""


class RetrieverState(BaseModel):
    """The number of workers, and of free ones."""

    total: int
    available: int


class ServiceExtension(Protocol):
    """Further routes of the service, such as those that read web pages."""

    def add_routes(self, app: FastAPI, service: RetrievalService) -> None:
        """Add the routes; with `api = "afm"` they include `/search`."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Hold open what the routes use. Raises TreadleError, which ends the service."""
        ...


class HealthReport(BaseModel):
    """The answer of `GET /health`; with `api = "afm"` it also has a `timestamp` in seconds since 1970."""

    status: str
    """`healthy`, or `loading` (with status 503)."""
    retrievers: RetrieverState


class TokenGuard:
    """A middleware that answers 401 to requests without the token; `/health` is open to all."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if self._expected is None or scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected):
            return await self._app(scope, receive, send)
        body = orjson.dumps({"detail": "send the service's token as 'Authorization: Bearer ...'"})
        refusal = Response(body, 401, {"WWW-Authenticate": "Bearer"}, "application/json")
        await refusal(scope, receive, send)


class RetrievalService:
    """One index with its cache, queue and metrics. Call `open` only once."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self._cache = RankingCache(int(settings.cache_mib * _MIB))
        self._index: Index | None = None
        self._batcher: MicroBatcher | None = None
        self.metrics = Metrics(self._num_waiting, self._num_free)

    async def open(self, index: Index) -> None:
        """Start answering searches."""
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


def make_app(
    settings: ServiceSettings, load: Callable[[], Awaitable[Index]], extension: ServiceExtension | None = None
) -> FastAPI:
    """Create the application; `load` is awaited while the service reports that it is loading.

    `extension` adds routes; its resources are opened first. Raises ConfigError if a token is required and missing.
    """
    service = RetrievalService(settings)
    token = settings.token()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(service.close)

            async def loaded() -> Index:
                if extension is not None:
                    await stack.enter_async_context(extension.running())
                return await load()

            loading = asyncio.create_task(_load(service, loaded, app.state.on_failure))
            try:
                yield
            finally:
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)

    app = FastAPIOffline(
        title="Treadle retriever",
        summary="Search over one corpus.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.on_failure = lambda error: None
    app.add_middleware(TokenGuard, token=token)
    if token is None:
        # Without a token, any local caller has access, so pages in the user's browser must be kept out.
        app.add_middleware(OriginGuard, name="retrieval service")
    _add_routes(app, service)
    if settings.api == "flashrag":
        _add_search(app, service)
    if extension is not None:
        extension.add_routes(app, service)
    return app


async def _load(
    service: RetrievalService, load: Callable[[], Awaitable[Index]], on_failure: Callable[[BaseException], None]
) -> None:
    # Any failure to open the index ends the service, which is useless without it.
    try:
        await service.open(await load())
    except Exception as error:  # noqa: BLE001
        on_failure(error)


def _add_routes(app: FastAPI, service: RetrievalService) -> None:
    @app.get("/health", response_model=HealthReport, responses={503: {"model": HealthReport}})
    async def health() -> Response:
        """Report whether the service answers searches."""
        status, state = service.health()
        # Clients of AFM's services read a time stamp.
        stamp = {"timestamp": time.time()} if service.settings.api == "afm" else {}
        return json_response({**state.model_dump(), **stamp}, status)

    @app.get("/info")
    async def info() -> Response:
        """Return engine, encoder, number of documents and fingerprint of the index."""
        return await respond(service.metrics, "info", _value(service.info))

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return counters for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/batch_search", response_model=list[list[FoundDocument]], openapi_extra=body_of(BatchSearchRequest))
    async def batch_search(request: Request) -> Response:
        """Return the best documents for each query; with `return_score`, `[documents of all, scores of all]`."""
        return await respond(service.metrics, "batch_search", _batch_search(service, request))

    @app.post("/retrieve", openapi_extra=body_of(RetrieveRequest))
    async def retrieve_route(request: Request) -> Response:
        """Return the best documents for each query in the format of Search-R1."""
        return await respond(service.metrics, "retrieve", retrieve(service, request))


def _add_search(app: FastAPI, service: RetrievalService) -> None:
    @app.post("/search", response_model=list[FoundDocument], openapi_extra=body_of(SearchRequest))
    async def search(request: Request) -> Response:
        """Return the best documents for one query; with `return_score`, `[documents, scores]`."""
        return await respond(service.metrics, "search", _search(service, request))


async def _search(service: RetrievalService, request: Request) -> Any:
    request_model = await read_request(service.settings, request, SearchRequest, _OF_AFM)
    if not request_model.query.strip():
        raise HTTPException(400, BLANK_QUERY)
    (ranking,) = await service.search([request_model.query], request_model.top_n)
    documents = service.documents(ranking)
    return [documents, _scores(ranking)] if request_model.return_score else documents


async def _batch_search(service: RetrievalService, request: Request) -> Any:
    request_model = await read_request(service.settings, request, BatchSearchRequest)
    for number, query in enumerate(request_model.queries):
        if not query.strip():
            raise HTTPException(400, f"{BLANK_QUERY}: query {number} is blank")
    if len(request_model.queries) > service.settings.max_waiting:
        raise HTTPException(422, f"a batch may have at most {service.settings.max_waiting} queries")
    rankings = await service.search(request_model.queries, request_model.top_n)
    documents = [service.documents(ranking) for ranking in rankings]
    return [documents, [_scores(ranking) for ranking in rankings]] if request_model.return_score else documents


def _scores(ranking: Ranking) -> list[float]:
    return [score for _, score in ranking]


async def _value(make: Callable[[], Any]) -> Any:
    return make()
