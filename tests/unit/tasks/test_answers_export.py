"""Answers as JSON Lines: every scored rollout has a line, also without an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tables.score_tables import new_run, put_rows, question, rollout

from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.config import ScoresOptions, ScoresSettings
from treadle.eval.entry import SCORES_STAGE
from treadle.tasks.exchange.answers_export import answer_record, export_answers

RIGHT = [("think", "<think>a</think>"), ("result", "<observation>\nfound\n</observation>"), ("text", "\n"),
         ("answer", "<answer>Ilme</answer>")]  # fmt: skip


def scored_run(folder: Path) -> Run:
    run = new_run(folder)
    asked = [
        {**question("a", ["Ilme"]), "meta": json.dumps({"task_id": "t-1", "Level": 2})},
        question("b", ["x", "y"]),
    ]
    put_rows(run, "1/questions", QUESTIONS, asked)
    rows = [
        rollout("r0", "a", RIGHT),
        rollout("r1", "a", [("think", "<think>a</think>")], sample_index=1, status="no_answer"),
        rollout("r2", "b", [], status="failed", error="the server is gone"),
    ]

    def write(context: StageContext) -> dict[str, Any]:
        context.write("rollouts", rows)
        return {}

    questions = {"questions": (Address.parse("1/questions"),)}
    stage = Stage(
        name="rollouts", version=1, settings=ScoresSettings, consumes={"questions": "questions"},
        produces=(ROLLOUTS,), run=write,
    )  # fmt: skip
    made = Address.parse("1/rollouts@base")
    execute(Instance(address=made, stage=stage, settings=ScoresSettings(), inputs=questions), run)
    settings = ScoresSettings(options=ScoresOptions(symbolic=False))
    inputs = {"rollouts": (made,), **questions}
    execute(Instance(address=Address.parse("1/scores@base"), stage=SCORES_STAGE, settings=settings, inputs=inputs), run)
    return run


def test_every_question_and_round_has_a_line(tmp_path: Path) -> None:
    facts = export_answers(scored_run(tmp_path / "runs"), tmp_path / "out")
    right, none, lost = map(json.loads, (tmp_path / "out" / "answers.jsonl").read_text().splitlines())
    assert (facts["num_rows"], facts["num_completed"]) == (3, 1)
    assert right == {
        "question_id": "t-1", "question": "question a?", "Level": 2, "golden_answer": "Ilme", "prediction": "Ilme",
        "llm_judge": None, "status": "completed", "error": None, "raw": "".join(text for _, text in RIGHT),
        "steps": [
            {"type": "think", "content": "a"}, {"type": "observation", "content": "found"},
            {"type": "answer", "content": "Ilme"},
        ],
        "correct": True, "round": 1, "model": "base", "dataset": "world",
    }  # fmt: skip
    assert (none["prediction"], none["status"], none["error"], none["round"]) == (
        None,
        "invalid_format",
        "no_answer",
        2,
    )
    assert (lost["prediction"], lost["status"], lost["error"]) == (None, "error", "the server is gone")
    assert (lost["golden_answer"], lost["Level"], lost["correct"]) == (["x", "y"], None, False)


def test_a_model_without_scored_rollouts_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no scored rollouts of 'other'"):
        export_answers(scored_run(tmp_path / "runs"), tmp_path / "out", model="other")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("status", "correct", "word"),
    [
        ("parsed", True, "correct"),
        ("parsed", False, "incorrect"),
        ("failed", None, None),
        ("fallback_rule", False, None),
    ],
)
def test_a_missing_verdict_of_the_judge_is_null(status: str, correct: bool | None, word: str | None) -> None:
    judges = json.dumps({"large": {"verdict": correct, "status": status, "raw": ["hm"]}})
    verdict = {"prediction": "x", "is_valid_answer": True, "correct": correct, "judge_status": status, "judges": judges}
    line = answer_record(rollout("r", "a", RIGHT), question("a", ["x"]), verdict)
    assert line["llm_judge"] == {"judgement": word, "replies": {"large": ["hm"]}}
