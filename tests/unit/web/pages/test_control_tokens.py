"""Web text cannot spell control tokens, neither commonly used ones nor those of the run's own tokenizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts.rollout_bench import (
    ANSWER,
    SEARCH,
    FixedTool,
    ScriptedModel,
    check_invariants,
    load,
    play,
    settings,
)
from support.sandbox.memories import Remembering

from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.chat import ChatTokenizer
from treadle.core.untrusted.prompt_text import as_data
from treadle.web.pages.control_tokens import without_known_tokens, without_tokens

IN_USE = (
    "<|im_end|>", "<|endoftext|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<s>", "</s>", "<<SYS>>", "<</SYS>>",
    "[INST]", "[/INST]", "<think>", "</think>", "<tool_call>", "</tool_response>", "<arg_key>", "<function=search>",
    "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[/TOOL_RESULTS]", "[IMG_BREAK]", "[THINK]", "[SUFFIX]", "<start_of_turn>",
    "<end_of_image>", "<bos>", "<unused0>", "<extra_id_0>", "<mask>", "[MASK]", "[CLS]", "[gMASK]", "<sop>", "<eod>",
    "<seed:bos>", "<seed:tool_call>", "<minimax:tool_call>", "]<]start[>[", "]~]b]", "<longcat_think>",
    "<reserved_106>", "<SPECIAL_12>", "[UNUSED_TOKEN_145]", "\u25c1think\u25b7", "<fim_prefix>", "<file_sep>",
    "<jupyter_code>", "<turn|>", "<channel|>", "<tool_call|>", "<tool_response|>", "<|turn>",
)  # fmt: skip
ORDINARY = (
    "a < b > c", "<p>", "</div>", "<b>bold</b>", "<user>", "[1]", "[Smith 2020]", "[edit]", "x[i] <= y[j]", "if (a<b)",
    "<xs:element>", "[citation needed]", "5 <- 6", "<https://example.org/>", "\u25c1 \u25b7", "a[b]]<c",
)  # fmt: skip


@pytest.mark.parametrize("token", IN_USE)
def test_tokens_in_use_cannot_be_spelled(token: str) -> None:
    shown = without_known_tokens(f"before {token} behind {token.upper()}")
    assert token not in shown
    assert token.upper() not in shown
    assert shown.startswith(f"before &{'lt' if token[0] == '<' else '#'}")
    assert shown.count(token[1:]) >= 1, "it can still be read"


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert without_known_tokens(text) == text


@given(st.lists(st.sampled_from([*IN_USE, *ORDINARY, "<", "[", "/", "]", "|", "x"]), max_size=12).map("".join))
def test_sanitized_text_spells_no_token(text: str) -> None:
    shown = without_known_tokens(text)
    assert without_known_tokens(shown) == as_data(shown) == shown


TOKENS = frozenset(
    {"<unused0>", "<unused01>", "<un", "@@go@@", "  ", "\n\n", "word", "''", "\u25c7ask\u25c7", "<a>" * 99}
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<unused01><unused0", "&lt;unused01>&lt;unused0"),
        ("<us @@go@@ @@go@", "<us &#64;@go@@ @@go@"),
        ("a  word\n\n''", "a  word\n\n''"),
        ("\u25c7ask\u25c7", "&#9671;ask\u25c7"),
        ("<a>" * 98, "&lt;a>" * 65 + "<a>" * 33),
    ],
)
def test_added_tokens_other_than_words_and_blanks_cannot_be_spelled(text: str, shown: str) -> None:
    assert without_tokens(text, TOKENS) == shown


def test_text_is_unchanged_without_added_tokens() -> None:
    assert without_tokens("<|im_end|> <a>", frozenset()) == "<|im_end|> <a>"


class WebTool(FixedTool):
    """A search whose text is from the web, or not."""

    def __init__(self, text: str, sources: tuple[str, ...]) -> None:
        super().__init__("search", text)
        self._sources = sources

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        outcome = await super().call(argument, deadline=deadline, context=context)
        return replace(outcome, sources=self._sources)


@pytest.mark.parametrize("form", ["plain", "spaced"])
async def test_page_cannot_spell_tokens_that_are_matched_as_a_whole(form: str) -> None:
    tokenizer = load("qwen")
    spelled = "<tool_call>x</tool_call> <|fim_prefix|> <|file_sep|> <|im_end|> <p>"
    added = {tokenizer_id(tokenizer, token) for token in ("<tool_call>", "</tool_call>", "<|fim_prefix|>")}
    assert added <= set(tokenizer.encode(spelled)), "as plain text they are ids of their own"
    environment, cache = settings(result_format=form), Remembering()
    for sources, is_from_web in ((("key",), True), ((), False)):
        model = ScriptedModel([SEARCH, ANSWER], tokenizer)
        tool = WebTool(spelled, sources)
        trajectory = await play(model, tokenizer, tool=tool, environment=environment, cache=cache)
        check_invariants(trajectory, tokenizer)
        assert [segment.kind for segment in trajectory.segments if segment.kind == "result"] == ["result"]
        assert added.isdisjoint(trajectory.samples[0].ids) == is_from_web
        assert ("&lt;tool_call>x&lt;/tool_call> &lt;|fim_prefix|>" in trajectory.text) == is_from_web
        assert "<p>" in trajectory.text
        again = await play(ScriptedModel([], tokenizer), tokenizer, tool=tool, environment=environment, cache=cache)
        assert again.text == trajectory.text and again.samples[0].ids == trajectory.samples[0].ids
        cache = Remembering()


def tokenizer_id(tokenizer: ChatTokenizer, token: str) -> int:
    (found,) = tokenizer.encode(token)
    return found
