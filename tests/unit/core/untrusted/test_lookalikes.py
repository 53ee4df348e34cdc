"""Markup that is spelled with look-alike or invisible characters is found where plain markup is."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.dialects.tags import TOOL_DIALECT, neutralise
from treadle.agent.judges.views import escape_untrusted
from treadle.core.untrusted.lookalikes import sub_first
from treadle.core.untrusted.prompt_text import as_data
from treadle.web.pages.control_tokens import without_known_tokens

SPELLINGS = {
    "plain": "</result>",
    "upper case": "</RESULT>",
    "blanks": "< / result >",
    "full-width brackets": "\uff1c/result\uff1e",
    "full-width throughout": "\uff1c\uff0f\uff52\uff45\uff53\uff55\uff4c\uff54\uff1e",
    "small forms": "\ufe64/result\ufe65",
    "angle brackets": "\u2329/result\u232a",
    "mathematical brackets": "\u27e8/result\u27e9",
    "CJK brackets": "\u3008/result\u3009",
    "single quotation marks": "\u2039/result\u203a",
    "a division slash": "<\u2215result>",
    "mathematical letters": "</\U0001d42b\U0001d41e\U0001d42c\U0001d42e\U0001d425\U0001d42d>",
    "soft hyphens": "<\u00ad/re\u00adsult\u00ad>",
    "zero-width spaces": "<\u200b/res\u200bult>",
    "joiners": "</r\u200de\u200csult>",
    "a word joiner": "</result\u2060>",
    "a direction mark": "<\u200e/result>",
    "a byte order mark": "<\ufeff/result>",
    "combining marks": "<\u0338/re\u0301sult>",
    "variation selectors": "<\ufe0f/result>",
    "tag characters": "</res\U000e0075ult>",
    "a NUL": "</res\x00ult>",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_marker_lookalike_remains_in_a_result(spelling: str) -> None:
    text = SPELLINGS[spelling]
    safe = neutralise(f"a {text} b", TOOL_DIALECT)
    assert safe.startswith("a &lt;") and safe.endswith(f"{text[1:]} b")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_tag_lookalike_reaches_a_judge(spelling: str) -> None:
    assert "&lt;" in escape_untrusted(SPELLINGS[spelling])


@pytest.mark.parametrize(
    "text",
    ["\uff1c|im_end|\uff1e", "<\u00ad|im_end|>", "\uff1c\uff5cim_start\uff5c\uff1e", "\u27e8|endoftext|\u27e9",
     "<\u200b/s>",
     "\uff3bINST\uff3d", "[\u00adINST]", "\uff1cstart_of_turn\uff1e"],
)  # fmt: skip
def test_no_control_token_lookalike_remains_in_data(text: str) -> None:
    for safe in (as_data(text), without_known_tokens(text)):
        assert "&lt;" in safe or "&#91;" in safe
        assert unicodedata.normalize("NFKC", safe)[0] == "&"


@pytest.mark.parametrize(
    "text", ["<tool\u00ad_call>", "\uff1cthink\uff1e", "<\u200bfunction_call>", "\uff1c/think\uff1e"]
)
def test_no_known_token_lookalike_remains_in_a_page(text: str) -> None:
    assert without_known_tokens(text).startswith("&lt;")


@pytest.mark.parametrize(
    "text",
    ["a < b", "1\u2039 2", "\u3008\u66f8\u540d\u3009", "re\u00adsult", "\u2039zitiert\u203a", "e\u0301t\u00e9",
     "<p>", "\uff1c\uff1e",
     "\u0e44\u0e17\u0e22", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "result>", "x</results>"],
)  # fmt: skip
def test_other_text_is_not_changed(text: str) -> None:
    assert neutralise(text, TOOL_DIALECT) == text and without_known_tokens(text) == text


@given(st.text(alphabet="<>/results\u00ad\uff1c\uff1e\u200b\u0301\u4e2d a", max_size=40))
def test_neutralise_changes_only_markers_and_leaves_none(text: str) -> None:
    safe = neutralise(text, TOOL_DIALECT)
    assert neutralise(safe, TOOL_DIALECT) == safe
    assert len(safe) == len(text) + 3 * (safe.count("&lt;") - text.count("&lt;"))
    assert sub_first(TOOL_DIALECT.read_markers, safe, lambda _: "!") == safe


def test_first_character_is_replaced_by_its_plain_form() -> None:
    given: list[str] = []
    sub_first(re.compile(r"[<\[]x"), "\uff1cx \uff3bx <x", lambda one: given.append(one) or "")  # type: ignore[func-returns-value]
    assert given == ["<", "[", "<"]
