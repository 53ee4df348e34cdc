from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.agent.role import Reply
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.operators.reopening import reopen_thought
from treadle.datagen.operators.replies import (
    read_new_step,
    read_paragraph,
    read_redundancy,
    read_step_number,
    read_thought,
)

STEP = "<think>Shorter.</think><search>q</search>"
MARKERS = [marker for tag in TOOL_DIALECT.tags for marker in (tag.opening, tag.closing)]
LABELS = ["Step:", "step", "**Step:**", "Analysis:", "Corrected Step:", "corrected", "no", "No.", ":", "[2]", "(1)"]
NOISE = ["0", "7" * 5000, "٣", "²", "1.5", " ", "\n", "\r\n", "\n\n", "*", "#### Step 3:", "```", "é", "\ud800", "<se"]
replies = st.lists(st.one_of(st.sampled_from(MARKERS + LABELS + NOISE), st.text(max_size=5)), max_size=30).map("".join)


def reply(text: str, cut: bool = False) -> Reply:
    return Reply(text, cut, 0, 0)


def reason(error: pytest.ExceptionInfo[EditRejected]) -> str:
    return error.value.reason


@pytest.mark.covers("flywheel-12")
@pytest.mark.parametrize(
    "text",
    [
        "Step: 2",
        "step: 2",
        "STEP : 2.",
        "Step: [2]",
        "Step: (2)",
        "Step: <2>",
        "**Step:** 2",
        "**Step: 2**",
        "Step: `2`",
        "- Step: 2",
        "Step:\n\n2",
        "Step: 02",
        "Step: 2 of 3",
        "Let me look. The first one that is flawed:\n\nStep: 2\n\nAnalysis: Step: 1 is fine",
        "Step: the second\nStep: 2",
    ],
)
def test_step_number_is_parsed_in_any_formatting(text: str) -> None:
    assert read_step_number(reply(text), 3) == 2


@pytest.mark.covers("flywheel-12")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no_step_number"),
        ("Step: no", "no_step_number"),
        ("Step: two", "no_step_number"),
        ("Step 2", "no_step_number"),
        ("Step: -1", "no_step_number"),
        ("Step: 2.5", "no_step_number"),
        ("footstep: 2", "no_step_number"),
        ("Analysis: bad\nStep: 2", "no_step_number"),
        ("Corrected Step: 2", "no_step_number"),
        ("Step: 0", "step_out_of_range"),
        ("Step: 4", "step_out_of_range"),
        (f"Step: {'9' * 6000}", "step_out_of_range"),
        (f"Step: {'0' * 6000}", "step_out_of_range"),
    ],
)
def test_invalid_step_number_is_rejected_with_its_reply(text: str, why: str) -> None:
    with pytest.raises(EditRejected) as error:
        read_step_number(reply(text), 3)
    assert (reason(error), error.value.reply) == (why, text)


@pytest.mark.covers("flywheel-12")
@pytest.mark.parametrize(
    "text",
    [
        f"Step: 2\nAnalysis: said before\nCorrected Step: {STEP}",
        f"**Step:** [2]\n\n**Analysis:** said before\n\n**Corrected Step:**\n\n{STEP}\n",
        f"step: 2 analysis: said before corrected step: {STEP}",
        f"Step: 2\nAnalysis: said before\nCorrected Step 2: {STEP}<result>invented</result> and on",
        f"Step: 2\nAnalysis: said before\nCorrected Step: #### Step 2: {STEP}",
        f"Step: 2\nAnalysis: said before\nCorrected Step:\n```\n{STEP}\n```",
    ],
)
def test_redundancy_finding_is_parsed_in_any_formatting(text: str) -> None:
    found = read_redundancy(reply(text), 3, TOOL_DIALECT)
    assert (found.step, found.analysis, found.new_step) == (2, "said before", STEP)


def test_analysis_may_mention_the_corrected_step_and_may_be_missing() -> None:
    text = f"Step: 1\nAnalysis: see the corrected step: shorter\nCorrected Step: {STEP}"
    assert read_redundancy(reply(text), 1, TOOL_DIALECT).new_step == STEP
    assert read_redundancy(reply(f"Step: 1\nCorrected Step: {STEP}"), 1, TOOL_DIALECT).analysis == ""


