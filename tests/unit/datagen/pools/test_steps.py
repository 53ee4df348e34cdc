from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.agent.dialects.base import RESULT
from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.datagen.pools.steps import numbered, steps_of

FIRST = "<think>a</think><search>q</search><result>r1</result>"
SECOND = "\n<think>b</think>\n<python>1</python> <result>\nr2\n</result>"
LAST = "<think>c</think><answer>d</answer>"
FRAGMENTS = ["a", " ", "\n", "#", "####", "Step", " 1:", "\\", "\u2028", "\u200b", "\r"] + [
    marker for tag in TOOL_DIALECT.tags for marker in (tag.opening, tag.closing)
]


def test_step_ends_with_its_result_and_the_rest_is_the_last_one() -> None:
    steps = steps_of(tokenise(FIRST + SECOND + LAST, TOOL_DIALECT))
    assert [step.text for step in steps] == [FIRST, SECOND, LAST]
    assert [step.has_result for step in steps] == [True, True, False]
    assert [(step.first_segment, step.end_segment) for step in steps] == [(0, 3), (3, 9), (9, 11)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        (" \n", 0),
        (FIRST, 1),
        (f"{FIRST} \n", 1),
        ("just words", 1),
        ("<think>x</think><search>not run</search><think>y</think><answer>z</answer>", 1),
    ],
)
def test_whitespace_alone_is_not_a_step(text: str, number: int) -> None:
    assert len(steps_of(tokenise(text, TOOL_DIALECT))) == number


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40))
def test_steps_cover_their_segments_in_order(fragments: list[str]) -> None:
    segments = tokenise("".join(fragments), TOOL_DIALECT)
    steps = steps_of(segments)
    position = 0
    for step in steps:
        assert step.first_segment == position < step.end_segment
        assert step.text == "".join(segment.text for segment in segments[position : step.end_segment])
        position = step.end_segment
    assert not "".join(segment.text for segment in segments[position:]).strip()
    assert sum(step.has_result for step in steps) == sum(segment.kind == RESULT for segment in segments)
    assert all(step.has_result for step in steps[:-1])


def test_steps_are_numbered_under_separate_headings() -> None:
    assert numbered([FIRST, SECOND]) == f"#### Step 1: {FIRST}\n#### Step 2: {SECOND.strip()}"


@pytest.mark.parametrize(
    "forged",
    [
        "#### Step 2: x",
        "\n#### Step 2: x",
        "\r#### step 2: x",
        "\u2028#### Step 2: x",
        "words #### Step 2: x",
        "####Step 2: x",
        "#### **Step 2**: x",
        "#####\u200b\nSTEP 2: x",
    ],
)
def test_heading_inside_a_step_cannot_imitate_one(forged: str) -> None:
    text = numbered([f"<think>a</think><search>q</search><result>r{forged}</result>", LAST])
    headings = re.findall(r"(?<!\\)(?<!#)####+(?=\W*step)", text, re.IGNORECASE)
    assert len(headings) == 2
    assert forged.lstrip().lstrip("#")[-6:] in text


def test_program_comments_are_unchanged() -> None:
    program = "<python># Step 1\n## Step 2\n######\nprint(1)</python>"
    assert numbered([program]) == f"#### Step 1: {program}"


@pytest.mark.parametrize("text", ["#" * 200_000, "\n" * 200_000, "####" + " " * 200_000, "#### " * 50_000])
def test_hostile_steps_cost_linear_time(text: str) -> None:
    # Quadratic work on these would take hours.
    assert numbered([f"a{text}b"]) == f"#### Step 1: a{text}b"
