"""Pages are found in messages, and their pictures all get the same source."""

from __future__ import annotations

import pytest

from treadle.agent.tools.workspace.files import BadTask
from treadle.environments.colbench.frontend.markup import (
    MAX_PAGE_CHARS,
    find_page,
    target_page,
    with_fixed_pictures,
)

FIXED = "https://picsum.photos/id/48"


@pytest.mark.covers("sweet-20")
@pytest.mark.parametrize("legacy", [False, True])
def test_random_pictures_become_one_picture_of_their_size(legacy: bool) -> None:
    def fixed(address: str) -> str:
        return with_fixed_pictures(f'<img src="{address}">', legacy=legacy)

    assert fixed("https://source.unsplash.com/random/300x200/?nature") == f'<img src="{FIXED}/300/200">'
    assert fixed("https://picsum.photos/640/480?random=1") == f'<img src="{FIXED}/640/480?random=1">'
    assert fixed(f"{FIXED}/640/480") == f'<img src="{FIXED}/640/480">'
    once = fixed("https://picsum.photos/640/480?random=1")
    assert with_fixed_pictures(once, legacy=legacy) == once


@pytest.mark.covers("sweet-20")
@pytest.mark.parametrize(
    ("address", "default", "legacy"),
    [
        ("https://source.unsplash.com/random/300x200/?nature,water", "/300/200", f"{FIXED}/300/200,water"),
        ("https://source.unsplash.com/random/300x200", "/300/200", None),
        ("https://source.unsplash.com/1600x900/?sea&sig=3", "/1600/900", None),
        ("https://source.unsplash.com/random/?sea", "/640/480", None),
        ("https://picsum.photos/id/7/30/20", "/30/20", None),
        ("https://picsum.photos/seed/tree/30/20", "/30/20", None),
        ("http://picsum.photos/30/20", "/30/20", None),
        ("https://picsum.photos/200?grayscale", "/200/200?grayscale", None),
    ],
)
def test_default_profile_knows_all_forms_and_legacy_those_of_the_published_program(
    address: str, default: str, legacy: str | None
) -> None:
    assert with_fixed_pictures(f"url('{address}')") == f"url('{FIXED}{default}')"
    assert with_fixed_pictures(address, legacy=True) == (legacy or address)


@pytest.mark.covers("sweet-21")
@pytest.mark.parametrize("legacy", [False, True])
def test_first_page_of_a_message_is_taken(legacy: bool) -> None:
    one, other = '<html lang="en">a\nb</html>', "<html>c</html>"
    for text, expected in (
        (f"<!DOCTYPE html>\n{one}\nbye", one),
        (f"{one}{other}", one),
        ("text <body class='x'>c</body> text", "<body class='x'>c</body>"),
    ):
        page = find_page(text, legacy=legacy)
        assert page is not None and page.html == expected and not page.is_repaired
    assert find_page("no page, but <htmlish> words", legacy=False) is None


@pytest.mark.covers("sweet-21")
def test_page_without_its_end_is_repaired_and_flagged_except_in_legacy() -> None:
    text = "OUTPUT:\n```html\n<html><body><p>cut off\n```\nDone."
    assert find_page(text, legacy=True) is None
    page = find_page(text)
    assert page is not None and page.is_repaired and page.html == "<html><body><p>cut off</html>"
    assert find_page("<HTML>x</HTML>", legacy=True) is None
    shouted = find_page("<HTML>x</HTML>")
    assert shouted is not None and shouted.html == "<HTML>x</HTML>" and not shouted.is_repaired


def test_long_endless_messages_are_read_in_one_pass() -> None:
    endless = "\n" * 300_000
    page = find_page(f"<html>{endless}")
    assert page is not None and page.html == f"<html>{endless}</html>"
    assert find_page("<html" * 60_000, legacy=True) is None
    shown = find_page("<html><body>" * 60_000 + "<body></body>", legacy=True)
    assert shown is not None and shown.html.endswith("<body></body>")


@pytest.mark.parametrize("payload", [{}, {"page": 3}, {"page": " "}, {"page": "x" * (MAX_PAGE_CHARS + 1)}])
def test_unusable_target_is_refused(payload: dict[str, object]) -> None:
    with pytest.raises(BadTask):
        target_page(payload)
