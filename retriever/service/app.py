"""Serve a retrieval index over HTTP; docs/behaviour/services.md specifies the interface.

Routes are compatible with the services of FlashRAG and Search-R1: `/search`, `/batch_search` and `/retrieve` take the
same requests, ids are text, and `contents` is the document as indexed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from treadle.core.untrusted.origin_guard import OriginGuard
from treadle.retriever.index import Index, Ranking
from treadle.retriever.service.config import ServiceSettings
from treadle.retriever.service.http import OtherApi, body_of, json_response, read_request, respond
from treadle.retriever.service.listening import TokenGuard
from treadle.retriever.service.retrieve import RetrieveRequest, retrieve
from treadle.retriever.service.searches import HealthReport, RetrievalService

_log = logging.getLogger(__name__)

BLANK_QUERY = "Query content cannot be empty"
DEFAULT_TOP_N = 10
_OF_AFM = OtherApi("q", "this is a request of AFM's web search; start the service with --api afm, or send 'query'")


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


class ServiceExtension(Protocol):
    """Further routes of the service, such as those that read web pages."""

    def add_routes(self, app: FastAPI, service: RetrievalService) -> None:
        """Add the routes; with `api = "afm"` they include `/search`."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep the resources of the routes open during a block. Raises TreadleError, which ends the service."""
        ...


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
    app.add_middleware(TokenGuard, token=token, open_path="/health")
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
