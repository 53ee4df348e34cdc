"""Verdicts from several judges, and how far they agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.answers.score import Score
from treadle.eval.verdicts import Agreement, JudgeVerdict, agreement, binary_score, decide, joint_verdicts

WRONG = Score(0.0, False, "math_rules")
YES, NO = JudgeVerdict(True, "parsed", ("Correct",)), JudgeVerdict(False, "parsed", ("Incorrect",))
ODD, GONE = JudgeVerdict(None, "failed", ("Perhaps", "Perhaps")), JudgeVerdict(None, "fallback_rule")


@pytest.mark.parametrize(
    ("judge_verdicts", "correct", "status", "scorer"),
    [
        ([YES], True, "parsed", "judge"),
        ([NO], False, "parsed", "judge"),
        ([YES, YES, NO], True, "parsed", "judge"),
        ([YES, NO, NO], False, "parsed", "judge"),
        ([YES, ODD], True, "parsed", "judge"),
        ([NO, GONE], False, "parsed", "judge"),
        ([YES, NO], False, "fallback_rule", "math_rules"),
        ([YES, NO, ODD], False, "fallback_rule", "math_rules"),
        ([GONE, GONE], False, "fallback_rule", "math_rules"),
        ([ODD], None, "failed", "judge"),
        ([ODD, GONE], None, "failed", "judge"),
    ],
)
def test_majority_decides_and_a_tie_is_left_to_the_rule(
    judge_verdicts: list[JudgeVerdict], correct: bool | None, status: str, scorer: str
) -> None:
    score, said = decide(WRONG, judge_verdicts, "exclude")
    assert (score.correct, said, score.scorer) == (correct, status, scorer)
    assert score.score == (None if correct is None else float(correct))
    assert (score.error is None) == (correct is not None)


def test_unreadable_judges_leave_the_verdict_to_the_rule_if_configured() -> None:
    score, status = decide(WRONG, [ODD], "rule")
    assert (score.correct, score.score, score.scorer, score.error, status) == (False, 0.0, "math_rules", None, "failed")


def test_judges_decide_if_the_scorer_failed() -> None:
    broken = Score(None, None, "math_symbolic", "the worker is gone")
    score, _ = decide(broken, [YES], "exclude")
    assert (score.correct, score.score, score.error) == (True, 1.0, None)
    score, status = decide(broken, [YES, NO], "exclude")
    assert (score.correct, score.error, status) == (None, "the worker is gone", "fallback_rule")


@given(st.lists(st.sampled_from([YES, NO, ODD, GONE]), min_size=1, max_size=7), st.sampled_from(["exclude", "rule"]))
def test_judge_order_does_not_matter(judge_verdicts: list[JudgeVerdict], policy: str) -> None:
    assert decide(WRONG, judge_verdicts, policy) == decide(WRONG, judge_verdicts[::-1], policy)  # type: ignore[arg-type]


def test_partial_credit_becomes_binary_if_judges_decide_other_answers() -> None:
    assert binary_score(Score(0.85, True, "qa_f1")).score == 1.0
    assert binary_score(Score(0.5, False, "qa_f1")).score == 0.0


def test_kappa_of_two_is_cohens_kappa() -> None:
    """50 answers, 20 and 15 of them agreed on, 5 and 10 not: 0.7 observed, 0.5 by chance, kappa 0.4."""
    verdicts = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert agreement(verdicts) == Agreement(50, pytest.approx(0.7), pytest.approx(0.4))


def test_kappa_of_three_is_fleiss_kappa() -> None:
    """Two of four answers unanimous, each side once, two with two against one each way: 2/3 observed, 1/2 by chance."""
    verdicts = [(True,) * 3, (False,) * 3, (True, True, False), (True, False, False)]
    assert agreement(verdicts) == Agreement(4, pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_kappa_is_undefined_for_unanimous_verdicts() -> None:
    assert agreement([(True, True), (True, True)]) == Agreement(2, 1.0, None)
    assert agreement([]) == Agreement(0, None, None)


def test_judges_that_always_differ_are_worse_than_chance() -> None:
    assert agreement([(True, False), (False, True)]) == Agreement(2, 0.0, -1.0)


@pytest.mark.parametrize("verdicts", [[(True,)], [(True, False), (True,)]])
def test_agreement_requires_two_judges_with_complete_verdicts(verdicts: list[tuple[bool, ...]]) -> None:
    with pytest.raises(ValueError, match="two judges"):
        agreement(verdicts)


def test_joint_verdicts_cover_answers_readable_to_all_judges() -> None:
    said = {"a": YES.as_dict(), "b": NO.as_dict()}
    assert joint_verdicts(said, ["a", "b"]) == [True, False]
    assert joint_verdicts({**said, "b": ODD.as_dict()}, ["a", "b"]) is None
    assert joint_verdicts({}, ["a", "b"]) is None
