"""Configuration of `treadle retriever`: an index, the service in front of it, and the web that the service reads."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from treadle.agent.pages.settings import CrawlSettings
from treadle.core.config import Section
from treadle.core.llm.config import ModelSettings
from treadle.retriever.config import IndexSettings
from treadle.retriever.service.config import ServiceSettings
from treadle.web.cached import ServedWebSettings, WebCacheSettings


class RetrieverConfig(Section):
    """The configuration file of `treadle retriever`."""

    index: IndexSettings = IndexSettings()
    """Documents and their ranking."""
    service: ServiceSettings = ServiceSettings()
    """Service in front of the index."""
    web: ServedWebSettings = ServedWebSettings()
    """The web behind `/crawl_page`, and behind `/search` of `api = "afm"` if it has a provider."""
    cache: WebCacheSettings = WebCacheSettings()
    """Cache of searches and pages, shared by all processes."""
    crawl: CrawlSettings = CrawlSettings()
    """Reading of pages behind `/crawl_page`."""
    models: dict[str, ModelSettings] = {}
    """Models by name; `crawl.summarizer` names one of them."""

    @model_validator(mode="after")
    def _check_summarizer(self) -> Self:
        name = self.crawl.summarizer
        if name is not None and name not in self.models:
            raise ValueError(f'crawl.summarizer = "{name}" names no model; add a table models.{name}')
        return self
