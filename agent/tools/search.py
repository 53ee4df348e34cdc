"""The search tool: an agent's query becomes documents, or what another model finds in them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.search_config import SearchToolSettings
from treadle.agent.tools.searchers import Searcher, searcher_for
from treadle.agent.tools.summarizer import Summarizer
from treadle.retriever.index import MAX_QUERY_CHARS

EMPTY_QUERY = "The search query is empty."
NO_HIT = "No documents were found for this query."
TOO_SLOW = "The search took too long and was stopped."

__all__ = ["EMPTY_QUERY", "NO_HIT", "TOO_SLOW", "SearchTool", "SearchToolSettings"]


class SearchTool:
    """The tool `search`: documents joined by blank lines, each as its title line and text, or a summary of them."""

    name = "search"

    def __init__(
        self,
        settings: SearchToolSettings,
        searcher: Searcher | None = None,
        summarizer: Summarizer | None = None,
    ) -> None:
        self._settings = settings
        self._summarizer = summarizer
        self._searcher = (
            searcher if searcher is not None else searcher_for(settings, settings.service, settings.num_threads)
        )

    async def __aenter__(self) -> SearchTool:
        try:
            await self._searcher.open()
        except BaseException:
            await self._searcher.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._searcher.close()

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
        limit = min(deadline, asyncio.get_running_loop().time() + self._settings.timeout_s)
        try:
            hits = await self._searcher.search(query, self._settings.top_n, deadline=limit)
        except TimeoutError:
            return ToolOutcome("timeout", TOO_SLOW)
        if not hits:
            return ToolOutcome("empty", NO_HIT)
        documents = "\n\n".join(self._cut(hit.contents) for hit in hits).strip()
        if self._summarizer is None or context is None:
            return ToolOutcome("ok", documents)
        whole = [hit.contents for hit in hits]
        summary = await self._summarizer.summarize(query, whole, context, deadline=deadline)
        return ToolOutcome(
            "ok",
            summary.text or documents,
            note=summary.note,
            prompt_tokens=summary.prompt_tokens,
            completion_tokens=summary.completion_tokens,
        )

    def _cut(self, contents: str) -> str:
        limit = self._settings.document_chars
        return contents if len(contents) <= limit else contents[:limit] + "..."
