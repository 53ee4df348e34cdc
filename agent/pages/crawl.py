"""Read several pages for one purpose: fetch them at once, work out a reading goal, and return what each page has on it.

The environment's tool `crawl_page` and the route `/crawl_page` of services both use it. A page that cannot be read, and
a summary that cannot be made, are marked as such and never look like content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from treadle.agent.pages.settings import CrawlSettings
from treadle.agent.pages.summaries import ModelText, PageSummarizer
from treadle.agent.tools.outcome import clip
from treadle.core.errors import ContextTooLong, DeadlineExceeded, ModelError, StorageError, ToolError, TreadleError
from treadle.core.gather import gather_or_cancel
from treadle.core.untrusted.sanitize import one_line
from treadle.core.work_clock import work_clock
from treadle.web.pages.control_tokens import without_known_tokens
from treadle.web.pages.passages import clean, window
from treadle.web.types import PageEntry, RecordMiss, Unfetchable
from treadle.web.urls import checked_url

_SHOWN_URL_CHARS = 500
_REASON_CHARS = 300

SectionStatus = Literal["ok", "page_failed", "summary_failed"]


class PageSource(Protocol):
    """Source of web pages; `treadle.web.search.WebSearch` and `treadle.web.cached.CachedWeb` implement it."""

    async def page(self, url: str, *, deadline: float) -> tuple[PageEntry, bool]:
        """Return the page at a URL in normal form, and whether it was recorded or cached already.

        `deadline` is in the event loop's clock. Raises RecordMiss in a replay, StorageError, and SearchUnavailable if
        other work left no time for the page.
        """
        ...


@dataclass(frozen=True, slots=True)
class Purpose:
    """Purpose of reading pages.

    Attributes:
        query: Search that led to the pages; may be empty.
        reasoning: Latest thoughts of the agent; may be empty.
        makes_goal: Whether a model turns the reasoning into a reading goal first; otherwise it is used unchanged.
        seed: Seed of the model's requests.
    """

    query: str
    reasoning: str
    makes_goal: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PageSection:
    """Result of one page.

    Attributes:
        url: URL as asked for.
        status: Whether there is content, or what failed.
        text: Content, or the reason why there is none.
        key: Key of the page's entry in the record; empty without one.
        is_recorded: Whether the entry existed before this call.
        error: Error that is not the page's fault, such as an unreachable model; None for a bad page.
    """

    url: str
    status: SectionStatus
    text: str
    key: str = ""
    is_recorded: bool = False
    error: TreadleError | None = None

    def render(self, number: int) -> str:
        """Return the text for the agent."""
        url = without_known_tokens(one_line(self.url)[:_SHOWN_URL_CHARS])
        if self.status == "ok":
            return f"Page {number} [{url}] Summary:\n{self.text}"
        what = "Page content not accessible" if self.status == "page_failed" else "Summary not available"
        return f"Page {number} [{url}]: [{what}: {self.text}]"


@dataclass(slots=True)
class CrawlResult:
    """Sections in the order of the URLs, and the tokens that the model took."""

    sections: list[PageSection] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def render(self) -> str:
        """Return the text for the agent: all sections, separated by blank lines."""
        return "\n\n".join(section.render(number) for number, section in enumerate(self.sections, 1))

    @property
    def has_content(self) -> bool:
        """Whether any page could be read."""
        return any(section.status == "ok" for section in self.sections)

    def count(self, said: ModelText) -> str:
        """Add the tokens of a model's text, and return the text."""
        self.prompt_tokens += said.prompt_tokens
        self.completion_tokens += said.completion_tokens
        return said.text


