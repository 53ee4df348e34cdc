from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.environments.planning.batch import (
    EMPTY_CALL,
    end_of_batch,
    find_tags,
    read_calls,
    split_label,
    split_queries,
)

WORDS = ("wiki_search", "crawl_page")
PARAMETERS = {"wiki_search": "query", "crawl_page": "urls"}


def _calls(text: str, **options: bool) -> list[tuple[str, str]]:
    calls = read_calls(text, 3, PARAMETERS, ("wiki_search",), **options)
    return [(call.id, call.text) for call in calls]


@pytest.mark.covers("planning-6")
def test_a_bar_separates_queries() -> None:
    assert _calls("<wiki_search> a | b || c </wiki_search>") == [
        ("t3.call_wiki_search_0_0", "a"),
        ("t3.call_wiki_search_0_1", "b"),
        ("t3.call_wiki_search_0_2", "c"),
    ]
    assert split_queries(r"x \| y") == ["x | y"]
    assert split_queries(r"x \d| \y") == [r"x \d", r"\y"]
    (call,) = read_calls("<wiki_search>|</wiki_search>", 0, PARAMETERS, ("wiki_search",))
    assert (call.id, call.error) == ("t0.call_wiki_search_0", EMPTY_CALL)


@pytest.mark.covers("planning-8")
def test_several_tags_are_one_batch() -> None:
    text = "<think>x</think><wiki_search>a</wiki_search>\n<crawl_page>u|v</crawl_page>"
    assert _calls(text) == [("t3.call_wiki_search_0_0", "a"), ("t3.call_crawl_page_1", "u|v")]
    assert _calls(text, several=False) == [("t3.call_wiki_search_0_0", "a")]
    assert end_of_batch(text + " and then <wiki_search>b</wiki_search>", WORDS) == len(text)
    assert end_of_batch("no call", WORDS) == 0


def test_labels_name_tasks() -> None:
    assert split_label("T2: when was it built") == ("T2", "when was it built")
    assert split_label("Task 2 : x") == ("Task 2", "x")
    assert split_label("time: 12") == ("", "time: 12")


@given(st.lists(st.sampled_from(["<a>", "</a>", "<b>", "</b>", "x", "\n"]), max_size=30).map("".join))
def test_tags_are_those_of_the_usual_pattern(text: str) -> None:
    """The pattern of the published agents takes quadratic time; the result is the same."""
    expected = [
        (match.start(), match.end(), word, match[1])
        for word in ("a", "b")
        for match in re.finditer(rf"<{word}>((?:(?!<{word}>).)*?)</{word}>", text, re.DOTALL)
    ]
    found = [(tag.start, tag.end, tag.name, tag.body) for tag in find_tags(text, ("a", "b"))]
    assert found == sorted(expected, key=lambda one: one[0])


@given(
    st.lists(st.text(alphabet=st.sampled_from(list("ab| ")), min_size=1).filter(lambda one: one.strip()), max_size=5)
)
def test_escaped_queries_are_read_back(queries: list[str]) -> None:
    written = "|".join(query.replace("|", r"\|") for query in queries)
    assert split_queries(written) == [query.strip() for query in queries]
