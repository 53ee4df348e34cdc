"""Settings of reading pages for a purpose."""

from __future__ import annotations

from pydantic import Field

from treadle.core.config import Section
from treadle.core.llm.config import Sampling


class PageSummarySampling(Sampling):
    """Sampling parameters for reading goals and for summaries of pages."""

    temperature: float = Field(default=0.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    max_tokens: int = Field(default=2_048, ge=1)
    """Maximum number of new tokens per request."""


class CrawlSettings(Section):
    """Reading of web pages that a model names by their URLs."""

    summarizer: str | None = None
    """Name under `models` of the model that reads the pages; none shows the passage of each page that is most like the
    query and the reasoning."""
    summarizer_sampling: PageSummarySampling = PageSummarySampling()
    """Sampling parameters for reading goals and summaries."""
    max_urls: int = Field(default=8, ge=1, le=100)
    """Most pages per call; further URLs are named as left out."""
    page_chars: int = Field(default=50_000, ge=1, le=50_000)
    """Most characters of a page that the summarizer reads."""
    extract_chars: int = Field(default=4_000, ge=2)
    """Most characters of a page that are shown without a summarizer."""
    summary_chars: int = Field(default=8_000, ge=1)
    """Most characters of one summary."""
    timeout_s: float = Field(default=480.0, gt=0)
    """Time limit of one call in seconds, for all pages and summaries together. Clients of the service should wait
    longer; those of Agent Foundation Models wait 500 s."""
    fetch_timeout_s: float = Field(default=90.0, gt=0)
    """Seconds in which the pages of one call must have been fetched; the others count as not readable."""
    summary_timeout_s: float = Field(default=300.0, gt=0)
    """Time limit of one summary in seconds, retries included."""
