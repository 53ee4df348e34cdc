"""Correctness against that of the published program: where they agree, and each known difference."""

from __future__ import annotations

import pytest
from parity.et_agent.rewards import legacy_correctness
from support.training.rewards import group_rewards

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.rl.rewards.base import GroupItem


def correctness(text: str, gold: list[str], domain: str) -> float:
    (reward,) = group_rewards(
        [GroupItem.from_text(text, dialect=TOOL_DIALECT)], gold, domain, 0, 0, dialect=TOOL_DIALECT
    )
    return reward.score


def boxed(answer: str) -> str:
    return rf"<think>a</think><answer>\boxed{{{answer}}}</answer>"


@pytest.mark.covers("pareto-16")
@pytest.mark.parametrize(
    ("text", "gold", "domain", "ours", "theirs"),
    [
        (boxed("Eiffel Tower in Paris"), ["Eiffel Tower"], "qa", 2 / 3, 0.0),
        (boxed("Eiffel Tower"), ["The Eiffel Tower."], "qa", 1.0, 1.0),
        (boxed("Yes it is"), ["yes"], "qa", 0.0, 0.0),
        (boxed("yes"), ["Yes."], "qa", 1.0, 1.0),
        ("<think>a</think><answer>Paris</answer>", ["Paris"], "qa", 1.0, 0.0),
        (boxed(r"\text{Paris}"), ["Paris"], "qa", 1.0, 0.0),
        (boxed("the"), ["The"], "qa", 1.0, 0.0),
        (boxed("No answer"), ["noanswer"], "qa", 0.0, 1.0),
        (boxed("Paris") + boxed("Rome"), ["Paris"], "qa", 0.0, 1.0),
    ],
)
def test_text_answers(text: str, gold: list[str], domain: str, ours: float, theirs: float) -> None:
    assert correctness(text, gold, domain) == pytest.approx(ours, abs=5e-4)
    assert legacy_correctness(text, gold, domain) == theirs


@pytest.mark.covers("pareto-17")
@pytest.mark.parametrize(
    ("text", "gold", "ours", "theirs"),
    [
        (boxed("12") + r" or \boxed{13}", ["12"], 1.0, 0.0),
        (boxed("12") + r" or \boxed{13}", ["13"], 0.0, 1.0),
        (boxed("1/2"), ["0.5"], 1.0, 1.0),
        (boxed(r"\frac12"), [r"\dfrac{1}{2}"], 1.0, 1.0),
        (boxed(r"50\%"), ["50"], 1.0, 1.0),
        (boxed("12.0"), ["12"], 1.0, 0.0),
        (boxed("1,000"), ["1000"], 1.0, 0.0),
        (boxed("7"), ["12", "7"], 1.0, 0.0),
        (boxed("8"), ["12"], 0.0, 0.0),
        (r"so \boxed{12}", ["12"], 1.0, 0.0),
        (boxed(r"\text{Evelyn}"), ["Evelyn"], 1.0, 0.0),
        (boxed(r"\text{Evelyn}"), [r"\text{Evelyn}"], 1.0, 1.0),
        (boxed("EVELYN"), ["Evelyn"], 1.0, 0.0),
        (boxed(r"5\text{ cm}"), ["5"], 1.0, 1.0),
        (r"<think>a</think><answer>\fbox{12}</answer>", ["12"], 1.0, 0.0),
        (r"<think>a</think><answer>$\boxed 12$</answer>", ["12"], 0.0, 0.0),
        (boxed("12") + r" as \boxed was", ["12"], 1.0, 0.0),
        (boxed(r"\{1\}"), [r"\{1\}"], 1.0, 1.0),
        (boxed("12") + r"<answer>\boxed{13", ["12"], 1.0, 0.0),
    ],
)
def test_math_answers(text: str, gold: list[str], ours: float, theirs: float) -> None:
    assert correctness(text, gold, "math") == ours
    assert legacy_correctness(text, gold, "math") == theirs
