"""Replies of chat services that continue a begun text: repetitions are removed, thoughts are joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agent.continuation import continued_turn, joined_reply, split_beginning, with_beginning
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.dialects.tags import TOOL_DIALECT

BEGUN = "Step: 3\nAnalysis: The trouble with this step is that"
HINT = "<think>So it is Z.\nWait, I should search once more."


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("it guesses.", " it guesses."),
        (" it guesses.", " it guesses."),
        (f"{BEGUN} it guesses.", " it guesses."),
        (f"\n{BEGUN} it guesses.", " it guesses."),
        ("Analysis: The trouble with this step is that it guesses.", " it guesses."),
        ("The trouble with this step is that it guesses.", " it guesses."),
        ("Step: 3\nAnalysis: it guesses.", " it guesses."),
        ("Step by step it guesses.", " Step by step it guesses."),
        ("", ""),
    ],
)
def test_reply_loses_what_it_repeats(reply: str, rest: str) -> None:
    assert joined_reply(BEGUN, reply) == rest


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("I do.</think><search>q</search>", " I do.</think><search>q</search>"),
        ("<think>I do.</think><search>q</search>", " I do.</think><search>q</search>"),
        (f"{HINT} I do.</think><search>q</search>", " I do.</think><search>q</search>"),
        ("<think>Wait, I should search once more. Q.</think><search>q</search>", " Q.</think><search>q</search>"),
        ("<search>q</search>", "</think><search>q</search>"),
        ("I do.\n<search>q</search>", " I do.</think><search>q</search>"),
        ("I do", " I do"),
    ],
)
def test_open_thought_is_continued_and_closed_before_a_call(reply: str, rest: str) -> None:
    assert continued_turn(HINT, reply, "", TOOL_DIALECT) == rest
    kinds = [piece.kind for piece in TOOL_DIALECT.segments(HINT + rest)]
    assert kinds == (["think", "search"] if "search>" in rest else ["think"])


def test_reasoning_outside_a_reply_that_only_acts_is_its_thought() -> None:
    rest = continued_turn(HINT, "<search>q</search>", "I need </think>q", TOOL_DIALECT)
    assert rest == " I need q</think><search>q</search>"
    assert continued_turn(HINT, "So.</think><search>q</search>", "hm", TOOL_DIALECT) == " So.</think><search>q</search>"


def test_other_dialects_only_lose_repetitions() -> None:
    assert continued_turn("I will look it up.", "I will look it up. Now.", "", FunctionsDialect()) == " Now."


@given(st.text(), st.text())
def test_beginning_can_be_read_from_its_message(content: str, begun: str) -> None:
    first = {"role": "system", "content": "s"}
    *others, last = with_beginning([first, {"role": "user", "content": content}], begun)
    assert others == [first]
    assert split_beginning(last["content"]) == (content, begun)
    assert split_beginning(content) == (content, "")


@given(st.text("<>/think serac.\n"), st.text("<>/think serac.\n"))
def test_any_reply_ends_with_its_own_text(begun: str, reply: str) -> None:
    rest = joined_reply(begun, reply)
    assert reply.endswith(rest.removeprefix(" ")) or reply.endswith(rest)
