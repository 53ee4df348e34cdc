"""Markers in the agent's messages: private thoughts, what is shown, and the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.dialects.base import ANSWER, PRIVATE, TEXT, render
from treadle.environments.colbench.dialect import FINAL, SHOWN, ColbenchDialect, read_turn

BOTH = pytest.mark.parametrize("legacy", [False, True], ids=["default", "legacy"])
PARTS = st.lists(st.sampled_from([SHOWN, FINAL, "\n", "```", "x", " ", "# "]), max_size=12).map("".join)


@pytest.mark.covers("sweet-2")
@BOTH
def test_answer_is_between_the_first_two_markers(legacy: bool) -> None:
    found = read_turn("ok I WANT TO ANSWER:\ncode1 I WANT TO ANSWER: code2", legacy=legacy)
    assert found.answer == "\ncode1 "


@pytest.mark.covers("sweet-3")
@BOTH
def test_only_the_part_between_the_first_two_outputs_is_shown(legacy: bool) -> None:
    found = read_turn("thought OUTPUT: a OUTPUT: b OUTPUT: c", legacy=legacy)
    assert (found.visible, found.stored, found.answer) == (" a ", "thought OUTPUT: a ", None)
    assert [one.kind for one in found.segments()] == [PRIVATE, TEXT, PRIVATE]


@pytest.mark.covers("sweet-5")
@pytest.mark.parametrize(
    "text",
    [
        "I WANT TO ANSWER:\ndef f():\n    # OUTPUT: x\n    return 1",
        "OUTPUT: done. I WANT TO ANSWER:\ndef f():\n    return 1  # OUTPUT: x",
        "I WANT TO ANSWER:\n```python\ndef f():\n    return '''\nOUTPUT: x'''\n```",
    ],
)
def test_output_inside_code_is_a_part_of_the_answer_except_in_legacy(text: str) -> None:
    answer = read_turn(text).answer
    assert answer is not None and answer == text.partition(FINAL)[2]
    assert read_turn(text, legacy=True).answer in (None, text.partition(FINAL)[2].partition(SHOWN)[0])


def test_answer_behind_a_second_output_counts_except_in_legacy() -> None:
    text = "hm OUTPUT: a OUTPUT: b I WANT TO ANSWER: c"
    assert read_turn(text).answer == " c"
    legacy = read_turn(text, legacy=True)
    assert (legacy.answer, legacy.visible) == (None, " a ")


def test_marker_in_thoughts_does_not_end_the_dialogue() -> None:
    text = "Soon I WANT TO ANSWER: but not yet.\nOUTPUT: Which sign?"
    assert (read_turn(text).answer, read_turn(text).visible) == (None, " Which sign?")


@given(PARTS, st.booleans())
def test_segments_cover_the_text_and_say_what_is_an_answer(text: str, legacy: bool) -> None:
    dialect, found = ColbenchDialect(legacy=legacy), read_turn(text, legacy=legacy)
    segments = dialect.segments(text)
    assert render(segments) == text
    assert [one.start for one in segments[1:]] == [one.end for one in segments[:-1]]
    assert any(one.kind == ANSWER for one in segments) == (found.answer is not None)
    assert all(dialect.is_acted_on(one) == (one.kind == ANSWER) for one in segments)
    if found.answer is not None:
        (answer,) = [one.text for one in segments if one.kind == ANSWER]
        assert answer.removeprefix(FINAL).partition(FINAL)[0] == found.answer


def test_many_markers_are_read_in_linear_time() -> None:
    text = FINAL + "```" + f"\n{SHOWN}" * 200_000
    assert read_turn(text).answer == text.removeprefix(FINAL)