class Crawler:
    """Reader of pages for a purpose; many calls use it concurrently on one event loop."""

    def __init__(self, settings: CrawlSettings, pages: PageSource, summarizer: PageSummarizer | None = None) -> None:
        self._settings = settings
        self._pages = pages
        self._summarizer = summarizer

    async def read(self, urls: Sequence[str], purpose: Purpose, *, deadline: float) -> CrawlResult:
        """Return a section for each URL, in their order; `deadline` is a time of the work clock for the summaries.

        Failures of a page or a model are in the sections; BudgetExceeded is raised.
        """
        result = CrawlResult()
        fetched_by = asyncio.get_running_loop().time() + self._settings.fetch_timeout_s
        most = self._settings.max_urls
        goal = _Goal(self._summarizer, purpose, result, deadline)
        try:
            sections = await gather_or_cancel(
                [self._section(url, purpose, goal, fetched_by, deadline, result) for url in urls[:most]]
            )
        finally:
            goal.cancel()
        left_out = f"not read: at most {most} pages are read per call"
        result.sections = [*sections, *(PageSection(url, "page_failed", left_out) for url in urls[most:])]
        return result

    async def _section(
        self, url: str, purpose: Purpose, goal: _Goal, fetched_by: float, deadline: float, result: CrawlResult
    ) -> PageSection:
        try:
            with work_clock().hold():
                page, was_recorded = await self._pages.page(str(checked_url(url)), deadline=fetched_by)
        except Unfetchable as failure:
            return PageSection(url, "page_failed", f"{failure.kind}: {failure.detail}")
        except (ToolError, StorageError) as error:
            said = "not on record" if isinstance(error, RecordMiss) else _reason(error)
            return PageSection(url, "page_failed", said, error=error)
        if page.failure is not None:
            reason = f"{page.failure}: {page.detail}" if page.detail else page.failure
            return PageSection(url, "page_failed", reason, page.key, was_recorded)
        status, text, cause = await self._content(page, purpose, goal, deadline, result)
        return PageSection(url, status, text, page.key, was_recorded, cause)

    async def _content(
        self, page: PageEntry, purpose: Purpose, goal: _Goal, deadline: float, result: CrawlResult
    ) -> tuple[SectionStatus, str, TreadleError | None]:
        """Return a status, the content for the purpose or the reason why there is none, and the error behind it."""
        text = clean(page.text[: self._settings.page_chars])
        if self._summarizer is None:
            sought = f"{purpose.query} {purpose.reasoning}"
            passage = window(text, sought, num_chars=self._settings.extract_chars // 2, least=0.0)
            return "ok", without_known_tokens(passage), None
        try:
            aim = await goal.text()
            until = min(deadline, work_clock().time() + self._settings.summary_timeout_s)
            said = await self._summarizer.summary(text, purpose.query, aim, seed=purpose.seed, deadline=until)
        except ContextTooLong:
            return "summary_failed", "the page is longer than the window of the model that reads it", None
        except DeadlineExceeded as error:
            return "summary_failed", "it was not made within its time limit", error
        except ModelError as error:
            return "summary_failed", _reason(error), error
        summary = result.count(said)
        if not summary:
            return "summary_failed", "the model that reads the page said nothing", None
        return "ok", clip(summary, self._settings.summary_chars), None


class _Goal:
    """Reading goal of one call, made once and only if a page could be read."""

    def __init__(
        self, summarizer: PageSummarizer | None, purpose: Purpose, result: CrawlResult, deadline: float
    ) -> None:
        self._summarizer, self._purpose, self._result = summarizer, purpose, result
        self._deadline = deadline
        self._task: asyncio.Task[ModelText] | None = None

    async def text(self) -> str:
        """Return the goal; the reasoning itself if no goal should be made, or if the model's reply is empty."""
        purpose = self._purpose
        if self._summarizer is None or not purpose.makes_goal or not purpose.reasoning.strip():
            return purpose.reasoning
        if self._task is None:
            made = self._summarizer.goal(purpose.reasoning, seed=purpose.seed, deadline=self._deadline)
            self._task = asyncio.create_task(made)
            self._task.add_done_callback(self._count)
        said = await asyncio.shield(self._task)
        return said.text or purpose.reasoning

    def cancel(self) -> None:
        """Stop a request in progress."""
        if self._task is not None:
            self._task.cancel()

    def _count(self, task: asyncio.Task[ModelText]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._result.count(task.result())


def _reason(error: TreadleError) -> str:
    return without_known_tokens(one_line(str(error))[:_REASON_CHARS])
