"""Figures as the published program makes them: its worked values, and each known difference from ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity.et_agent.metrics import (
    legacy_output_length,
    legacy_reasoning_length,
    legacy_reasoning_of_information,
    legacy_reasoning_of_steps,
    legacy_reasoning_text,
    legacy_verdict,
    legacy_vote,
)
from support.tables.score_tables import question, rollout, score
from support.tables.scored_rollouts import scored

from treadle.core.answers.rules import score_answer
from treadle.core.errors import DataError
from treadle.eval.dataset_figures import dataset_figures, figure_sums
from treadle.eval.scored_rollout import Votes
from treadle.formats.et_agent.metrics import (
    LegacySample,
    legacy_conciseness,
    legacy_count_tag,
    legacy_efficiency,
    legacy_execution_score,
    legacy_failed_results,
    legacy_gold,
    legacy_overall,
    legacy_productivity,
    legacy_sample,
    legacy_scored_text,
    legacy_successful_execution,
)
from treadle.formats.et_agent.report import legacy_report


def sample(score: float, calls: int, domain: str = "qa", llm_equal: float = 0.0) -> LegacySample:
    return LegacySample(domain, 0.0, 0.0, score, score, llm_equal, True, calls, 0)


WORKED = [sample(1, 0), sample(1, 2), sample(0.5, 1), sample(0, 3)]


@pytest.mark.covers("evaluation-7")
def test_worked_example_aggregate() -> None:
    overall = legacy_overall(WORKED, judged=False)
    assert (overall["efficiency"], overall["average_datas_used_tool_number"], overall["tool_call"]) == (0.5, 0.75, 1.5)
    assert overall["m1m2"] == overall["tool_productivity"] == pytest.approx(58.59, abs=5e-3)
    assert overall["num_valid_answer"] == "4 of 4"


def test_productivity_rises_with_wasted_calls_and_is_undefined_without() -> None:
    assert legacy_productivity(0.625, 6) == pytest.approx(61.48, abs=5e-3)
    assert legacy_productivity(1.0, 0) == 0.0


def test_math_efficiency_is_that_of_the_judges_even_without_one() -> None:
    rows = [sample(1, 0, "math"), sample(1, 1, "math")]
    assert legacy_efficiency(rows) == 0.0
    (ours,) = dataset_figures([scored(1, 0, domain="math"), scored(1, 1, domain="math")])
    assert ours.sums["efficiency"].value == 1.0


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12)), min_size=1, max_size=20))
def test_qa_efficiency_and_tool_use_match_ours(rows: list[tuple[float, int]]) -> None:
    theirs = legacy_overall([sample(score, calls) for score, calls in rows], judged=False)
    (ours,) = dataset_figures([scored(score, calls) for score, calls in rows])
    assert theirs["efficiency"] == pytest.approx(ours.sums["efficiency"].value)
    assert theirs["average_datas_used_tool_number"] == pytest.approx(ours.sums["tool_use"].value)
    assert theirs["f1"] == pytest.approx(ours.sums["f1"].value)


@pytest.mark.covers("evaluation-8")
@pytest.mark.parametrize("output", ["<search>a</search>x<search>b", "<search>a<search>b</search>"])
def test_unclosed_tag_is_not_counted(output: str) -> None:
    assert legacy_count_tag(output, "search") == 1


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("<search>a</search><result><search>b</search></result>", 2),
        ("I write `<search>q</search>` to search", 1),
        ("<search>\n</search>", 1),
        ("</search><search>", 0),
    ],
)
def test_tags_are_counted_anywhere(output: str, count: int) -> None:
    assert legacy_count_tag(output, "search") == count


def test_open_result_counts_for_length_but_not_for_reasoning() -> None:
    output = "<think>a b</think><result>x y z</result><answer>c</answer>"
    assert legacy_reasoning_text(output) == "<think>a b</think><answer>c</answer>"
    assert legacy_output_length(output) == len("<think>a b</think><answer>c</answer>")
    assert (legacy_reasoning_text("ab<result>c"), legacy_output_length("ab<result>c")) == ("ab", 11)
    assert legacy_reasoning_text("a</result>b<information>c") == "abc"


@pytest.mark.parametrize(
    ("output", "length"),
    [
        (" \n<think>ab</think>\n", 17),
        ("<result>x</result>\n\nab\n<result>y</result>", 2),
        ("a<r>long</r>b", 2),
        ("  ", 0),
    ],
)
def test_length_ignores_surrounding_whitespace(output: str, length: int) -> None:
    assert legacy_output_length(output) == length


@pytest.mark.covers("evaluation-11")
def test_worked_example_reasoning_length() -> None:
    rows = [(1.0, "a " * 200), (0.5, "a " * 100 + "<result>b b b</result>"), (0.0, "a " * 50)]
    assert round(1_000 * legacy_reasoning_length(rows, lambda text: len(text.split())), 2) == 3.33
    assert legacy_reasoning_length([(1.0, "")], len) == 1.0


@pytest.mark.covers("evaluation-9")
def test_conciseness_counts_ties_and_silence() -> None:
    counts = [(6, 4, 0), (5, 5, 0), (0, 0, 10), (1, 0, 9)]
    assert legacy_conciseness([(yes, no) for yes, no, _ in counts]) == 0.5
    ours = figure_sums([scored(1, 1, votes=Votes(*count)) for count in counts], "conciseness")
    assert (ours.value, ours.num_undecided) == (0.0, 3)


@given(st.lists(st.integers(0, 10), min_size=1))
def test_conciseness_agrees_if_all_ten_votes_are_readable_and_untied(yes_votes: list[int]) -> None:
    rows = [(yes, 10 - yes) for yes in yes_votes if yes != 5]
    ours = figure_sums([scored(1, 1, votes=Votes(yes, no, 0)) for yes, no in rows], "conciseness")
    assert ours.value == (legacy_conciseness(rows) if rows else None)


@pytest.mark.parametrize(
    ("reply", "vote"),
    [
        ("<answer> Yes. </answer>", "yes"),
        (" \n(No)", "no"),
        ("**no**", "abstain"),
        ("`yes`", "abstain"),
        ("<ANSWER>Yes</ANSWER>", "yes"),
        ("none", "no"),
        ("not sure", "no"),
        ("<answer>yes", "abstain"),
        ("Certainly", "abstain"),
        ("<answer>no</answer><answer>yes</answer>", "no"),
    ],
)
def test_votes_are_parsed_by_their_first_letters(reply: str, vote: str) -> None:
    assert legacy_vote(reply) == vote


@pytest.mark.covers("evaluation-6")
@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Correct", 1),
        ("Incorrect", 0),
        ("not entirely correct", 1),
        ("It is correct, not wrong", 0),
        ("Yes", 0),
        ("Not correct", 0),
        ("It is wrong. <judgment>Correct</judgment>", 1),
        ("</judgment> no tags around <judgment> correct", 0),
    ],
)
def test_verdicts_are_parsed_by_parts_of_words(reply: str, verdict: int) -> None:
    assert legacy_verdict(reply, "12", "13") == verdict


@pytest.mark.parametrize(
    ("prediction", "gold", "verdict"),
    [("1/2", r"\frac{1}{2}", 1), ("Paris", "paris", 0), ("x=Y", "Y", 1), ("x=Y", "y", 0)],
)
def test_equal_texts_override_the_judge_and_letter_case_matters(prediction: str, gold: str, verdict: int) -> None:
    assert legacy_verdict("Incorrect", prediction, gold) == verdict


@pytest.mark.covers("evaluation-10")
def test_worked_example_execution_success() -> None:
    rows = [(1.0, ["ok", "42"]), (1.0, ["NameError: x", "", "7"]), (0.5, ["Execution Timeout"])]
    value, ratio = legacy_successful_execution(rows)
    assert (round(value, 4), ratio) == (0.6667, 3 / 6)
    (ours,) = dataset_figures([scored(1, 2), scored(1, 3, failed=2), scored(0.5, 1, failed=1)])
    assert (ours.sums["successful_execution"].value, ours.sums["call_success"].value) == (pytest.approx(value), ratio)
    assert legacy_successful_execution([(1.0, [])]) == (1.0, None)


def test_failures_are_detected_by_a_word() -> None:
    """A success by our rule may be a failure by theirs, and the other way round."""
    assert legacy_failed_results(["learned by trial and error"]) == 1
    assert legacy_failed_results(["Local search failed: q", "invalid query"]) == 0
    (ours,) = dataset_figures([scored(1, 1, failed=0)])
    assert ours.sums["call_success"].value == 1.0


def test_text_datasets_use_f1_as_correctness() -> None:
    row = sample(0.25, 0, "qa", llm_equal=1.0)
    assert (legacy_execution_score(row, "musique"), legacy_execution_score(row, "gaia")) == (0.25, 1.0)
    assert (legacy_execution_score(row, "2wikimultihopqa"), legacy_execution_score(row, "HotpotQA-dev")) == (0.25, 0.25)


def test_missing_answer_is_scored_by_the_end_of_the_output() -> None:
    output = "one\n\ntwo\nthree\n\nfour\nfive\nthe answer is Paris"
    assert legacy_scored_text("", output) == "two\nthree\nfour\nfive\nthe answer is Paris"
    assert legacy_scored_text("Rome", output) == "Rome"
    row = legacy_sample("", output, "Paris", "qa")
    assert (row.acc, row.is_valid_answer) == (1.0, True)
    assert score_answer("", ["Paris"], [], "qa").parts["acc"] == 0.0


def test_empty_prediction_is_not_valid() -> None:
    row = legacy_sample("", "", "Paris", "qa", llm_equal=1.0)
    assert row == LegacySample("qa", 0, 0, 0, 0, 0, False, 0, 0)


@pytest.mark.parametrize(
    ("answer", "domain", "gold"),
    [
        ("Paris", "qa", ["Paris"]),
        ("[1, 2]", "qa", ["1", "2"]),
        ("[0,1)", "qa", ["0", "1)"]),
        ("[0,1)", "math", ["[0,1)"]),
        ("[1, 2]", "math", ["[1, 2]"]),
        (True, "qa", ["True"]),
        (["a", "b"], "qa", ["a", "b"]),
        (["[0,1)"], "qa", ["[0,1)"]),
        (70, "math", ["70"]),
    ],
)
def test_gold_answers_starting_with_a_bracket_are_split_only_in_qa(
    answer: str | bool | int | list[str], domain: str, gold: list[str]
) -> None:
    assert legacy_gold(answer, domain) == gold


def test_interval_is_one_math_answer() -> None:
    assert legacy_sample("[0,1)", "", "[0,1)", "math").em == 1.0
    assert legacy_sample("[0,1)", "", "[0,1)", "qa").em == 0.0


@pytest.mark.parametrize(
    ("prediction", "answer", "equal"),
    [
        ("1/2", "0.5", 1.0),
        ("The Eiffel Tower", "eiffel tower", 1.0),
        ("New York", "new york city", 0.0),
        ("50\\%", ["40", "50"], 1.0),
        ("Paris.", "Paris", 0.0),
        ("x = A", "a", 1.0),
        ("true", True, 1.0),
    ],
)
def test_math_equality_is_reported_for_qa_too(prediction: str, answer: str | bool | list[str], equal: float) -> None:
    """`x = a` loses its article before it is compared, so that nothing is left of either side."""
    assert legacy_sample(prediction, "", answer, "qa").math_equal == equal


@pytest.mark.covers("evaluation-2")
@pytest.mark.parametrize(
    ("prediction", "gold", "em", "acc", "f1"),
    [
        ("The Eiffel Tower", "eiffel tower", 1, 1, 1.0),
        ("Paris.", "Paris", 0, 1, 0.0),
        ("yes it is", "yes", 0, 1, 0.5),
        ("112", "12", 0, 1, 0.0),
        ("anything", "The", 0, 1, 0.0),
        ("A", "A", 1, 1, 0.0),
        ("true", True, 1, 1, 1.0),
    ],
)
def test_text_answers_are_matched_by_the_original_rule(
    prediction: str, gold: str | bool, em: float, acc: float, f1: float
) -> None:
    row = legacy_sample(prediction, "", gold, "qa")
    assert (row.em, row.acc, row.f1) == (em, acc, f1)


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(("prediction", "gold", "equal"), [("25", "025", 0), (r"\frac34", "3/4", 1), ("12.0", "12", 0)])
def test_math_answers_are_compared_as_text(prediction: str, gold: str, equal: float) -> None:
    row = legacy_sample(prediction, "<python>1</python><search>a</search>", gold, "math")
    assert (row.math_equal, row.tool_counts) == (equal, 2)
    assert score_answer("25", ["025"], [], "math").score == 1.0


def test_results_of_other_agents_are_removed_by_their_formats() -> None:
    """IKEA writes them in tags of its own; in SMART's steps they follow the word `output`."""
    assert legacy_reasoning_of_information("a<information>x</information>b<information>y") == "ab"
    assert (
        legacy_reasoning_of_steps(["think. Output: 42", "no word", "output 1, Output 2"]) == "think. no wordoutput 1, "
    )


