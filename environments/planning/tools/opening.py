"""Create the tools that the settings of a planning agent enable; the modules of disabled tools are not imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from treadle.agent.tools.outcome import Tool
from treadle.core.errors import ConfigError
from treadle.environments.planning.settings import SEARCH_TAGS, PlanningSettings
from treadle.environments.planning.tools.settings import VISION
from treadle.environments.types import Resources

if TYPE_CHECKING:
    from treadle.agent.pages.summaries import PageSummarizer
    from treadle.web.search import WebSearch


def make_tools(settings: PlanningSettings, resources: Resources) -> Iterator[tuple[str, Tool]]:
    """Yield tag and tool, not opened yet, in the order of the dialect. Raises ConfigError for a missing model."""
    tags = settings.enabled_tools
    web = _web(settings, resources) if settings.searches_web else None
    for tag in tags:
        if tag in SEARCH_TAGS:
            from treadle.environments.planning.search_tool import DocumentSearch

            misses_are_empty = resources.misses_are_empty
            own = web if settings.search.uses_web else None
            yield tag, DocumentSearch(settings.search, web=own, misses_are_empty=misses_are_empty)
        elif tag == "crawl_page":
            from treadle.agent.pages.tool import CrawlPageTool

            assert web is not None, "crawl_page is enabled with search.web only"
            summarizer = _summarizer(settings, resources)
            yield tag, CrawlPageTool(settings.crawl_page, web, summarizer, misses_are_empty=resources.misses_are_empty)
        elif tag == "code":
            from treadle.environments.planning.tools.code import CodeTool

            yield tag, CodeTool(settings.code)
        else:
            from treadle.environments.planning.tools.visual_inspector import VisualInspector

            yield tag, VisualInspector(settings.visual_inspector, resources.roles.get(VISION), resources.store)


def _web(settings: PlanningSettings, resources: Resources) -> WebSearch:
    """Return the web search that search and pages share."""
    from treadle.web.record.stored_entries import WEB_STORE
    from treadle.web.search import WebSearch

    own = settings.search.web
    assert own is not None
    # A replay records nothing, so it needs no store of the run.
    store = resources.store(WEB_STORE) if resources.store is not None and own.mode != "replay" else None
    return WebSearch(own, store=store, summarized=False, reads_pages="crawl_page" in settings.enabled_tools)


def _summarizer(settings: PlanningSettings, resources: Resources) -> PageSummarizer | None:
    if settings.summarizer is None:
        return None
    session = resources.summarizer
    if session is None:
        raise ConfigError(
            f"environment.crawl_page.summarizer names {settings.summarizer}, but the stage was given no such model"
        )
    from treadle.agent.pages.summaries import PageSummarizer

    model = session.for_role("summarizer", settings.crawl_page.summarizer_sampling, only_messages=True)
    return PageSummarizer(model, added_tokens=session.tokenizer.added_tokens if session.tokenizer else frozenset())