@pytest.mark.covers("flywheel-12")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Step: no", "no_redundancy"),
        ("step: [No].", "no_redundancy"),
        ("**Step:** no\r\n", "no_redundancy"),
        ("All is lean.\n\n**Step: no**\n", "no_redundancy"),
        ("Step: none", "no_redundancy"),
        (f"Step: no\nCorrected Step: {STEP}", "no_redundancy"),
        ("Step: not sure", "no_step_number"),
        ("I say Step: no to that", "no_step_number"),
        (f"Corrected Step: {STEP}", "no_step_number"),
        (f"Step: 0\nCorrected Step: {STEP}", "step_out_of_range"),
        (f"Step: 4\nCorrected Step: {STEP}", "step_out_of_range"),
        ("Step: 2\nAnalysis: said before", "no_corrected_step"),
        ("Step: 2\nAnalysis: said before\nCorrected Step: ", "no_corrected_step"),
        ("Step: 2\nAnalysis: it has </search> twice\nCorrected Step: <think>x</think>", "no_corrected_step"),
        ("Step: 2\nCorrected Step: <think> </think>", "empty_step"),
    ],
)
def test_reply_without_a_usable_finding_is_rejected(text: str, why: str) -> None:
    with pytest.raises(EditRejected) as error:
        read_redundancy(reply(text), 3, TOOL_DIALECT)
    assert (reason(error), error.value.reply) == (why, text)


def test_number_before_the_word_no_counts() -> None:
    text = f"Step: 1\nAnalysis: as follows\nStep: no\nCorrected Step: {STEP}"
    assert read_redundancy(reply(text), 1, TOOL_DIALECT).step == 1


@pytest.mark.covers("flywheel-13")
@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("I search.<search>q</search>", "<think>I search.</think><search>q</search>"),
        ("I search.\n<search>q</search>", "<think>I search.</think><search>q</search>"),
        ("<think>I search.<python>1</python>", "<think>I search.</think><python>1</python>"),
        ("I search.</think>\n<search>q</search>", "<think>I search.</think>\n<search>q</search>"),
        ("It is.<answer>a</answer>", "<think>It is.</think><answer>a</answer>"),
        ("<search>q</search>", "<think></think><search>q</search>"),
        ("<think>a</think> b <think>c <search>q</search>", "<think>a</think> b <think>c</think><search>q</search>"),
        (f"{STEP}<result>made up</result>", STEP),
        ("New step: " + STEP, STEP),
        ("```\n" + STEP, STEP),
        ("only words", "<think>only words"),
        ("<think>open", "<think>open"),
    ],
)
def test_new_step_opens_and_closes_its_thought(said: str, step: str) -> None:
    assert read_new_step(reply(said), TOOL_DIALECT) == step


@pytest.mark.covers("flywheel-13")
@pytest.mark.parametrize("said", [STEP, "<think>A\n\nb</think>\n so \n<python>\n1\n</python>", "<think>x</think> y"])
def test_step_with_both_markers_is_unchanged(said: str) -> None:
    assert read_new_step(reply(f"\n{said}\n"), TOOL_DIALECT) == said


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "empty_step"),
        (" \n", "empty_step"),
        ("<think></think>", "empty_step"),
        ("<search></search>", "empty_step"),
        ("<think>x</think><search> </search>", "empty_call"),
        ("<think>a</think><result>r</result><search>q</search>", "result_in_step"),
        ("a <result> <search>q</search>", "result_in_step"),
        ("q</search>", "broken_markers"),
        ("<think>x</think><search>q</python>", "broken_markers"),
        ("<think>x</think><search>a<python>b</python>", "broken_markers"),
        ("<think>I could <search> here</think><search>q</search>", "broken_markers"),
        ("<think>x</think><search>q", "unfinished_step"),
    ],
)
def test_step_that_cannot_be_inserted_is_rejected(said: str, why: str) -> None:
    with pytest.raises(EditRejected) as error:
        read_new_step(reply(said), TOOL_DIALECT)
    assert (reason(error), error.value.reply) == (why, said)


def test_step_truncated_by_length_is_rejected() -> None:
    assert read_new_step(reply(STEP, cut=True), TOOL_DIALECT) == STEP
    with pytest.raises(EditRejected) as error:
        read_new_step(reply("<think>on and on", cut=True), TOOL_DIALECT)
    assert reason(error) == "unfinished_step"


