"""The format check of rewards, strict and loose."""

from __future__ import annotations

import pytest

from treadle.agent.dialects.base import Segment, render
from treadle.agent.dialects.tag_faults import format_faults
from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.rl.rewards.format_check import LOOSE_FAULTS, format_reasons

END = r"<think>b</think><answer>\boxed{1}</answer>"
CALL = "<think>a</think><search>q</search><result>found</result>"


def segments_of(text: str) -> list[Segment]:
    """Flat text whose result blocks are the system's."""
    return tokenise(text, TOOL_DIALECT)


def forged(text: str) -> list[Segment]:
    """Flat text that the model wrote on its own."""
    return tokenise(text, model_text=True, dialect=TOOL_DIALECT)


@pytest.mark.covers("pareto-15")
@pytest.mark.parametrize(
    ("text", "loose", "strict"),
    [
        (CALL + END, (), ()),
        (r"<answer>\boxed{1}</answer>", ("no_think",), ("bad_start", "no_think")),
        (END + r"<answer>\boxed{1}</answer>", ("answer_count",), ("answer_count", "order")),
        (
            "<think>a</think><search>q</search>" + END,
            ("call_without_result",),
            ("call_without_result",),
        ),
        (
            "<think>a</think><result>found</result><think>a</think><search>q</search>" + END,
            ("call_without_result",),
            ("call_without_result", "order"),
        ),
        (CALL + "<think>b</think><answer>1</answer>", ("boxed_count",), ("boxed_count",)),
        (CALL + r"<think>b</think><answer>\boxed{1</answer>", ("boxed_count",), ("boxed_count",)),
        (CALL + END + "junk", (), ("bad_end", "order")),
        ("<think>a</think><result>orphan</result>" + END, (), ("order",)),
    ],
)
def test_each_fault_has_its_codes_in_both_modes(text: str, loose: tuple[str, ...], strict: tuple[str, ...]) -> None:
    assert format_reasons(segments_of(text), TOOL_DIALECT, "loose") == loose
    assert format_reasons(segments_of(text), TOOL_DIALECT, "strict") == strict


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("</think><think>" + r"<answer>\boxed{1}</answer>", ()),
        (r"<answer>\boxed{1}</answer><think>a</think>", ()),
        ("<think>a" + END, ("think_unbalanced",)),
        (r"<think>a</think></answer><answer>\boxed{1}", ("answer_count",)),
        ("<think>a</think><python>1</python><search>q</search><result>one</result>" + END, ()),
        ("<think>a</think><search>q<result>found</result>" + END, ("call_without_result",)),
        ("<think>a</think><python>1</python>" + END, ("call_without_result",)),
        (CALL + CALL + END, ()),
        (CALL + "<think>a</think><search>q</search>" + END, ("call_without_result",)),
        ("", ("no_think", "answer_count")),
    ],
)
def test_loose_check_has_exactly_five_rules(text: str, faults: tuple[str, ...]) -> None:
    assert format_reasons(segments_of(text), TOOL_DIALECT, "loose") == faults


@pytest.mark.parametrize("mode", ["strict", "loose"])
def test_result_written_by_the_model_does_not_count(mode: str) -> None:
    text = CALL + END
    assert (
        format_reasons(forged(text), TOOL_DIALECT, "strict" if mode == "strict" else "loose")[0]
        == "call_without_result"
    )


def test_split_markers_do_not_join_into_a_result() -> None:
    written = "<think>a</think><search>q</search><re<result>sult>x</re</result>sult>" + END
    assert format_reasons(forged(written), TOOL_DIALECT, "loose")[0] == "call_without_result"


def test_strict_check_equals_the_gate() -> None:
    for text in (CALL + END, CALL + END + "junk", "x", "<think>" + END):
        assert format_reasons(segments_of(text), TOOL_DIALECT) == tuple(format_faults(segments_of(text), TOOL_DIALECT))


def test_reasons_are_in_listed_order() -> None:
    text = "</think><python>x" + r"<answer>1</answer>"
    reasons = format_reasons(segments_of(text), TOOL_DIALECT, "loose")
    assert reasons == ("no_think", "think_unbalanced", "call_without_result", "boxed_count")
    assert list(reasons) == [code for code in LOOSE_FAULTS if code in reasons]
    assert render(segments_of(text)) == text and "think" in TOOL_DIALECT.by_name
