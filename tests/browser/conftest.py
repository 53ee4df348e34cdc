"""A real browser for the HTML pages: the installed chromium, without the network.

If it is missing, these tests fail: they run only on request (`make test-browser`), so nothing is skipped in silence.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.browser import opened

# Only a fault takes so long.
expect.set_options(timeout=60_000)

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SHOTS = "TREADLE_SCREENSHOTS"
"""Environment variable: folder for the pictures that tests take; without it they go to pytest's own."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium with a profile of its own, which ends with the session."""
    path = os.environ.get("TREADLE_CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.fail("there is no chromium here: `apt-get install chromium`, or name it in TREADLE_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Yield a light page; see `opened`."""
    with opened(browser, color_scheme="light") as page:
        yield page


@pytest.fixture
def dark_page(browser: Browser) -> Iterator[Page]:
    """Yield a dark page; see `opened`."""
    with opened(browser, color_scheme="dark") as page:
        yield page


@pytest.fixture
def plain_page(browser: Browser) -> Iterator[Page]:
    """Yield a page without JavaScript; see `opened`."""
    with opened(browser, java_script_enabled=False) as page:
        yield page


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for pictures."""
    folder = Path(os.environ[SHOTS]) if SHOTS in os.environ else tmp_path_factory.mktemp("shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
