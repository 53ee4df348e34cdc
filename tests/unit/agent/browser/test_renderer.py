"""Which browser draws a page: one that pages share, and at last one of its own. Browsers are played."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.agent.browser import renderer
from treadle.agent.browser.devtools import BrowserLost
from treadle.agent.browser.renderer import PageNotDrawn, PageRenderer
from treadle.agent.browser.settings import BrowserSettings


class Browser:
    """Browser that ends with all of its pages if one of them is greedy."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.product = "Played/1"
        self.devtools = self
        self.is_closed = False

    async def draw(self, html: str) -> bytes:
        assert not self.is_closed
        self.pages.append(html)
        for _ in range(20):  # others may join
            await asyncio.sleep(0)
        if any("greedy" in one for one in self.pages):
            raise BrowserLost("the browser has ended")
        return html.encode()


@pytest.fixture
def browsers(monkeypatch: pytest.MonkeyPatch) -> list[Browser]:
    """Return the browsers that are started."""
    found: list[Browser] = []

    @contextlib.asynccontextmanager
    async def running(*_: object) -> AsyncIterator[Browser]:
        browser = Browser()
        found.append(browser)
        yield browser
        browser.is_closed = True

    async def draw(browser: Any, html: str, *_: object) -> bytes:
        drawn: bytes = await browser.draw(html)
        return drawn

    monkeypatch.setattr(renderer, "ChromiumLauncher", lambda settings: SimpleNamespace(running=running))
    monkeypatch.setattr(renderer, "draw_page", draw)
    return found


async def test_page_that_ends_its_browser_does_not_take_its_neighbours_along(browsers: list[Browser]) -> None:
    async with PageRenderer(BrowserSettings(), lambda url: None) as pages:
        drawn = await asyncio.gather(*map(pages.draw, ("greedy", "a", "b")), return_exceptions=True)
        assert isinstance(drawn[0], PageNotDrawn) and drawn[1:] == [b"a", b"b"]
        assert await pages.draw("c") == b"c"
    assert [one.pages for one in browsers] == [["greedy", "a", "b"], ["greedy"], ["a"], ["b"], ["c"]]


async def test_browser_is_shared_until_it_has_drawn_its_number_of_pages(browsers: list[Browser]) -> None:
    async with PageRenderer(BrowserSettings(pages_per_browser=2, pages_at_once=1), lambda url: None) as pages:
        assert await asyncio.gather(*map(pages.draw, "abcba")) == [b"a", b"b", b"c", b"b", b"a"]
    assert [one.pages for one in browsers] == [["a", "b"], ["c"]], "equal pages are drawn once"
