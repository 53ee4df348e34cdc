"""Create the tools that the environment's settings enable; the modules of disabled tools are not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.agent.tools.outcome import Tool
from treadle.environments.question.settings import QuestionSettings

if TYPE_CHECKING:
    from treadle.agent.tools.search import WebSearcher
    from treadle.agent.tools.summarizer import Summarizer
    from treadle.core.store.keyed_store import KeyedStore


def make_tools(
    settings: QuestionSettings,
    summarizer: Summarizer | None = None,
    store: Callable[[str], KeyedStore] | None = None,
    *,
    misses_are_empty: bool = False,
) -> list[Tool]:
    """Return the enabled tools, not opened yet.

    `summarizer` summarizes search results, and `store` returns a store of the run by its name. For `misses_are_empty`
    see `SearchTool`.
    """
    tools: list[Tool] = []
    if settings.call_limit("python"):
        from treadle.agent.tools.python import PythonTool

        python = settings.python
        tools.append(
            PythonTool(python.sandbox, time_limit_s=python.time_limit_s, max_output_chars=python.max_output_chars)
        )
    if settings.call_limit("search"):
        from treadle.agent.tools.search import SearchTool

        web = _web_search(settings, summarized=summarizer is not None, store=store)
        tools.append(SearchTool(settings.search, summarizer=summarizer, web=web, misses_are_empty=misses_are_empty))
    return tools


def _web_search(
    settings: QuestionSettings, *, summarized: bool, store: Callable[[str], KeyedStore] | None
) -> WebSearcher | None:
    web = settings.search.web
    if web is None or not settings.searches_web:
        return None
    from treadle.web.record.stored_entries import WEB_STORE
    from treadle.web.search import WebSearch

    # A replay records nothing, so it needs no store of the run.
    web_store = store(WEB_STORE) if store is not None and web.mode != "replay" else None
    return WebSearch(web, store=web_store, summarized=summarized)


def sandbox_facts(settings: QuestionSettings) -> dict[str, str]:
    """Return isolation, Python and package versions of the sandbox, for the stage's record; empty without the tool."""
    if not settings.call_limit("python"):
        return {}
    from treadle.agent.sandbox.bubblewrap import describe

    return {f"sandbox_{name}": value for name, value in describe(settings.python.sandbox).items()}
