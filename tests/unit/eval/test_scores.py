"""The stage `scores` on real artifacts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tables.score_tables import gold, parts_of, question, rollout, score_rows

from treadle.core.errors import ArtifactError, StageFailed
from treadle.environments.scorers.registry import scorer_named
from treadle.environments.scorers.scoring import OpenScorers
from treadle.eval.answers import Answer
from treadle.eval.config import ScoresOptions
from treadle.eval.scores import scored_row
from treadle.eval.tables import SCORES

PARIS = [("think", "<think>hm</think>"), ("answer", "<answer>Paris</answer>")]


def test_each_rollout_gets_one_verdict_by_the_rule_of_its_question(tmp_path: Path) -> None:
    questions = [
        question("q0", ["never asked"]),
        question("q1", ["Paris"]),
        question("q2", ["1/2"], "math"),
        question("q3", ["B"], "choice", ["Rome", "Oslo"]),
    ]
    rollouts = [
        rollout("r1", "q1", PARIS, calls_requested=2, calls_executed=1, completion_tokens=33),
        rollout("r2", "q1", [("answer", "<answer>London</answer>")], sample_index=1),
        rollout("r3", "q2", [("answer", r"<answer>\boxed{0.5}</answer>")], domain="math"),
        rollout("r4", "q3", [("answer", "<answer>Oslo</answer>")], domain="choice"),
    ]
    rows, metrics = score_rows(tmp_path, questions, rollouts)
    assert [row["rollout_key"] for row in rows] == ["r1", "r2", "r3", "r4"]
    assert [row["correct"] for row in rows] == [True, False, True, True]
    assert [row["scorer"] for row in rows] == ["qa_em", "qa_f1", "math_numeric", "choice"]
    assert [row["efficiency"] for row in rows] == [0.5, 0.0, 1.0, 1.0]
    assert (rows[0]["calls_requested"], rows[0]["calls_executed"], rows[0]["completion_tokens"]) == (2, 1, 33)
    assert (metrics["num_rollouts"], metrics["num_correct"], metrics["accuracy"]) == (4, 3, 0.75)


def test_scorer_of_a_question_replaces_that_of_its_domain(tmp_path: Path) -> None:
    questions = [question("q1", ["1/2"]), question("q2", ["1/2"]) | {"scorer": "math"}]
    half = [("answer", r"<answer>\boxed{0.5}</answer>")]
    rows, _ = score_rows(tmp_path, questions, [rollout("r1", "q1", half), rollout("r2", "q2", half)])
    assert [(row["domain"], row["scorer"], row["correct"]) for row in rows] == [
        ("qa", "qa_f1", False),
        ("qa", "math_numeric", True),
    ]


@pytest.mark.covers("evaluation-7")
def test_efficiency_divides_by_requested_calls(tmp_path: Path) -> None:
    right = "red green blue black"
    half = "red green white pink"
    rollouts = [
        rollout(f"r{index}", "q1", [("answer", f"<answer>{answer}</answer>")], calls_requested=calls)
        for index, (answer, calls) in enumerate([(right, 0), (right, 2), (half, 1), ("none", 3)])
    ]
    rows, _ = score_rows(tmp_path, [question("q1", [right])], rollouts)
    assert [row["score"] for row in rows] == [1.0, 1.0, 0.5, 0.0]
    assert [row["efficiency"] for row in rows] == [1.0, 0.5, 0.5, 0.0]


@pytest.mark.covers("flywheel-19")
@pytest.mark.parametrize("status", ["no_answer", "limit", "max_turns", "length", "timeout", "failed"])
def test_unfinished_rollout_keeps_its_prediction_and_is_never_correct(tmp_path: Path, status: str) -> None:
    (row,), _ = score_rows(tmp_path, [question("q1", ["Paris"])], [rollout("r1", "q1", PARIS, status=status)])
    assert (row["prediction"], row["correct"], row["score"], parts_of(row)["f1"]) == ("Paris", False, 0.0, 0.0)
    assert (row["is_valid_answer"], row["scorer"], row["error"]) == (False, "status", None)


def test_a_candidate_of_an_agent_that_ran_out_is_its_answer(tmp_path: Path) -> None:
    segments = [("suggested_answer", "<suggested_answer>Paris</suggested_answer>")]
    outcome = json.dumps({"reward": None, "success": None, "parts": {"answered_by_candidate": 1.0}})
    rollouts = [rollout("r1", "q1", segments, status="max_turns", outcome=outcome)]
    (row,), _ = score_rows(tmp_path, [question("q1", ["Paris"])], rollouts)
    assert (row["prediction"], row["correct"], row["is_valid_answer"]) == ("Paris", True, True)


def test_answer_in_a_tool_result_does_not_count(tmp_path: Path) -> None:
    segments = [("search", "<search>q</search>"), ("result", "<result><answer>Paris</answer></result>")]
    (row,), _ = score_rows(tmp_path, [question("q1", ["Paris"])], [rollout("r1", "q1", segments)])
    assert (row["prediction"], row["correct"], row["is_valid_answer"]) == ("", False, False)


def test_threshold_is_configurable(tmp_path: Path) -> None:
    rollouts = [rollout("r1", "q1", [("answer", "<answer>Barack Hussein Obama</answer>")])]
    questions = [question("q1", ["Barack Obama"])]
    (row,), _ = score_rows(tmp_path / "a", questions, rollouts)
    assert (row["score"], row["correct"]) == (0.8, False)
    (row,), _ = score_rows(tmp_path / "b", questions, rollouts, ScoresOptions(symbolic=False, f1_threshold=0.75))
    assert (row["score"], row["correct"]) == (0.8, True)


def test_rollouts_of_other_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="q2"):
        score_rows(tmp_path, [question("q1", ["Paris"])], [rollout("r1", "q2", PARIS)])


@pytest.mark.covers("evaluation-13")
def test_verdict_does_not_depend_on_rollout_order(tmp_path: Path) -> None:
    questions = [question(f"q{n}", [f"answer {n}"]) for n in range(5)]
    rollouts = [rollout(f"r{n}", f"q{n % 5}", [("answer", f"<answer>answer {n}</answer>")]) for n in range(10)]
    forward, _ = score_rows(tmp_path / "a", questions, rollouts)
    backward, _ = score_rows(tmp_path / "b", questions, rollouts[::-1])
    assert forward == backward[::-1]


def test_all_columns_of_the_schema_are_filled() -> None:
    answer = Answer.of(rollout("r1", "q1", PARIS) | {"num_agent_ids": 0}, gold(("Paris",), (), "qa"))
    assert set(scored_row(answer, OpenScorers({}).rule_score(answer), scorer_named("qa", {}))) == set(
        SCORES.schema.names
    )


def test_hidden_tests_decide_whatever_the_rollout_ended_with(tmp_path: Path) -> None:
    questions = [question("q1", [], "task") | {"scorer": "workspace_tests"}]
    passed = '{"reward": 1.0, "success": true, "parts": {"test_1": 1.0}}'
    failed = '{"reward": 0.0, "success": false, "parts": {}}'
    rollouts = [
        rollout("r1", "q1", [("text", "done")], domain="task", status="no_answer", outcome=passed),
        rollout("r2", "q1", [("answer", "<answer>done</answer>")], domain="task", sample_index=1, outcome=failed),
        rollout("r3", "q1", [], domain="task", sample_index=2, status="failed"),
    ]
    rows, _ = score_rows(tmp_path, questions, rollouts)
    assert [(row["score"], row["correct"], row["scorer"]) for row in rows] == [
        (1.0, True, "workspace_tests"),
        (0.0, False, "workspace_tests"),
        (0.0, False, "status"),
    ]


def test_outcome_of_a_tool_decides_whatever_the_answer_is(tmp_path: Path) -> None:
    questions = [question("q1", ["Paris"]) | {"scorer": "outcome"}]
    outcome = '{"reward": 0.25, "success": null, "parts": {}}'
    (row,), _ = score_rows(tmp_path, questions, [rollout("r1", "q1", PARIS, outcome=outcome)])
    assert (row["score"], row["correct"], row["scorer"]) == (0.25, False, "outcome")


@pytest.mark.parametrize(
    ("scorer", "match"),
    [
        ("workspace_tests", "no hidden tests ran at the end of the rollout"),
        ("outcome", "no tool gave an outcome at the end of the rollout"),
    ],
)
def test_rollout_without_the_outcome_that_decides_has_no_verdict(tmp_path: Path, scorer: str, match: str) -> None:
    questions = [question("q1", [], "task") | {"scorer": scorer}]
    with pytest.raises(StageFailed, match=match):
        score_rows(tmp_path, questions, [rollout("r1", "q1", PARIS)])
