"""The pieces of a page: segments, differing words, marked escapes, the colours of the style sheet, what is packaged."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.tables.viewer_run import segments

from treadle.core.untrusted.sanitize import sanitize, sanitized_parts
from treadle.viewer.changes.difference import difference
from treadle.viewer.changes.word_diff import changed_words
from treadle.viewer.markup import visible
from treadle.viewer.segments import NUM_CALL_STYLES, pieces_of, timeline_of

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = ROOT / "viewer" / "templates"


def cut(*parts: tuple[str, str], with_ids: bool = False) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(segments(*parts, with_ids=with_ids))
    return found


def call(tool: str, status: str = "ok") -> dict[str, Any]:
    return {"tool": tool, "status": status, "argument": "x"}


def test_markers_are_hidden_and_missing_ones_are_reported() -> None:
    given = cut(("think", "\nhm\n"), ("text", " loose "))
    given += [{"kind": "answer", "text": "<answer>cut o", "start": 0, "end": 0}]
    given += [{"kind": "search", "text": "</search>", "start": 0, "end": 0}]
    pieces = pieces_of(given)
    assert [(piece.text, piece.is_unclosed) for piece in pieces] == [
        ("hm", False), (" loose ", False), ("cut o", True), ("", False),
    ]  # fmt: skip


def test_call_has_the_outcome_of_its_own_entry() -> None:
    given = cut(("search", "a"), ("result", "1"), ("python", "b"), ("result", "2"), ("search", "c"))
    calls = [call("search"), call("python", "error"), call("search", "refused")]
    assert [piece.outcome for piece in pieces_of(given, calls)] == ["ok", "", "error", "", "refused"]
    # If the ledger and the text disagree, nothing is shown.
    assert {piece.outcome for piece in pieces_of(given, calls[1:])} == {""}


def test_trained_tokens_are_counted_by_segment() -> None:
    given = cut(("think", "a"), ("result", "b"), ("answer", "c"), with_ids=True)
    targets = np.array([True] * 10 + [False] * 10 + [True] * 4 + [False] * 6)
    pieces = pieces_of(given, (), targets)
    assert [(piece.mask, piece.num_targets) for piece in pieces] == [("all", 10), ("none", 0), ("some", 4)]
    assert [piece.mask for piece in pieces_of(given)] == ["", "", ""]


def test_long_texts_keep_both_ends_and_a_page_its_size() -> None:
    long = "a" * 20_000 + "b" * 20_000
    (piece,) = pieces_of(cut(("think", long)))
    assert (len(piece.text), len(piece.tail), piece.num_chars) == (12_000, 4_000, 40_000)
    assert set(piece.text) == {"a"} and set(piece.tail) == {"b"}
    pieces = pieces_of(cut(*[("think", long)] * 100))
    assert sum(len(piece.text) + len(piece.tail) for piece in pieces) < 700_000
    assert len(pieces) == 100 and len(pieces[-1].text) == 300


def test_overview_bar_spans_the_page_width() -> None:
    stretches = timeline_of(pieces_of(cut(("think", "a" * 900), ("search", "b"), ("result", "c" * 100))))
    assert sum(span.width for span in stretches) == pytest.approx(1000, abs=1)
    assert stretches[0].width > 8 * stretches[2].width > 0 and stretches[1].width > 4
    assert timeline_of([]) == []


@pytest.mark.parametrize(
    ("before", "after", "gone", "come"),
    [
        ("the quick fox jumps", "the slow fox leaps", ["quick", "jumps"], ["slow", "leaps"]),
        ("same", "same", [], []),
        ("a b", "a b c", [], [" c"]),
        ("x a b", "a b", ["x "], []),
    ],
)
def test_differing_words_are_marked(before: str, after: str, gone: list[str], come: list[str]) -> None:
    runs = changed_words(before, after)
    assert runs is not None
    assert ["".join(run.text for run in side) for side in runs] == [before, after]
    assert [[run.text for run in side if run.is_changed] for side in runs] == [gone, come]


def test_dissimilar_or_overlong_texts_are_not_compared() -> None:
    assert changed_words("one two three four", "completely/other-words_here") is None
    # Blanks in common are nothing in common.
    assert changed_words("Let me check that again.", "Now I have the value.") is None
    assert changed_words("a " * 3000, "b " * 3000) is None
    assert changed_words("a " * 3000 + "x", "a " * 3000 + "y") is not None


@contextlib.contextmanager
def few_lines(most: int) -> Iterator[None]:
    """Fail what runs more lines of Python than these."""
    num_lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal num_lines
        num_lines += event == "line"
        assert num_lines <= most, f"more than {most:,} lines were run"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [("a b " * 450, "b a " * 450), ("a " * 900, "a a b " * 300), ("ab ba " * 450, "ba ab ab " * 300)],
)
def test_endlessly_repeating_words_are_refused_quickly(before: str, after: str) -> None:
    # Without `autojunk` each takes difflib many seconds, that is many millions of lines of Python.
    with few_lines(200_000):
        assert changed_words(before, after) is None


def test_too_many_segments_are_not_compared() -> None:
    many = cut(*[("think", "a"), ("search", "b")] * 160)
    assert difference(many, many).is_too_long
    assert difference(many, many[:2]).blocks != []
    # Neither may be long if the other is not short.
    longer = cut(*[("think", "a"), ("search", "b")] * 1000)
    assert difference(many[:50], longer).is_too_long and difference(longer, many[:50]).is_too_long
    assert difference(longer, many[:40]).blocks != []


def test_page_of_changes_is_bounded_and_reports_omissions() -> None:
    found = difference(cut(("answer", "x")), cut(*[("think", "a"), ("search", "b")] * 3_000))
    assert len(found.blocks) == 5_000 and found.num_left_out == 1_001
    found = difference(cut(("answer", "x")), cut(*[("think", "a" * 20_000)] * 80))
    assert sum(len(run.text) for block in found.blocks for run in block.runs) <= 600_000
    assert len(found.blocks) + found.num_left_out == 81 and len(found.blocks) > 30


def test_segments_of_different_kinds_are_not_matched() -> None:
    found = difference(cut(("think", "a b c d")), cut(("answer", "a b c e")))
    assert [(block.side, block.kind) for block in found.blocks] == [("removed", "think"), ("added", "answer")]
    assert not any(run.is_changed for block in found.blocks for run in block.runs)


def test_escapes_are_distinguished_from_lookalikes() -> None:
    text = "a\x1b\x00b\\x1b\u202e"
    assert list(sanitized_parts(text)) == [
        ("a", False), ("\\x1b\\x00", True), ("b\\x1b", False), ("\\u202e", True),
    ]  # fmt: skip
    assert "".join(part for part, _ in sanitized_parts(text)) == sanitize(text)
    assert visible("<\x1b>") == '&lt;<span class="escape">\\x1b</span>&gt;'
    assert list(sanitized_parts("")) == []


def test_search_terms_are_highlighted_and_stay_text() -> None:
    assert visible("a <B>\x1b <b>", "<b>") == (
        'a <mark>&lt;B&gt;</mark><span class="escape">\\x1b</span> <mark>&lt;b&gt;</mark>'
    )
    assert visible("a.c abc", "A.C") == "<mark>a.c</mark> abc"  # It is not a pattern.
    assert visible("<mark>", "mark") == "&lt;<mark>mark</mark>&gt;"
    assert visible("aaa", "a") == visible("aaa") == "aaa"


def colours(theme: str) -> dict[str, str]:
    """Name -> colour of a theme."""
    light, dark = (ROOT / "core" / "colours.css").read_text().split("@media")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if theme == "light" else dark))


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast_with_its_background(theme: str) -> None:
    found = colours(theme)
    grounds = {
        "ink": ("paper", "card", "accent-soft", "result-soft", "answer-soft", "added-soft", "added-strong",
                "removed-soft", "removed-strong", "learnt", "partly-soft"),
        "muted": ("paper", "card", "accent-soft", "result-soft", "answer-soft", "added-soft", "removed-soft"),
        "accent": ("paper", "card", "accent-soft"),
        **dict.fromkeys(
            ("think", *(f"call-{number}" for number in range(NUM_CALL_STYLES))), ("card", "added-soft", "removed-soft")
        ),
        "result": ("result-soft", "added-soft", "removed-soft"),
        "answer": ("answer-soft", "added-soft", "removed-soft"), "added": ("added-soft",), "removed": ("removed-soft",),
        "escape": ("escape-soft",), "wrong": ("wrong-soft", "card", "accent-soft", "result-soft"),
        "card": ("accent",), "right": ("right-soft", "card"),
        "unknown": ("unknown-soft", "card"), "partly": ("partly-soft", "card"),
    }  # fmt: skip
    low = {
        f"{name} on {ground}": round(contrast(found[name], found[ground]), 2)
        for name, several in grounds.items()
        for ground in several
        if contrast(found[name], found[ground]) < 4.5
    }
    assert low == {}
    assert set(colours("light")) == set(colours("dark"))


def test_every_used_colour_is_defined() -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", (TEMPLATES / "viewer.css").read_text()))
    assert used - set(colours("light")) == set()


def test_templates_and_styles_are_packaged() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    for path in TEMPLATES.iterdir():
        assert any(fnmatch.fnmatch(f"templates/{path.name}", pattern) for pattern in patterns), path


def test_pages_contain_no_inline_code_and_load_nothing_external() -> None:
    for path in TEMPLATES.iterdir():
        text = path.read_text()
        assert not re.search(r"\bstyle=|\bon[a-z]+=|<script(?! src)|<style|\|\s*safe|Markup", text), path
        assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z]", text.replace("// ", "")), path