def test_paragraph_continues_its_lead_in_and_ends_at_a_blank_line() -> None:
    assert read_paragraph(reply(" it is\nwrong. \n\nStep: 3"), "I see:", "x", TOOL_DIALECT) == "I see: it is\nwrong."
    with pytest.raises(EditRejected) as error:
        read_paragraph(reply("\n \n"), "I see:", "analysis", TOOL_DIALECT)
    assert reason(error) == "empty_analysis"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("shorter", "unclosed_thought"),
        ("shorter<search>q</search>", "unclosed_thought"),
        (" \n</think>", "empty_thought"),
        ("<think> </think>", "empty_thought"),
        ("a<search>q</search>b</think>", "marker_in_thought"),
        ("a<think>b</think>", "marker_in_thought"),
        ("a<result></think>", "marker_in_thought"),
        ("x" * 13 + "</think>", "longer_thought"),
    ],
)
def test_invalid_replacement_thought_is_rejected(said: str, why: str) -> None:
    with pytest.raises(EditRejected) as error:
        read_thought(reply(said), 12.0, TOOL_DIALECT)
    assert (reason(error), error.value.reply) == (why, said)


def test_thought_keeps_its_case_and_drops_a_repeated_opening_marker() -> None:
    assert read_thought(reply("KEEP Case </think><search>"), 12.0, TOOL_DIALECT) == "KEEP Case "
    assert read_thought(reply("\n<think>KEEP</think>"), 4.0, TOOL_DIALECT) == "KEEP"


@given(said=replies, cut=st.booleans(), most=st.integers(0, 6))
@settings(max_examples=examples(300), deadline=None)
def test_parsers_raise_only_rejections_containing_the_reply(said: str, cut: bool, most: int) -> None:
    given_reply = reply(said, cut)
    for read in (
        lambda: read_step_number(given_reply, most),
        lambda: read_redundancy(given_reply, most, TOOL_DIALECT),
        lambda: read_new_step(given_reply, TOOL_DIALECT),
        lambda: read_paragraph(given_reply, "So", "x", TOOL_DIALECT),
        lambda: read_thought(given_reply, 100.0, TOOL_DIALECT),
    ):
        try:
            read()
        except EditRejected as error:
            assert error.reason
            assert error.reply == said


@given(said=replies, cut=st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_accepted_step_is_understood_by_the_engine(said: str, cut: bool) -> None:
    try:
        step = read_new_step(reply(said, cut), TOOL_DIALECT)
    except EditRejected:
        return
    assert step.startswith("<think>")
    closed = TOOL_DIALECT.closing_stops.search(step)
    assert closed is None or closed.end() == len(step)
    kinds = [segment.kind for segment in tokenise(step, TOOL_DIALECT, model_text=True)]
    assert kinds[0] == "think"
    assert set(kinds[:-1]) <= {"think", "text"}
    if closed is not None:
        assert kinds[-1] in ("search", "python", "answer")
        assert step.rindex("<think>") < step.rindex("</think>") < closed.start()
    assert read_new_step(reply(step), TOOL_DIALECT) == step


@given(tail=st.lists(st.one_of(st.sampled_from(MARKERS + NOISE), st.text(max_size=5)), max_size=30).map("".join))
@settings(max_examples=examples(300), deadline=None)
def test_reopened_tail_has_one_open_thought_and_all_its_words(tail: str) -> None:
    text = reopen_thought(tail, TOOL_DIALECT, "Wait.")
    assert [match[0] for match in TOOL_DIALECT.markers.finditer(text)] == ["<think>"]
    assert text.endswith("Wait.")
    assert text.split("<think>")[0].strip() == ""
    words = TOOL_DIALECT.markers.sub(" ", tail).split()
    assert "".join(text.replace("<think>", "", 1).removesuffix("Wait.").split()) == "".join(words)


@pytest.mark.parametrize(
    "text",
    [
        "Step: " * 50_000,
        "Step" + " " * 300_000,
        "\n" * 300_000,
        "Corrected Step " * 20_000,
        "**" * 150_000,
        "Step: " + "1" * 300_000,
        "```" + " " * 300_000,
        "<think>" * 40_000,
        "</think>" * 40_000 + "<search>",
        "Analysis " * 40_000,
    ],
    ids=lambda text: text[:16],
)
def test_hostile_replies_cost_linear_time(text: str) -> None:
    # Quadratic work on these would take hours.
    for read in (
        lambda: read_step_number(reply(text), 3),
        lambda: read_redundancy(reply(f"Step: 1\nCorrected Step: {text}"), 3, TOOL_DIALECT),
        lambda: read_redundancy(reply(text), 3, TOOL_DIALECT),
        lambda: read_new_step(reply(text), TOOL_DIALECT),
        lambda: read_paragraph(reply(text), "So", "x", TOOL_DIALECT),
        lambda: read_thought(reply(text), 3.0, TOOL_DIALECT),
        lambda: reopen_thought(text, TOOL_DIALECT, "Wait."),
    ):
        try:
            read()
        except EditRejected as error:
            assert error.reply.endswith(text)
