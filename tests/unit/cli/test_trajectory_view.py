"""`treadle show` tells reasoning that a service keeps apart from the text of the answer."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from support.tables.score_tables import new_run, put_rows, question, rollout

from treadle.cli.views.trajectory import trajectory_view
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.tasks.inspection.lineage import find_rollout


def test_reasoning_is_named(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q", ["4"])])
    parts = [("reasoning", "Let me think.\x1b[2J"), ("answer", r"\boxed{4}"), ("reasoning", "<think>Marked.</think>")]
    put_rows(run, "1/rollouts@base", ROLLOUTS, [rollout("r", "q", parts)])
    out = io.StringIO()
    Console(file=out, width=100).print(trajectory_view(find_rollout(run, "r")))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert r"reasoning: Let me think.\x1b[2J" in lines and r"\boxed{4}" in lines
    assert "<think>Marked.</think>" in lines
