"""Routes of AFM's services on the retrieval service: `/crawl_page` with any API, and `/search` with `api = "afm"`.

Requests, answers and statuses are those of Agent Foundation Models (arXiv 2508.13167); see docs/behaviour/services.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from treadle.agent.metering import TokenBudget
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.pages.crawl import Crawler, CrawlResult, Purpose
from treadle.agent.pages.links import find_urls
from treadle.agent.pages.server_config import RetrieverConfig
from treadle.agent.pages.summaries import PageSummarizer
from treadle.core.errors import DeadlineExceeded, TreadleError
from treadle.core.untrusted.sanitize import one_line
from treadle.retriever.client import SearchUnavailable
from treadle.retriever.service.http import OtherApi, body_of, read_request, respond
from treadle.retriever.service.searches import RetrievalService
from treadle.web.cached import MAX_RESULTS, CachedWeb
from treadle.web.types import QueryRefused, RecordMiss, WebHit

_log = logging.getLogger(__name__)

DEFAULT_NUM = 10
SEARCH_TIMEOUT_S = 60.0
"""Time limit of a web search in seconds, if the request has none or a larger one."""
NO_URL = "No valid URL found"
WITH_GOAL = "webthinker_with_goal"

_SNIPPET_CHARS = 300
_OF_FLASHRAG = OtherApi(
    "query", "this is a request of FlashRAG's search; start the service with --api flashrag, or send 'q'"
)
_STATUS = re.compile(r"\bHTTP ([45]\d{2}): ")
"""Pattern of the HTTP status that a provider sent, in the message of the error about it."""


class WebSearchRequest(BaseModel):
    """The body of `POST /search` with `api = "afm"`."""

    model_config = ConfigDict(extra="ignore")

    q: str
    num: int | None = Field(default=DEFAULT_NUM, ge=1)
    """Number of hits, at most 100; null means 10."""
    timeout: float | None = Field(default=None, gt=0)
    """Time limit in seconds."""


class CrawlPageRequest(BaseModel):
    """The body of `POST /crawl_page`."""

    model_config = ConfigDict(extra="ignore")

    urls: list[str]
    """URLs, Markdown links, or texts with a URL."""
    task: str
    """Question of the agent; used if there is no search query."""
    web_search_query: str
    think_content: str
    """Latest thoughts of the agent."""
    messages: list[dict[str, Any]] | None = None
    """Not used."""
    summary_type: str | None = "page"
    """Not used; each page has a summary of its own."""
    summary_prompt_type: str | None = WITH_GOAL
    """`webthinker_with_goal` turns the thoughts into a reading goal first; anything else uses them unchanged."""


class CrawlPageResponse(BaseModel):
    """The answer of `POST /crawl_page`."""

    success: bool
    """Whether there was any URL; pages that cannot be read are named in `obs`."""
    obs: str
    error_message: str | None = None
    processing_time: float
    """Seconds."""


class PageService:
    """Extension of the retrieval service; see `treadle.retriever.service.app.ServiceExtension`."""

    def __init__(self, config: RetrieverConfig, web: CachedWeb | None = None) -> None:
        """Prepare the routes; `web` replaces the configured one in tests."""
        self._config = config
        self._web = web if web is not None else CachedWeb(config.web, config.cache)
        self._crawler: Crawler | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the web, and the model that reads pages. Raises TreadleError."""
        config = self._config
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._web.close)
            await self._web.open()
            self._crawler = Crawler(config.crawl, self._web, await self._summarizer(stack))
            yield

    async def _summarizer(self, stack: AsyncExitStack) -> PageSummarizer | None:
        crawl = self._config.crawl
        if crawl.summarizer is None:
            return None
        sessions = await stack.enter_async_context(ModelSessions(TokenBudget(None)))
        session = await sessions.model(crawl.summarizer, self._config.models[crawl.summarizer])
        model = session.for_role("summarizer", crawl.summarizer_sampling, only_messages=True)
        return PageSummarizer(model, added_tokens=session.tokenizer.added_tokens if session.tokenizer else frozenset())

    def add_routes(self, app: FastAPI, service: RetrievalService) -> None:
        """Add the routes."""

        @app.post("/crawl_page", response_model=CrawlPageResponse, openapi_extra=body_of(CrawlPageRequest))
        async def crawl_page(request: Request) -> Response:
            """Read pages of the web for a search query and the agent's thoughts."""
            return await respond(service.metrics, "crawl_page", self._crawl_page(service, request))

        if service.settings.api == "afm":

            @app.post("/search", openapi_extra=body_of(WebSearchRequest))
            async def search(request: Request) -> Response:
                """Return `{"organic": [{title, link, snippet, date?, source?}]}` of the web or of the index."""
                return await respond(service.metrics, "search", self._search(service, request))

    async def _crawl_page(self, service: RetrievalService, request: Request) -> dict[str, Any]:
        started = time.perf_counter()
        asked = await read_request(service.settings, request, CrawlPageRequest)
        urls = find_urls(asked.urls)
        if not urls:
            return _crawled(started, error_message=NO_URL)
        if self._crawler is None:
            raise HTTPException(503, "the service is starting", {"Retry-After": "1"})
        purpose = Purpose(
            asked.web_search_query.strip() or asked.task,
            asked.think_content,
            makes_goal=asked.summary_prompt_type == WITH_GOAL,
        )
        limit_s = self._config.crawl.timeout_s
        deadline = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(deadline + limit_s / 100):  # the deadline ends summaries by itself
                result = await self._crawler.read(urls, purpose, deadline=deadline)
        except TimeoutError:
            raise HTTPException(504, f"Timeout: {limit_s:g}s") from None
        except TreadleError as error:
            _log.error("pages could not be read: %s", one_line(str(error)))
            raise HTTPException(500, f"Server Error: {one_line(str(error))}") from error
        _log_errors(result)
        if not result.has_content and any(isinstance(section.error, DeadlineExceeded) for section in result.sections):
            raise HTTPException(504, f"Timeout: {limit_s:g}s")
        return _crawled(started, obs=result.render())

    async def _search(self, service: RetrievalService, request: Request) -> dict[str, Any]:
        asked = await read_request(
            service.settings, request, WebSearchRequest, _OF_FLASHRAG, no_json="Invalid JSON in request body."
        )
        query = asked.q.strip()
        if not query:
            raise HTTPException(400, "Query content cannot be empty")
        num = min(asked.num or DEFAULT_NUM, MAX_RESULTS)
        hits = (
            await self._hits(query, num, asked.timeout) if self._web.searches else await _indexed(service, query, num)
        )
        parameters = {"q": query, "num": num, "type": "search"}
        return {"searchParameters": parameters, "organic": hits}

    async def _hits(self, query: str, num: int, timeout_s: float | None) -> list[dict[str, str]]:
        limit_s = min(timeout_s or SEARCH_TIMEOUT_S, SEARCH_TIMEOUT_S)
        deadline = asyncio.get_running_loop().time() + limit_s
        try:
            found = await self._web.search(query, num, deadline=deadline)
        except RecordMiss as error:
            raise HTTPException(404, str(error)) from None
        except QueryRefused as error:
            raise _provider_error(str(error), 400) from None
        except SearchUnavailable as error:
            raise _provider_error(str(error), 503) from None
        except TreadleError as error:
            _log.error("a web search failed: %s", one_line(str(error)))
            raise _provider_error(str(error), 500) from error
        return [_organic(hit) for hit in found]


