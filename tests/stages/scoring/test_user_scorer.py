"""A user's scorer in one file, from questions to the report, with the command line."""

from __future__ import annotations

import json
from pathlib import Path

from support.runs.command_line import Desk
from support.tables.score_tables import parts_of

SCORER = '''
from treadle.api import Score, Scorer

class Steps(Scorer):
    """Share of the expected words that the answer has."""
    PARTS = {"named": "expected words in the answer", "length": "characters of the answer"}
    PAYLOAD = ("expected",)
    least: float = 0.5
    """Share above which a rollout is right."""

    async def score(self, task, rollout):
        expected = task.payload["expected"]
        if not expected:
            return None
        named = sum(word in rollout.answer for word in expected)
        share = named / len(expected)
        return Score(share, share > self.least, parts={"named": named, "length": len(rollout.answer)})
'''
CONFIG = """
[models.agent]
model = "treadle-tutor"
server = { type = "tutor", persona = "strong" }

[questions]
sources = [{ path = "tasks.jsonl", payload = ["expected"], scorer = "steps" }]

[environment]
python.enabled = false
search.enabled = false

[scorers.steps]
type = "steps.py:Steps"
least = 0.25

[scores]
max_error_rate = 0.5
"""
SECRET = "zzyzx"


def test_scorer_in_one_file_decides_from_questions_to_report(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    tasks = [
        {"question": "Name the rivers.", "expected": ["", SECRET]},
        {"question": "Name the towns.", "expected": [""]},
        {"question": "Name the hills.", "expected": []},
    ]
    (desk.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (desk.folder / "steps.py").write_text(SCORER)
    (desk.folder / "own.toml").write_text(CONFIG)
    plan = desk.treadle("run", "own.toml", "--run", "own", "--dry-run").succeeded()
    assert "part named: expected words in the answer" in plan.out and "least = 0.25  Share above" in plan.out
    desk.treadle("run", "own.toml", "--run", "own").succeeded()
    rows = desk.rows("own", "1/scores@agent", "scores")
    assert [(row["score"], row["correct"]) for row in rows] == [(0.5, True), (1.0, True), (None, None)]
    assert [row["scorer"] for row in rows] == ["steps"] * 3 and rows[2]["error"] == "scorer steps gave no score"
    assert [parts_of(row).get("named") for row in rows] == [1.0, 1.0, None]
    summary = {row["figure"]: row for row in desk.rows("own", "1/report", "summary")}
    assert (summary["score"]["value"], summary["part:named"]["value"]) == (0.75, 1.0)
    assert summary["scorer:steps"]["value"] == 3 and "em" not in summary
    desk.treadle("report", "--run", "own", "--out", "own.html").succeeded()
    shown = (desk.folder / "own.html").read_text()
    assert "named" in shown and SECRET not in shown
    (desk.folder / "steps.py").write_text(SCORER.replace("share > self.least", "share > 2"))
    desk.treadle("run", "own.toml", "--run", "own").succeeded()
    assert not any(row["correct"] for row in desk.rows("own", "1/scores@agent", "scores"))
