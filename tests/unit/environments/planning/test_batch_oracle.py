"""The calls of turns compared with the rules of the published agents, written down as plainly as possible."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.environments.planning.batch import EMPTY_CALL, end_of_batch, find_tags, read_calls, split_queries

SPLIT, WHOLE, INACTIVE = "wiki_search", "crawl_page", "code"
PARAMETERS = {SPLIT: "query", WHOLE: "urls"}
_MARKERS = [
    marker
    for word in (SPLIT, WHOLE, INACTIVE, "think", "answer", "observation", "wiki_searc", "wiki_search2")
    for marker in (f"<{word}>", f"</{word}>")
]
_ODD = ["< wiki_search>", "<wiki_search >", "<WIKI_SEARCH>", "</wiki_search", "<wiki_search", "<", ">", "/", "<<", "\\"]
_TEXTS = ["|", "||", " | ", "a", "b c", "é", "日本", "\U0001f600", "\u2028", "\x85", "\x1c", "\x00", "\ud800", "\u200b"]
_SPACE = [" ", "\n", "\r\n", "\t", "\u00a0", "\x0b", "\ufeff", ""]
pieces = st.one_of(
    st.sampled_from(_MARKERS),
    st.sampled_from(_ODD),
    st.sampled_from(_TEXTS),
    st.sampled_from(_SPACE),
    st.text(max_size=3),
)
turns = st.lists(pieces, max_size=25).map("".join)


def matches(text: str, words: Sequence[str]) -> list[tuple[int, int, str, str]]:
    """Apply one pattern per word: not greedy, any character, no opening marker inside; sorted by position."""
    found = []
    for word in words:
        for match in re.finditer(rf"<{word}>((?:(?!<{word}>).)*?)</{word}>", text, re.DOTALL):
            found.append((match.start(), match.end(), word, match[1]))
    return sorted(found)


def published_calls(text: str) -> list[tuple[str, str, str]]:
    """Return id, tool and argument of each call: queries between bars, without white space around them."""
    calls = []
    for index, (_, _, word, body) in enumerate(matches(text, list(PARAMETERS))):
        if word == SPLIT:
            parts = [part.strip() for part in body.split("|")]
            for number, part in enumerate([part for part in parts if part]):
                calls.append((f"call_{word}_{index}_{number}", word, part))
        elif body.strip():
            calls.append((f"call_{word}_{index}", word, body.strip()))
    return calls


@given(turns)
@example("<wiki_search>a<wiki_search>b</wiki_search>c</wiki_search>")
@example("<wiki_search>a<crawl_page>b</wiki_search>c</crawl_page>")
@example("<wiki_search><crawl_page>u</crawl_page></wiki_search>")
@example("</wiki_search><wiki_search>a|b\r\n|\x00</wiki_search><wiki_search>c")
@example("<wiki_search></wiki_search><wiki_search>|</wiki_search>")
@settings(max_examples=examples(600))
def test_calls_are_those_of_the_published_agents(text: str) -> None:
    text = text.replace("\\|", "|")  # an escaped bar is ours
    made = read_calls(text, 3, PARAMETERS, (SPLIT,))
    assert [(call.id, call.tool, call.text) for call in made if not call.error] == [
        (f"t3.{id}", tool, argument) for id, tool, argument in published_calls(text)
    ]
    # What has no query is no call there, and an error here; it keeps its place.
    empty = [
        f"t3.call_{word}_{index}"
        for index, (_, _, word, body) in enumerate(matches(text, list(PARAMETERS)))
        if not body.replace("|" if word == SPLIT else "", "").strip()
    ]
    assert [call.id for call in made if call.error == EMPTY_CALL] == empty
    assert len({call.id for call in made}) == len(made)


@given(turns)
@settings(max_examples=examples(400))
def test_tags_are_those_of_one_pattern_per_name(text: str) -> None:
    words = [SPLIT, WHOLE, INACTIVE, "think"]
    assert [(tag.start, tag.end, tag.name, tag.body) for tag in find_tags(text, words)] == matches(text, words)


@given(turns)
@settings(max_examples=examples(400))
def test_a_batch_is_the_longest_run_of_tags_with_white_space_between(text: str) -> None:
    tags = matches(text, list(PARAMETERS))
    end = tags[0][1] if tags else 0
    for start, until, _, _ in tags[1:]:
        if start < end or text[end:start].strip():
            break
        end = until
    assert end_of_batch(text, list(PARAMETERS)) == end


@given(st.lists(st.sampled_from(["|", "\\|", "\\\\", "\\", "a", " ", "\n", "é"]), max_size=12).map("".join))
def test_bars_split_unless_a_backslash_stands_before_them(body: str) -> None:
    parts = [part.replace("\\|", "|").strip() for part in re.split(r"(?<!\\)\|", body)]
    assert split_queries(body) == [part for part in parts if part]


@pytest.mark.parametrize(
    "unit", ["<wiki_search>", "</wiki_search>", "<wiki_search>a</wiki_search>", "<wiki_search>|", "<", "</wiki_search"]
)
def test_hostile_turns_are_read_in_one_pass(unit: str) -> None:
    """Each character is looked at a bounded number of times, however markers are repeated."""

    class Counted(str):
        looked_at = 0

        def find(self, sub: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
            found = str.find(self, sub, start, len(self) if end is None else end)
            Counted.looked_at += (len(self) if found < 0 else found + len(sub)) - start
            return found

        def rfind(self, sub: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
            stop = len(self) if end is None else end
            found = str.rfind(self, sub, start, stop)
            Counted.looked_at += stop - (start if found < 0 else found)
            return found

    text = Counted(unit * (200_000 // len(unit)))
    find_tags(text, [SPLIT, WHOLE])
    assert 0 < Counted.looked_at <= 5 * len(text)
