"""URLs in what a model asks to read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.pages.links import find_urls, split_links


@pytest.mark.parametrize(
    ("argument", "urls"),
    [
        ("https://a.org/x", ["https://a.org/x"]),
        (" https://a.org | http://b.org/?q=1 ", ["https://a.org", "http://b.org/?q=1"]),
        ("[A page](https://a.org/x)|<https://b.org>", ["https://a.org/x", "https://b.org"]),
        ("see https://a.org/x. | none here |", ["https://a.org/x"]),
        ("HTTPS://A.org/X", ["HTTPS://A.org/X"]),
        (r"https://a.org/?f=x\|y|https://b.org", ["https://a.org/?f=x|y", "https://b.org"]),
        ("https://a.org/A_(b)", ["https://a.org/A_(b)"]),
        ("https://a.org https://b.org", ["https://a.org"]),
        ("ftp://a.org | a.org | |", []),
        ("", []),
    ],
)
def test_urls_are_found_between_bars_in_links_and_in_texts(argument: str, urls: list[str]) -> None:
    assert find_urls(split_links(argument)) == urls


@given(st.lists(st.text(), max_size=5))
def test_any_texts_give_http_urls_alone(texts: list[str]) -> None:
    found = find_urls(texts)
    assert len(found) <= len(texts) and all(url.lower().startswith("http") and not url.split()[1:] for url in found)