def test_report_from_stored_rows_equals_that_of_the_samples() -> None:
    scores = [
        score("r1", "q1", True, domain="math", dataset="aime24", prediction="5", scorer="judge", reasoning_tokens=200),
        score("r2", "q2", False, domain="math", dataset="aime24", prediction="", votes_yes=5, votes_no=5),
        score("r3", "q3", True, domain="qa", dataset="2wiki", prediction="Paris.", reasoning_tokens=None),
    ]
    for row in scores:
        row["has_judge"] = row["domain"] == "math"
    texts = ["<search>a</search><result>error</result>", "x\n7", "<python>1</python><result></result>"]
    rollouts = [rollout(f"r{place}", f"q{place}", [("text", text)]) for place, text in enumerate(texts, 1)]
    questions = [question("q1", ["5"]), question("q2", ["7"]), question("q3", ["Paris", "paris."])]
    report = legacy_report(scores, rollouts, questions)
    assert list(report) == ["base"] and list(report["base"]) == ["aime24", "2wiki"]
    aime, wiki = report["base"]["aime24"], report["base"]["2wiki"]
    assert (aime["llm_equal"], aime["math_equal"], aime["num_valid_answer"]) == (0.5, 0.5, "2 of 2")
    assert (aime["tool_call"], aime["efficiency"], aime["tool_productivity"]) == (0.5, 0.5, pytest.approx(50 * 5 / 6))
    assert (aime["successful_execution"], aime["correct_call_ratio"]) == (0.5, 0.0)
    assert (aime["reasoning_length"], aime["conciseness"]) == (pytest.approx(1 / 400), 1.0)
    assert (wiki["f1"], wiki["efficiency"], wiki["reasoning_length"], wiki["conciseness"]) == (1.0, 1.0, None, None)
    with pytest.raises(DataError, match="r1 instead of r3"):
        legacy_report(scores, rollouts[::-1], questions)


