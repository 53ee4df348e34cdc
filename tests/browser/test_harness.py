"""The page watch detects violations; otherwise every test that relies on it would pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from support.browser import opened


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ("<img src='https://pages.example/x.png'>", "request: https://pages.example/x.png"),
        ("<script>alert('here')</script>", "dialog: here"),
        ("<script>throw new Error('broken')</script>", "error: broken"),
        ("<script>console.log('said')</script>", "log: said"),
    ],
)
def test_page_violations_are_reported(browser: Browser, tmp_path: Path, html: str, fault: str) -> None:
    (tmp_path / "page.html").write_text(html)
    with pytest.raises(AssertionError, match=fault), opened(browser) as page:
        page.goto((tmp_path / "page.html").as_uri())


def test_a_quiet_page_reports_nothing(page: Page, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!doctype html><title>quiet</title><p>Nothing.")
    page.goto((tmp_path / "page.html").as_uri())
    assert page.title() == "quiet"
