"""Runs in which something looks wrong with rollouts or scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.tables.score_tables import called, new_run, put_rows, question, rollout, score
from support.tables.viewer_run import put_from

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.config import ReportSettings
from treadle.report.entry import REPORT_STAGE


def scored_run(
    root: Path, rows: Sequence[dict[str, Any]], gold: str = "4", choices: Sequence[str] = (), **columns: Any
) -> Run:
    """Return a run with these scores, made from rollouts of the same keys; `columns` are added to each row."""
    run = new_run(root)
    keys = sorted({row["question_key"] for row in rows})
    asked = put_rows(run, "1/questions", QUESTIONS, [question(key, [gold], choices=choices) for key in keys])
    given = [rollout(row["rollout_key"], row["question_key"], [("answer", "x")], **called(search=1)) for row in rows]
    made = put_rows(run, "1/rollouts@base", ROLLOUTS, given)
    put_from(run, "1/scores@base", {"scores": [row | columns for row in rows]}, {"rollouts": made, "questions": asked})
    return run


def answers(*predictions: str, correct: bool | None = False, **columns: Any) -> list[dict[str, Any]]:
    """Return a row of `scores` per prediction, each for a question of its own."""
    return [
        score(f"r{number}", f"q{number}", correct, prediction=text, is_valid_answer=bool(text), **columns)
        for number, text in enumerate(predictions)
    ]


def silent_run(root: Path, text: str = "The answer is four.") -> tuple[Run, StageRecord]:
    """Return a run with its report: ten rollouts of `base` that say `text` and end without an answer."""
    run = Run.create(root, "test", {}, {"models": {}, "flow": {"models": []}})
    keys = [f"q{number}" for number in range(10)]
    asked = put_rows(run, "1/questions", QUESTIONS, [question(key, ["4"]) | {"question": text} for key in keys])
    given = [rollout(f"r{key}", key, [("text", text)], status="no_answer") for key in keys]
    made = put_from(run, "1/rollouts@base", {"rollouts": given}, {"questions": asked})
    rows = [
        score(f"r{key}", key, False, status="no_answer", scorer="status", is_valid_answer=False, prediction="")
        for key in keys
    ]
    put_from(run, "1/scores@base", {"scores": rows}, {"rollouts": made, "questions": asked})
    return run, report_of(run)


def report_of(run: Run) -> StageRecord:
    """Run the report of `1/scores@base`."""
    inputs = {"scores": (Address.parse("1/scores@base"),)}
    place = Address.parse("1/report")
    return execute(Instance(address=place, stage=REPORT_STAGE, settings=ReportSettings(), inputs=inputs), run)
