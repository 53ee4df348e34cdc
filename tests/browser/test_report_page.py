"""The page of runs in a real browser: quiet, without a request, readable light, dark, narrow and on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page
from support.tables.page_runs import NUM_QUESTIONS, add_flywheel, evaluated_run

from treadle.core.store.storage import LocalStorage
from treadle.tasks.page.build import report_page

HALF = [number % 2 == 0 for number in range(NUM_QUESTIONS)]
MORE = [number % 2 == 0 or number % 3 == 0 for number in range(NUM_QUESTIONS)]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'</style></svg>\u202e"
_OPAQUE = "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page of two runs, one of them with hostile names."""
    root = tmp_path_factory.mktemp("page")
    plain = evaluated_run(root, "first", {"base": HALF, "tuned": MORE}, datasets=("a", "b"))
    add_flywheel(plain)
    hostile = evaluated_run(root, "second", {"base": MORE, "tuned": HALF}, text=HOSTILE)
    add_flywheel(hostile, HOSTILE)
    assert isinstance(plain.storage, LocalStorage)
    (root / "report.html").write_bytes(report_page([plain, hostile]))
    return root / "report.html"


def background(page: Page, selector: str) -> str:
    colour: str = page.evaluate("s => getComputedStyle(document.querySelector(s)).backgroundColor", selector)
    return colour


def ink(page: Page) -> str:
    """Colour in which the browser fills the first text of a chart."""
    colour: str = page.evaluate("() => getComputedStyle(document.querySelector('svg text')).fill")
    return colour


def overflows(page: Page) -> bool:
    """Return whether the page as a whole scrolls sideways."""
    wider: bool = page.evaluate("() => document.documentElement.scrollWidth > document.documentElement.clientWidth")
    return wider


def test_report_page_loads_without_requests_and_shows_all_sections(page: Page, file: Path, shots: Path) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    assert requests == [file.as_uri()]
    assert page.locator("section h2").count() == page.locator("nav a").count() == 12
    for summary in page.locator("summary").all():
        if summary.is_visible():
            summary.click()
    assert page.locator("svg").count() >= 8
    for svg in page.locator("section > figure svg").all():
        box = svg.bounding_box()
        assert box is not None and box["width"] > 300 and box["height"] > 60
    page.screenshot(path=shots / "report-light.png", full_page=True)


def test_report_page_is_complete_without_scripts(plain_page: Page, file: Path) -> None:
    plain_page.goto(file.as_uri())
    plain_page.locator("summary").first.click()
    assert plain_page.locator("details[open] table").first.is_visible()


def test_hostile_names_are_shown_verbatim(page: Page, file: Path) -> None:
    page.goto(file.as_uri())
    assert page.locator("main img, main script").count() == 0
    shown = page.locator("#headline th[scope=row]", has_text="<script>alert(2)</script>")
    assert shown.count() > 0
    assert page.locator("svg text", has_text="<img src=x").count() > 0


def test_dark_mode_applies_to_charts(page: Page, dark_page: Page, file: Path, shots: Path) -> None:
    for one in (page, dark_page):
        one.goto(file.as_uri())
    assert background(page, "section") == _OPAQUE
    assert background(dark_page, "section") != _OPAQUE
    assert ink(page) != ink(dark_page)
    dark_page.screenshot(path=shots / "report-dark.png", full_page=True)


def test_narrow_windows_and_print_show_everything(page: Page, dark_page: Page, file: Path, shots: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(file.as_uri())
    assert not overflows(page)
    page.screenshot(path=shots / "report-narrow.png")
    dark_page.emulate_media(media="print", color_scheme="dark")
    dark_page.goto(file.as_uri())
    assert background(dark_page, "section") == _OPAQUE
    assert not dark_page.locator("nav").is_visible()


def test_keyboard_reaches_results_and_opens_folded_sections(page: Page, file: Path) -> None:
    page.goto(file.as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.url.endswith("#headline")
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None


def test_every_chart_has_a_title_and_a_description(page: Page, file: Path) -> None:
    page.goto(file.as_uri())
    for svg in page.locator("svg").all():
        assert svg.get_attribute("role") == "img"
        labels = (svg.get_attribute("aria-labelledby") or "").split()
        texts = [page.locator(f"[id='{label}']").text_content() for label in labels]
        assert len(texts) == 2 and all(texts)
