"""Which rules of its protocol a trajectory breaks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.tag_faults import CALL_FAULTS, FORMAT_FAULTS, call_faults, format_faults
from treadle.agent.dialects.tag_table import Tag
from treadle.agent.dialects.tags import TOOL_DIALECT, TagDialect, result_block, tokenise

GOOD = (
    r"<think>a</think><search>q</search>{}<think>b</think><python>1</python>{}"
    r"<think>c</think><answer>\boxed{1}</answer>"
)


def segments_of(text: str, *results: str) -> list[Segment]:
    """Model text, `{}` standing for results, as the engine would type it."""
    segments: list[Segment] = []
    for index, part in enumerate(text.split("{}")):
        if index:
            segments.append(
                Segment("result", results[index - 1] if results else result_block("found", TOOL_DIALECT), 0, 0)
            )
        segments += tokenise(part, model_text=True, dialect=TOOL_DIALECT)
    return segments


@pytest.mark.parametrize(
    "text",
    [
        r"<think>a</think><answer>\boxed{1}</answer>",
        GOOD,
        "<think>a</think>\n<answer>so \\boxed{ \\frac{1}{2} }.</answer>",
        "\n<think>a</think>\n\n<search>q</search>{}\n<think>b < c</think>\n<answer>\\boxed {1}</answer>\n",
        "<think>a</think><python>print('an error: ' + str(1))</python>{}<think>b</think><answer>\\boxed{1}</answer>",
    ],
)
def test_well_formed_turns_have_no_faults(text: str) -> None:
    assert format_faults(segments_of(text), TOOL_DIALECT) == []


@pytest.mark.parametrize(
    ("turns", "faults"),
    [
        (["<think>a</think>", r"<think>b</think><answer>\boxed{1}</answer>"], []),
        (["<think>a</think>", r"b<answer>\boxed{1}</answer>"], ["order"]),
        (["<think>a</think>", r"<answer>\boxed{1}</answer>"], ["order"]),
        (
            ["<think>a</think><search>q</search>", r"<think>b</think><answer>\boxed{1}</answer>"],
            ["call_without_result"],
        ),
        (["<think>a</think>"], ["bad_end", "answer_count"]),
    ],
)
def test_messages_of_a_dialogue_separate_turns(turns: list[str], faults: list[str]) -> None:
    segments: list[Segment] = []
    for turn in turns:
        segments += segments_of(turn)
        segments += [Segment("frame", "<|im_end|>", 0, 0), Segment("user", "</answer> Go on.", 0, 0)]
    assert format_faults(segments, TOOL_DIALECT) == faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (r"So: <think>a</think><answer>\boxed{1}</answer>", ["bad_start", "order"]),
        (r"<answer>\boxed{1}</answer>", ["bad_start", "no_think"]),
        (r"<think>a<answer>\boxed{1}</answer>", ["think_unbalanced"]),
        (r"<think>a</think></think><answer>\boxed{1}</answer>", ["think_unbalanced", "order"]),
        (r"<think>a</think><think>b</think><answer>\boxed{1}</answer>", ["order"]),
        (r"<think>a</think>so<answer>\boxed{1}</answer>", ["order"]),
        (r"<think>a</think><answer>\boxed{1}</answer> that is it", ["bad_end", "order"]),
        ("<think>a</think>", ["bad_end", "answer_count"]),
        (r"<think>a</think><answer>\boxed{1}", ["bad_end", "answer_count"]),
        (r"<think>a</think>\boxed{1}</answer>", ["answer_count", "order"]),
        (r"<think>a</think><answer>1</answer><think>b</think><answer>\boxed{1}</answer>", ["answer_count", "order"]),
        ("<think>a</think><answer>1</answer>", ["boxed_count"]),
        (r"<think>a</think><answer>\boxed{1} or \boxed{2}</answer>", ["boxed_count"]),
        (r"<think>a</think><answer>\boxed{\boxed{1}}</answer>", ["boxed_count"]),
        (r"<think>a</think><answer>\boxed{1</answer>", ["boxed_count"]),
        (r"<think>a</think><answer>\boxed{\frac{1}{2}</answer>", ["boxed_count"]),
        (r"<think>a</think><answer>\boxed{1\}</answer>", ["boxed_count"]),
        (r"<think>a</think><answer>see <search> \boxed{1}</answer>", ["marker_in_answer"]),
        (r"<think>a</think><answer>see </think> \boxed{1}</answer>", ["marker_in_answer"]),
        (r"<think>a</think><search>q</search><think>b</think><answer>\boxed{1}</answer>", ["call_without_result"]),
        (
            r"<think>a</think><search>q</search>ok{}<think>b</think><answer>\boxed{1}</answer>",
            ["call_without_result", "order"],
        ),
        (r"<think>a</think></search>{}<think>b</think><answer>\boxed{1}</answer>", ["call_markers"]),
        (r"<think>a</think><search><think>q</search>{}<think>b</think><answer>\boxed{1}</answer>", ["call_markers"]),
        (r"<think>a</think>{}<think>b</think><answer>\boxed{1}</answer>", ["order"]),
        (r"<think>a</think><search>q</search>{}<answer>\boxed{1}</answer>", ["order"]),
        (r"<search>q</search>{}<think>b</think><answer>\boxed{1}</answer>", ["bad_start"]),
        (r"<think>a</think><search>q</search>{}{}<think>b</think><answer>\boxed{1}</answer>", ["order"]),
        (r"<think>a</result>b</think><answer>\boxed{1}</answer>", ["order"]),
        (r"<think>a</think><result>forged</result><think>b</think><answer>\boxed{1}</answer>", ["order"]),
        ("", ["bad_start", "bad_end", "no_think", "answer_count"]),
    ],
)
def test_each_fault_has_its_code(text: str, faults: list[str]) -> None:
    assert format_faults(segments_of(text), TOOL_DIALECT) == faults


def test_markers_and_boxes_in_results_and_programs_do_not_count() -> None:
    quoted = r"<result>error: Execution Timeout \boxed{2} </think></result>"
    text = r"<think>a</think><python>s = '\boxed{3}'</python>{}<think>b</think><answer>\boxed{1}</answer>"
    segments = segments_of(text, quoted)
    assert format_faults(segments, TOOL_DIALECT) == []
    assert call_faults(segments, [("python", "ok")], TOOL_DIALECT) == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("error", "result_error"),
        ("timeout", "result_timeout"),
        ("invalid", "result_invalid"),
        ("empty", "result_empty"),
        ("refused", "call_refused"),
    ],
)
def test_call_outcomes_come_from_the_ledger(status: str, code: str) -> None:
    assert call_faults(segments_of(GOOD), [("search", "ok"), ("python", status)], TOOL_DIALECT) == [code]


@pytest.mark.parametrize("block", ["<result></result>", "<result> \n </result>", " <result>\n\n</result>"])
def test_blank_result_is_empty_regardless_of_the_tool_status(block: str) -> None:
    calls = [("search", "ok"), ("python", "ok")]
    assert call_faults(segments_of(GOOD, result_block("x", TOOL_DIALECT), block), calls, TOOL_DIALECT) == [
        "result_empty"
    ]


@pytest.mark.parametrize("calls", [[], [("search", "ok")], [("python", "ok"), ("search", "ok")]])
def test_calls_missing_from_the_ledger_do_not_count(calls: list[tuple[str, str]]) -> None:
    assert call_faults(segments_of(GOOD), calls, TOOL_DIALECT) == ["ledger_differs"]


WHOLE = ["<think>", "a", "</think>", "<answer>", r"\boxed{1}", "</answer>"]
PIECES = [*WHOLE, "<search>", "</search>", "<python>", "</python>", "<result>", "</result>", " ", "\n"]


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from(PIECES), st.booleans()), max_size=3))
def test_only_turns_with_the_protocol_shape_pass(edits: list[tuple[int, str, bool]]) -> None:
    pieces = list(WHOLE)
    for place, piece, is_insertion in edits:
        pieces[place : place + (not is_insertion)] = [piece] if is_insertion else []
    text = "".join(pieces)
    faults = format_faults(tokenise(text, model_text=True, dialect=TOOL_DIALECT), TOOL_DIALECT)
    thought = r"(?:a|\s|\\boxed\{1\})*"
    answer = r"(?:a|\s)*\\boxed\{1\}(?:a|\s)*"
    whole = re.fullmatch(rf"\s*<think>{thought}</think>\s*<answer>{answer}</answer>\s*", text)
    assert (faults == []) == (whole is not None)


def test_every_code_is_explained_once() -> None:
    assert not set(FORMAT_FAULTS) & set(CALL_FAULTS)


def test_table_of_ones_own_has_only_the_rules_that_it_states() -> None:
    tags = (Tag("move", is_tool=True, stop=True),)
    turn = [Segment("text", "I ", 0, 0), Segment("move", "<move>a</move>", 0, 0), Segment("user", "ok", 0, 0)]
    plain = TagDialect(tags)
    assert plain.faults([*turn, *turn], []) == []
    assert plain.faults(turn, [("move", "error")]) == ["result_error"]
    ordered = TagDialect((*tags, Tag("plan")), successors={"plan": ("move",), "move": ("result",), "result": ("plan",)})
    planned = [Segment("plan", "<plan>a</plan>", 0, 0), turn[1], Segment("result", "ok", 0, 0)]
    assert ordered.faults([*planned, *planned], [("move", "ok")] * 2) == []
    assert ordered.faults([*planned, turn[1]], [("move", "ok")] * 2) == ["call_without_result", "order"]
