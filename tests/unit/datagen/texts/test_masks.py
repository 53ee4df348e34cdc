"""Observations of whole texts are masked by characters, whatever stands around their tags."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.qwen_tokenizer import qwen_tokenizer
from support.sweep import examples

from treadle.core.chat import ChatTokenizer
from treadle.datagen.texts.masks import MaskedText, mask_text
from treadle.datagen.texts.spans import names_tag, tag_fault, tag_spans
from treadle.demo.embedded_model import embedded_tokenizer

BEFORE = "<wiki_search>a|b</wiki_search>"
RESULT = "<observation>\nDoc 1 x\n</observation>"
AFTER = "<think>ok</think>\n<answer>z</answer>"


@pytest.fixture(scope="module")
def qwen() -> ChatTokenizer:
    return ChatTokenizer.load(qwen_tokenizer())


@pytest.fixture(scope="module", params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return ChatTokenizer.load(qwen_tokenizer() if request.param == "qwen" else embedded_tokenizer())


def parts(masked: MaskedText, tokenizer: ChatTokenizer) -> tuple[str, str]:
    """Return the text without a loss and the text with one."""
    hidden = {place for start, end in masked.masked for place in range(start, end)}
    return (
        tokenizer.decode([one for place, one in enumerate(masked.ids) if place in hidden]),
        tokenizer.decode([one for place, one in enumerate(masked.ids) if place not in hidden]),
    )


@pytest.mark.covers("planning-14")
def test_span_is_tokens_10_to_20_of_35(qwen: ChatTokenizer) -> None:
    text = f"{BEFORE}\n\n{RESULT}\n\n{AFTER}"
    masked = mask_text(text, qwen)
    assert masked.ids == qwen.encode(text) and len(masked.ids) == 35
    assert masked.masked == [(10, 21)]


@pytest.mark.covers("planning-15")
@pytest.mark.parametrize("before", ["\n\n", "\n", " ", ""])
@pytest.mark.parametrize("after", ["\n\n", "\n", "\n\n\n", "", " ", "\n \n"])
def test_white_space_around_the_tag_does_not_matter(tokenizer: ChatTokenizer, before: str, after: str) -> None:
    hidden, trained = parts(mask_text(f"{BEFORE}{before}{RESULT}{after}{AFTER}", tokenizer), tokenizer)
    assert hidden.strip() == RESULT and "".join(trained.split()) == "".join((BEFORE + AFTER).split())
    assert hidden.endswith(after), "white space behind the closing marker is never trained on"


def test_block_at_the_end_and_adjacent_blocks_are_masked(tokenizer: ChatTokenizer) -> None:
    hidden, trained = parts(mask_text(f"{BEFORE}{RESULT}{RESULT}\n\n{RESULT}", tokenizer), tokenizer)
    assert hidden == f"{RESULT}{RESULT}\n\n{RESULT}" and trained == BEFORE


@pytest.mark.covers("planning-16")
def test_cut_inside_an_observation_masks_the_rest(qwen: ChatTokenizer) -> None:
    masked = mask_text(f"{BEFORE}\n\n{RESULT}\n\n{AFTER}", qwen)
    assert masked.cut(15) == MaskedText(masked.ids[:15], [(10, 15)])
    assert masked.cut(10) == MaskedText(masked.ids[:10], [])
    assert mask_text(f"{BEFORE}\n\n<observation>\nDoc 1", qwen).masked == [(10, 16)]


def test_faults_of_markers_are_named() -> None:
    assert tag_fault(f"{RESULT} text {RESULT}") == "" == tag_fault("no tag")
    assert tag_fault("<observation>a<observation>b</observation></observation>") == "nested"
    assert tag_fault("a</observation>") == tag_fault("<observation>a") == "unbalanced"
    assert tag_fault("<Observation>a</Observation>") == tag_fault("<observation >a</observation>") == "odd_marker"
    assert tag_fault("<information>a", "information") == "unbalanced"
    assert names_tag("a < Observation x") and not names_tag("observation, <observations>")


_PIECES = st.lists(
    st.sampled_from(
        [
            RESULT,
            "<observation>é\u0301 日本</observation>",
            "<think>",
            "x",
            "é",
            "e\u0301",
            "🏳️",
            "\n",
            " ",
            "a<",
            ">>",
            "\ud800",
        ]
    ),
    max_size=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(pieces=_PIECES)
def test_every_overlapping_token_is_masked_and_no_other(pieces: list[str]) -> None:
    text = "".join(pieces)
    for folder in (qwen_tokenizer(), embedded_tokenizer()):
        tokenizer = ChatTokenizer.load(folder)
        masked = mask_text(text, tokenizer)
        hidden, trained = parts(masked, tokenizer)
        again = tokenizer.decode(tokenizer.encode(text))
        assert tokenizer.decode(masked.ids) == again
        outside, position = "", 0
        for start, end in tag_spans(again):
            outside, position = outside + again[position:start], end
        outside += again[position:]
        assert "observation" not in trained
        assert "".join(trained.split()) == "".join(outside.split())