def test_answer_correct_by_rule_stays_correct_with_judges() -> None:
    """No judge is asked about it here; the original asks, and also counts math equality."""
    by_rule = score("r1", "q1", True, domain="math", dataset="aime24", prediction="5", scorer="math")
    by_judge = score("r2", "q2", True, domain="math", dataset="aime24", prediction="seven", scorer="judge")
    wrong = score("r3", "q3", False, domain="math", dataset="aime24", prediction="8", judge_status="parsed")
    rollouts = [rollout(f"r{place}", f"q{place}", [("text", "x")]) for place in (1, 2, 3)]
    questions = [question("q1", ["5"]), question("q2", ["7"]), question("q3", ["9"])]

    def figures(has_judge: bool) -> dict[str, Any]:
        rows = [{**row, "reasoning_tokens": 10, "has_judge": has_judge} for row in (by_rule, by_judge, wrong)]
        return dict(legacy_report(rows, rollouts, questions)["base"]["aime24"])

    judged, alone = figures(True), figures(False)
    names = ("llm_equal", "efficiency", "successful_execution")
    assert [judged[name] for name in names] == [pytest.approx(2 / 3)] * 3
    assert judged["reasoning_length"] == pytest.approx(2 / 30)
    assert (judged["math_equal"], alone["math_equal"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert [alone[name] for name in names] == [0, 0, 0]