def _crawled(started: float, *, obs: str = "", error_message: str | None = None) -> dict[str, Any]:
    seconds = time.perf_counter() - started
    answer = CrawlPageResponse(
        success=error_message is None, obs=obs, error_message=error_message, processing_time=seconds
    )
    return answer.model_dump()


def _log_errors(result: CrawlResult) -> None:
    for error in {str(section.error) for section in result.sections if section.error is not None}:
        _log.warning("a page was not read, or not summarized: %s", one_line(error))


async def _indexed(service: RetrievalService, query: str, num: int) -> list[dict[str, str]]:
    """Return documents of the index as hits, for a service without a search provider."""
    (ranking,) = await service.search([query], min(num, service.settings.max_top_n))
    return [_organic(_document_hit(document)) for document in service.documents(ranking)]


def _document_hit(document: dict[str, str]) -> WebHit:
    title, _, text = document["contents"].partition("\n")
    id = document["id"]
    link = id if re.match(r"https?://", id) else f"document:{quote(id, safe='')}"
    snippet = " ".join((text or title).split())
    return WebHit(title, link, snippet if len(snippet) <= _SNIPPET_CHARS else snippet[:_SNIPPET_CHARS] + "...")


def _organic(hit: WebHit) -> dict[str, str]:
    """Return a hit in the provider's format; clients show `date` and `source` whenever the key is there."""
    optional = {"date": hit.date, "source": hit.site_name}
    shown = {"title": hit.title, "link": hit.url, "snippet": hit.snippet}
    return shown | {name: value for name, value in optional.items() if value}


def _provider_error(message: str, status: int) -> HTTPException:
    """Return the error with the status that the provider sent, if it sent one."""
    sent = _STATUS.search(message)
    return HTTPException(int(sent[1]) if sent else status, one_line(message))
