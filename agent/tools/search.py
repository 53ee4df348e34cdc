"""Answer an agent's search query with documents, or with a summary of them by another model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from treadle.agent.tools.outcome import NOT_ON_RECORD, CallContext, ToolOutcome
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.tools.searchers import Searcher, searcher_for
from treadle.agent.tools.summarizer import Summarizer
from treadle.core.gather import gather_or_cancel
from treadle.core.work_clock import work_clock
from treadle.retriever.index import MAX_QUERY_CHARS
from treadle.web.pages.control_tokens import without_known_tokens
from treadle.web.types import RecordMiss

if TYPE_CHECKING:
    from treadle.web.types import WebSearchResult

EMPTY_QUERY = "The search query is empty."
NO_HIT = "No documents were found for this query."
REFUSED = "The search engine does not take this query; put it in other words."
WEB_REFUSED = "only the corpus was searched: the search engine does not take this query"
TOO_SLOW = "The search took too long and was stopped."
CORPUS_TOO_SLOW = "only the web was searched: the corpus took too long"

__all__ = ["CORPUS_TOO_SLOW", "EMPTY_QUERY", "NO_HIT", "TOO_SLOW", "SearchTool", "SearchToolSettings"]


class WebSearcher(Protocol):
    """Interface of web search; `treadle.web.search.WebSearch` implements it."""

    async def open(self) -> None:
        """Prepare for searches. Raises TreadleError if that is impossible."""
        ...

    async def search(self, query: str, *, deadline: float) -> WebSearchResult:
        """Search the web. Raises ToolError, and SearchUnavailable if there is no result by the deadline."""
        ...

    async def wait_recorded(self) -> None:
        """Wait for requests in progress, each until its own deadline."""
        ...

    async def close(self) -> None:
        """Cancel requests in progress."""
        ...


@dataclass(frozen=True, slots=True)
class _SourceResult:
    """Result of one source: text for the agent, whole documents for the summarizer.

    Both are empty if nothing was found.
    """

    text: str = ""
    documents: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    recorded: bool = False
    note: str = ""
    refused: bool = False


class SearchTool:
    """Tool `search`: returns documents of a corpus, joined by blank lines, web pages, or a summary of either."""

    name = "search"

    def __init__(
        self,
        settings: SearchToolSettings,
        searcher: Searcher | None = None,
        summarizer: Summarizer | None = None,
        web: WebSearcher | None = None,
        *,
        misses_are_empty: bool = False,
    ) -> None:
        """Prepare the tool; `searcher` replaces that of the settings.

        `web` is required if the settings send searches to the web. With `misses_are_empty`, a query that a web replay
        has no entry for finds nothing, with a note, instead of raising RecordMiss.
        """
        self._settings = settings
        self._summarizer = summarizer
        if searcher is None and settings.uses_local:
            searcher = searcher_for(settings, settings.service, settings.top_n, settings.num_threads)
        self._searcher = searcher
        self._web = web
        self._misses_are_empty = misses_are_empty
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> SearchTool:
        try:
            for place in (self._searcher, self._web):
                if place is not None:
                    # Registered before opening, so that a failed open is cleaned up too.
                    self._stack.push_async_callback(place.close)
                    await place.open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if self._web is not None and not any(exc):  # after an error or cancellation, do not wait
                await self._web.wait_recorded()
        finally:
            await self._stack.aclose()

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Answer one query; `deadline` is a time of the work clock, and limits only the summary.

        The search itself has a limit of its own. It counts as infrastructure, so it holds the work clock. Raises
        ToolError if no search is possible, and ModelError if no summary is.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        # The retrieval service cuts queries in the same way, so both find the same documents.
        query = argument.strip()[:MAX_QUERY_CHARS].strip()
        outcome = await self._answer(query, deadline, context) if query else ToolOutcome("invalid", EMPTY_QUERY)
        return replace(outcome, seconds=loop.time() - started)

    async def _answer(self, query: str, deadline: float, context: CallContext | None) -> ToolOutcome:
        try:
            with work_clock().hold():
                found = await self._find(query, context.route if context is not None else None)
        except TimeoutError:
            return ToolOutcome("timeout", TOO_SLOW)
        is_empty = not found.text and not found.documents
        outcome = ToolOutcome(
            ("invalid" if found.refused else "empty") if is_empty else "ok",
            (REFUSED if found.refused else NO_HIT) if is_empty else found.text,
            cached=found.recorded,
            note=found.note,
            sources=found.sources,
        )
        if is_empty or self._summarizer is None or context is None:
            return outcome
        summary = await self._summarizer.summarize(
            query, found.documents, context, deadline=deadline, from_web=bool(found.sources)
        )
        # The summarizer may have copied a token spelling from a page, or decoded an escaped one.
        text = without_known_tokens(summary.text) if found.sources else summary.text
        return replace(
            outcome,
            text=text or found.text,
            note="; ".join(filter(None, (found.note, summary.note))),
            prompt_tokens=summary.prompt_tokens,
            completion_tokens=summary.completion_tokens,
        )

    async def _find(self, query: str, question_route: str | None) -> _SourceResult:
        """Search the corpus, the web or both, by the settings and the question's route. Raises TimeoutError."""
        route = self._settings.route_of(question_route)
        if route == "local":
            return await self._in_corpus(query)
        if route == "web":
            return await self._on_web(query)
        local, web = await gather_or_cancel([self._in_corpus_or_note(query), self._on_web(query)])
        return _SourceResult(
            "\n\n".join(filter(None, (local.text, web.text))),
            (*local.documents, *web.documents),
            web.sources,
            web.recorded,
            "; ".join(filter(None, (local.note, web.note, WEB_REFUSED if web.refused else ""))),
            # `refused` stays False: if the corpus has no hit either, the outcome is `empty`, since the corpus was
            # searched.
        )

    async def _in_corpus_or_note(self, query: str) -> _SourceResult:
        """Search the corpus in addition to the web; if that takes too long, return an empty result with a note."""
        try:
            return await self._in_corpus(query)
        except TimeoutError:
            return _SourceResult(note=CORPUS_TOO_SLOW)

    async def _in_corpus(self, query: str) -> _SourceResult:
        assert self._searcher is not None
        limit = asyncio.get_running_loop().time() + self._settings.timeout_s
        hits = await self._searcher.search(query, self._settings.top_n, deadline=limit)
        contents = [hit.contents for hit in hits]
        return _SourceResult(self.shown(contents), tuple(contents))

    def shown(self, contents: Sequence[str]) -> str:
        """Return documents, each a title line and text, as the agent reads them."""
        return "\n\n".join(map(self.cut, contents)).strip()

    async def _on_web(self, query: str) -> _SourceResult:
        """Search the web."""
        assert self._web is not None
        limit = asyncio.get_running_loop().time() + self._settings.timeout_s
        try:
            found = await self._web.search(query, deadline=limit)
        except RecordMiss:
            if not self._misses_are_empty:
                raise
            return _SourceResult(note=NOT_ON_RECORD)
        return _SourceResult(found.text, found.documents, found.sources, found.recorded, refused=found.refused)

    def cut(self, contents: str) -> str:
        """Return a document, cut after `document_chars` characters."""
        limit = self._settings.document_chars
        return contents if len(contents) <= limit else contents[:limit] + "..."
