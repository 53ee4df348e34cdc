"""Pages in a real browser, watched: none may reach beyond this machine, open a dialog, or say or throw anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Request, Route


class Watch:
    """Forbidden actions of a page."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def attach(self, page: Page) -> None:
        """Stop requests that leave this machine, and remember them with errors and messages of scripts."""
        page.route("**/*", self._route)
        page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._dialog)

    def _route(self, route: Route, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("file", "data") or url.hostname in ("127.0.0.1", "localhost", "::1"):
            route.continue_()
        else:
            self.faults.append(f"request: {request.url}")
            route.abort()

    def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """Yield a page of 1280 by 900 points; a fault seen until the end of the block fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    context.set_default_timeout(60_000)
    watch, page = Watch(), context.new_page()
    watch.attach(page)
    try:
        yield page
    finally:
        context.close()
    if watch.faults:
        raise AssertionError("; ".join(watch.faults))
