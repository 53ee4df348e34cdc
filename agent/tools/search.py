"""The search tool: an agent's query becomes documents, or what another model finds in them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from treadle.agent.tools.outcome import NOT_ON_RECORD, CallContext, ToolOutcome
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.tools.searchers import Searcher, searcher_for
from treadle.agent.tools.summarizer import Summarizer
from treadle.agent.web.control_tokens import without_known_tokens
from treadle.agent.web.types import RecordMiss
from treadle.core.waiting import all_of
from treadle.retriever.index import MAX_QUERY_CHARS

if TYPE_CHECKING:
    from treadle.agent.web.types import WebFound

EMPTY_QUERY = "The search query is empty."
NO_HIT = "No documents were found for this query."
REFUSED = "The search engine does not take this query; put it in other words."
WEB_REFUSED = "only the corpus was searched: the search engine does not take this query"
TOO_SLOW = "The search took too long and was stopped."
CORPUS_TOO_SLOW = "only the web was searched: the corpus took too long"

__all__ = ["CORPUS_TOO_SLOW", "EMPTY_QUERY", "NO_HIT", "TOO_SLOW", "SearchTool", "SearchToolSettings"]


class WebSearcher(Protocol):
    """What is needed of a search of the web; `treadle.agent.web.search.WebSearch` fits."""

    async def open(self) -> None:
        """Get ready; raises TreadleError where that is impossible."""
        ...

    async def search(self, query: str, *, deadline: float) -> WebFound:
        """What the web says; raises SearchUnavailable where that is not to be had by the deadline, and ToolError."""
        ...

    async def landed(self) -> None:
        """Wait for what is under way, each part of it until its own deadline."""
        ...

    async def close(self) -> None:
        """Break off what is under way."""
        ...


@dataclass(frozen=True, slots=True)
class _Found:
    """What a place has to say: text for the agent, whole documents for the summarizer. Nothing found is empty."""

    text: str = ""
    documents: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    recorded: bool = False
    note: str = ""
    refused: bool = False


class SearchTool:
    """The tool `search`: documents of a corpus, joined by blank lines, pages of the web, or a summary of either."""

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
        """`searcher` stands in for what the settings name; `web` is needed where they send searches to the web.

        `misses_are_empty`: what a replay of the web lacks is as if nothing were found, with a note, and no RecordMiss.
        """
        self._settings = settings
        self._summarizer = summarizer
        if searcher is None and settings.uses_local:
            searcher = searcher_for(settings, settings.service, settings.num_threads)
        self._searcher = searcher
        self._web = web
        self._misses_are_empty = misses_are_empty
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> SearchTool:
        try:
            for place in (self._searcher, self._web):
                if place is not None:
                    self._stack.push_async_callback(place.close)
                    await place.open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if self._web is not None and not any(exc):  # broken off, it waits for nothing
                await self._web.landed()
        finally:
            await self._stack.aclose()

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Answer one query; `deadline` is in the event loop's clock, and all that bounds a summary.

        Raises ToolError where no search is possible, ModelError where no summary is.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        # Like the service does, so that both find the same.
        query = argument.strip()[:MAX_QUERY_CHARS].strip()
        outcome = await self._answer(query, deadline, context) if query else ToolOutcome("invalid", EMPTY_QUERY)
        return replace(outcome, seconds=loop.time() - started)

    async def _answer(self, query: str, deadline: float, context: CallContext | None) -> ToolOutcome:
        try:
            found = await self._find(query, deadline, context.route if context is not None else None)
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
        # A page may have had its tokens copied, or written in another way and read back.
        text = without_known_tokens(summary.text) if found.sources else summary.text
        return replace(
            outcome,
            text=text or found.text,
            note="; ".join(filter(None, (found.note, summary.note))),
            prompt_tokens=summary.prompt_tokens,
            completion_tokens=summary.completion_tokens,
        )

    async def _find(self, query: str, deadline: float, asked: str | None) -> _Found:
        """What there is to find, by the question's own route; raises TimeoutError."""
        route = self._settings.route_of(asked)
        if route == "local":
            return await self._in_corpus(query, deadline)
        if route == "web":
            return await self._on_web(query, deadline)
        local, web = await all_of([self._in_time(query, deadline), self._on_web(query, deadline)])
        return _Found(
            "\n\n".join(filter(None, (local.text, web.text))),
            (*local.documents, *web.documents),
            web.sources,
            web.recorded,
            "; ".join(filter(None, (local.note, web.note, WEB_REFUSED if web.refused else ""))),
            # Where the corpus has nothing either, nothing is found: it was searched.
        )

    async def _in_time(self, query: str, deadline: float) -> _Found:
        """The same as of the corpus alone, where it is not all that is searched: one that is late says nothing."""
        try:
            return await self._in_corpus(query, deadline)
        except TimeoutError:
            return _Found(note=CORPUS_TOO_SLOW)

    async def _in_corpus(self, query: str, deadline: float) -> _Found:
        assert self._searcher is not None
        limit = min(deadline, asyncio.get_running_loop().time() + self._settings.timeout_s)
        hits = await self._searcher.search(query, self._settings.top_n, deadline=limit)
        documents = "\n\n".join(self._cut(hit.contents) for hit in hits).strip()
        return _Found(documents, tuple(hit.contents for hit in hits))

    async def _on_web(self, query: str, deadline: float) -> _Found:
        """What the web has; raises TimeoutError where the rollout's own time is over.

        That time is no time of the search: what is under way goes on, and comes on record as it is.
        """
        assert self._web is not None
        limit = asyncio.get_running_loop().time() + self._settings.timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                found = await self._web.search(query, deadline=limit)
        except RecordMiss:
            if not self._misses_are_empty:
                raise
            return _Found(note=NOT_ON_RECORD)
        return _Found(found.text, found.documents, found.sources, found.recorded, refused=found.refused)

    def _cut(self, contents: str) -> str:
        limit = self._settings.document_chars
        return contents if len(contents) <= limit else contents[:limit] + "..."
