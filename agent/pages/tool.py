"""Tool `crawl_page`: read web pages for what the agent is looking for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from treadle.agent.pages.crawl import Crawler, CrawlResult, PageSource, Purpose
from treadle.agent.pages.links import find_urls, split_links
from treadle.agent.pages.settings import CrawlSettings
from treadle.agent.pages.summaries import PageSummarizer
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.work_clock import work_clock
from treadle.web.types import RecordMiss

NO_URL = "No valid URL was found; write http:// or https:// addresses, joined by | if there are several."
SEARCH_TAGS = ("web_search", "wiki_search", "search")
"""Tags of the calls whose query led to a page."""

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_BLOCK = re.compile(r"<(\w+)>.*?</\1>", re.DOTALL)


class OpenablePages(PageSource, Protocol):
    """Source of pages that the tool opens and closes."""

    async def open(self) -> None:
        """Prepare for requests. Raises TreadleError if that is impossible."""
        ...

    async def wait_recorded(self) -> None:
        """Wait for requests in progress, each until its own deadline."""
        ...

    async def close(self) -> None:
        """Cancel requests in progress."""
        ...


class CrawlPageTool:
    """Tool that reads one or several pages per call, all at once."""

    def __init__(
        self,
        settings: CrawlSettings,
        pages: OpenablePages,
        summarizer: PageSummarizer | None = None,
        *,
        name: str = "crawl_page",
        search_tags: Sequence[str] = SEARCH_TAGS,
        misses_are_empty: bool = False,
    ) -> None:
        """Prepare the tool.

        `pages` may be the WebSearch of the search tool. With `misses_are_empty`, a page that a web replay has no entry
        for counts as not readable instead of raising RecordMiss.
        """
        self.name = name
        self._settings = settings
        self._pages = pages
        self._crawler = Crawler(settings, pages, summarizer)
        self._summarizes = summarizer is not None
        self._query = re.compile(rf"<({'|'.join(map(re.escape, search_tags))})>(.*?)</\1>", re.DOTALL)
        self._misses_are_empty = misses_are_empty
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> CrawlPageTool:
        try:
            # Registered before opening, so that a failed open is cleaned up too.
            self._stack.push_async_callback(self._pages.close)
            await self._pages.open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if not any(exc):  # after an error or cancellation, do not wait
                await self._pages.wait_recorded()
        finally:
            await self._stack.aclose()

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Read the pages that the argument names; `deadline` is a time of the work clock, and limits only summaries.

        Fetching has a limit of its own. It counts as infrastructure, so it holds the work clock. Infrastructure
        failures are raised: ToolError if a page could not be fetched, ModelError if a summary could not be made, and
        DeadlineExceeded.
        """
        started = asyncio.get_running_loop().time()
        urls = find_urls(split_links(argument))
        if not urls:
            return ToolOutcome("invalid", NO_URL)
        now = work_clock().time()
        if context is not None and context.budget_s is not None:
            deadline = now + context.budget_s
        log = context.log if context is not None else ()
        purpose = Purpose(
            self._last_query(log) or (context.question if context is not None else ""),
            last_reasoning(log),
            seed=context.seed if context is not None else 0,
        )
        result = await self._crawler.read(urls, purpose, deadline=min(deadline, now + self._settings.timeout_s))
        self._raise_infrastructure_errors(result)
        num_failed = sum(section.status != "ok" for section in result.sections)
        return ToolOutcome(
            "ok" if result.has_content else "error",
            result.render(),
            asyncio.get_running_loop().time() - started,
            cached=not self._summarizes and all(section.is_recorded for section in result.sections),
            note=f"{num_failed} of {len(result.sections)} pages were not read" if num_failed else "",
            prompt_tokens=result.prompt_tokens,
            completion_tokens=result.completion_tokens,
            sources=tuple(section.key for section in result.sections if section.key),
        )

    def _raise_infrastructure_errors(self, result: CrawlResult) -> None:
        for section in result.sections:
            is_miss = isinstance(section.error, RecordMiss)
            if section.error is not None and not (is_miss and self._misses_are_empty):
                raise section.error

    def _last_query(self, log: Sequence[str]) -> str:
        for entry in reversed(log):
            if found := self._query.findall(entry):
                return str(found[-1][1]).strip()
        return ""


def last_reasoning(log: Sequence[str]) -> str:
    """Return the last thought of a turn, or what the model wrote outside of tags before its last call."""
    for entry in reversed(log):
        if thoughts := _THOUGHT.findall(entry):
            return str(thoughts[-1]).strip()
    return _BLOCK.sub("", log[-1]).strip() if log else ""
