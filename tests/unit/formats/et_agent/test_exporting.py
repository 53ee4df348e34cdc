"""Exported rollouts have the counts of the two tools that the other program knows."""

from __future__ import annotations

import json
from pathlib import Path

from support.tables.score_tables import new_run, put_rows
from support.tables.viewer_run import agent_row, put_from, question_row

from treadle.core.runs.address import Address
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.formats.et_agent.exporting import export_records


def test_calls_that_ran_are_counted_by_the_tools_of_that_program(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    asked = put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Who?")])
    tools = [
        {"tool": "calc", "requested": 5, "executed": 5, "failed": 0},
        {"tool": "python", "requested": 2, "executed": 1, "failed": 1},
        {"tool": "search", "requested": 4, "executed": 3, "failed": 0},
    ]
    rows = [agent_row(ROLLOUTS, "r1", "q1", tools=tools), agent_row(ROLLOUTS, "r2", "q1")]
    put_from(run, "1/rollouts@base", {"rollouts": rows}, {"questions": asked})
    record = run.record(Address.parse("1/rollouts@base"))
    assert record is not None
    export_records(run, record, "rollouts", tmp_path / "out")
    (made,) = json.loads((tmp_path / "out" / "rollouts.json").read_text())
    assert made["tool_counts"] == [
        {"search_times": 3, "python_times": 1, "total_times": 4},
        {"search_times": 0, "python_times": 0, "total_times": 0},
    ]
