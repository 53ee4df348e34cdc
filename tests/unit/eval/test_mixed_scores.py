"""Scores of tasks of several environments: each by its own scorer, and rows of one kind do not depend on the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.dialogues import Guess
from support.rollouts.scores_bench import judged_by
from support.tables.score_tables import WITHOUT_ALGEBRA, called, question, rollout, score_rows

from treadle.agent.contract import Task
from treadle.core.answers.score import Score
from treadle.core.config import load_config
from treadle.environments.custom.kind import CustomType
from treadle.eval.answers import COPIED_COLUMNS, Answer, Gold
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_queue import REDUNDANCY, JudgeQueue

GUESS_TYPE = "support.rollouts.dialogues:Guess"
GUESS = {"guess": CustomType(Guess).settings.model_validate({"type": GUESS_TYPE})}
SECRET = "31337"
WHOLE = {"status": "finished", "environment": "guess", "domain": "task", "dataset": "numbers"}


def answer_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return questions with gold answers and their rollouts."""
    asked = [question("q1", ["Paris"]), question("q2", ["7"], "math"), question("q3", ["Rome"])]
    made = [
        rollout("r1", "q1", [("answer", "<answer>Paris, France</answer>")]),
        rollout("r2", "q2", [("answer", "<answer>7.0</answer>")], domain="math"),
        rollout("r3", "q3", [("text", "I do not know.")], status="no_answer"),
    ]
    return asked, made


def guess_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return tasks of the environment that scores them and their rollouts."""
    hidden = {"payload": json.dumps({"secret": SECRET}), "environment": "guess", "dataset": "numbers"}
    asked = [question(f"t{number}", [], "task") | hidden for number in (1, 2, 3)]
    made = [
        rollout("s1", "t1", [("text", "I say 50")], **WHOLE),
        rollout("s2", "t2", [("text", "I say 50")], **WHOLE | {"status": "max_turns"}),
        rollout("s3", "t3", [], **WHOLE | {"status": "failed"}),
    ]
    return asked, made


def scores_of(tmp_path: Path, *kinds: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the rows of scores by rollout."""
    asked = [row for kind in kinds for row in kind[0]]
    made = [row for kind in kinds for row in kind[1]]
    settings = ScoresSettings(options=WITHOUT_ALGEBRA, environments=GUESS)
    rows, _ = score_rows(tmp_path, asked, made, settings)
    return {row["rollout_key"]: row for row in rows}


def test_every_rollout_is_scored_by_its_own_environment(tmp_path: Path) -> None:
    rows = scores_of(tmp_path, answer_rows(), guess_rows())
    columns = ("environment", "scorer", "score", "correct", "is_reward")
    assert {key: tuple(row[name] for name in columns) for key, row in rows.items()} == {
        "r1": ("default", "qa_f1", pytest.approx(2 / 3), False, False),
        "r2": ("default", "math_numeric", 1.0, True, False),
        "r3": ("default", "status", 0.0, False, False),
        "s1": ("guess", "environment", 1.0, True, True),
        "s2": ("guess", "environment", 0.0, False, True),
        "s3": ("guess", "status", 0.0, False, False),
    }
    assert rows["s1"]["prediction"] == "I say 50" and SECRET not in json.dumps(list(rows.values()))


def test_rows_of_one_kind_do_not_depend_on_the_other(tmp_path: Path) -> None:
    mixed = scores_of(tmp_path / "mixed", answer_rows(), guess_rows())
    apart = scores_of(tmp_path / "answers", answer_rows()) | scores_of(tmp_path / "guess", guess_rows())
    assert mixed == apart
    interleaved = [
        [row for pair in zip(*rows, strict=True) for row in pair]
        for rows in zip(answer_rows(), guess_rows(), strict=True)
    ]
    assert scores_of(tmp_path / "interleaved", (interleaved[0], interleaved[1])) == mixed


def made(environment: str, answers: tuple[str, ...] = ()) -> Answer:
    """Return a rollout with a call, and an answer that the rule does not accept."""
    row = {**dict.fromkeys(COPIED_COLUMNS), "rollout_key": "r", "question_key": "q", "status": "answered"}
    segments = [{"kind": "answer", "text": "<answer>seven</answer>"}]
    task = Task("q", "How many?", domain="math", environment=environment, answers=answers, payload={"secret": SECRET})
    return Answer(row | called(search=1), segments, "seven", Gold(task, "How many?"))


def judge_queue(kind: str) -> JudgeQueue:
    rubric = {"rubric": "Short answers are best."} if kind == "rubric" else {}
    options = {"judges": {"type": kind, **rubric}, "redundancy": {"model": "judge"}}
    given = judged_by({"judge": "http://127.0.0.1:9/v1"}, options)
    settings = load_config(ScoresSettings, data={**given, "redundancy": given["judges"]["judge"]})
    return JudgeQueue(settings.model_copy(update={"environments": GUESS}))


WRONG, REWARD = Score(0.0, False, "math_rules"), Score(0.25, False, "environment")


def test_judges_that_need_gold_answers_skip_tasks_without() -> None:
    queue = judge_queue("correctness")
    answered, guessed = made("default", ("7",)), made("guess")
    assert {one.kind for one in queue.about(answered, WRONG)} == {"correctness", REDUNDANCY}
    assert queue.decides(answered) and queue.has_votes(answered)
    assert not list(queue.about(guessed, REWARD)) and not queue.decides(guessed) and not queue.has_votes(guessed)


def test_rubric_judges_both_kinds_and_sees_no_payload() -> None:
    queue = judge_queue("rubric")
    for one in (made("default", ("7",)), made("guess")):
        (judgement,) = queue.judgements(one, WRONG)
        case = queue.case(judgement, 0.0)
        assert case.question == "How many?" and not case.answers and SECRET not in repr(case)
