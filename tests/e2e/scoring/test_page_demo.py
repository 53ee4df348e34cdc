"""The demo of dialogues about pages, as a person runs it: a real Chromium, and the embedded network."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs.command_line import Desk

NUM_TASKS = 3


@pytest.mark.sweep
def test_pages_come_closer_to_what_the_human_wants_and_the_measure_is_named(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    command = ("demo", "colbench", "--frontend", "--set", f"rollouts.max_questions_per_dataset={NUM_TASKS}")
    done = desk.treadle(*command).succeeded()
    lines = {line.split()[0]: line.partition(")")[2].split() for line in done.out.splitlines() if " (rules: " in line}
    (hasty, tutor) = (lines[name] for name in ("hasty", "tutor"))
    assert [line[0] for line in (hasty, tutor)] == [str(NUM_TASKS)] * 2
    assert float(tutor[1]) == 100.0 and float(tutor[-2]) == 100.0, "its last pages are the wanted ones"
    assert float(hasty[-2]) < 100.0 and float(hasty[-1]) == 1.0 < float(tutor[-1])
    scored = desk.rows("demo-colbench-frontend", "1/scores@tutor", "scores")
    assert {row["scorer"] for row in scored} == {"pages: efficientnet-lite0, whole page"}
    assert "pages: efficientnet-lite0, whole page" in (tmp_path / "outputs/demo-colbench-frontend.html").read_text()
    again = desk.treadle(*command).succeeded()
    assert again.err.count("(unchanged, reused)") == 6
