"""Offline dialogues are read row by row; what does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import DataError
from treadle.formats.colbench.trajectories import (
    ColbenchTrajectory,
    Rejected,
    check_alignment,
    read_trajectories,
    tasks_in,
)

TASK = {"problem_description": "Write f(x).", "ground_truth": "def f(x): return x", "test_cases": {"1": "f(1)"}}


def dialogue(*texts: str, output: str = "", answer: str = "x", task: dict[str, Any] = TASK) -> dict[str, Any]:
    history: list[dict[str, str]] = []
    for place, text in enumerate((task["problem_description"], *texts)):
        history.append({"role": "assistant" if place % 2 else "user", "content": text})
    history[-1] |= {"input": "<|system|>", "output": output or texts[-1]}
    return {"task": task, "dialogue_history": history, "answer": answer, "reward": 1.0}


def read(folder: Path, *rows: Any) -> list[ColbenchTrajectory | Rejected]:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_trajectories(path))


def test_last_turn_is_what_was_generated_and_earlier_ones_what_later_prompts_have(tmp_path: Path) -> None:
    (one,) = read(tmp_path, dialogue("Which?", "That.", " done", output="thought OUTPUT: done"))
    assert isinstance(one, ColbenchTrajectory)
    assert (one.turns, one.replies, one.has_answer) == (["Which?", "thought OUTPUT: done"], ["That."], True)
    (one,) = read(tmp_path, dialogue("Which?", answer="No answer"))
    assert isinstance(one, ColbenchTrajectory) and not one.has_answer


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"task": TASK}, "missing_field"),
        ({**dialogue("a"), "task": {"problem_description": "x"}}, "bad_task"),
        ({**dialogue("a"), "dialogue_history": []}, "bad_dialogue"),
        (dialogue("a", "b"), "bad_dialogue"),
        ({**dialogue("a"), "dialogue_history": dialogue("a")["dialogue_history"][::-1]}, "bad_dialogue"),
        ({**dialogue("a"), "task": {**TASK, "problem_description": "other"}}, "bad_dialogue"),
        (dialogue("a" * 1_000_001), "too_long"),
        (dialogue("a\0"), "nul_character"),
    ],
)
def test_row_that_is_no_dialogue_is_refused(tmp_path: Path, row: Any, reason: str) -> None:
    refused, kept = read(tmp_path, row, dialogue("a"))
    assert isinstance(refused, Rejected) and (refused.number, refused.error.reason) == (1, reason)
    assert isinstance(kept, ColbenchTrajectory)


@pytest.mark.covers("sweet-11")
def test_samples_that_are_not_aligned_by_task_are_refused(tmp_path: Path) -> None:
    other = {**TASK, "problem_description": "Write g(x)."}
    path = tmp_path / "t.jsonl"
    read(tmp_path, *(dialogue("a", task=task) for task in (TASK, other) * 3))
    check_alignment(path, 3)
    assert [one.description for one in tasks_in(path)] == ["Write f(x).", "Write g(x)."]
    read(tmp_path, *(dialogue("a", task=task) for task in (TASK, other, TASK, TASK)))
    with pytest.raises(DataError, match="row 4: its problem_description differs from that of row 2"):
        check_alignment(path, 2)
    with pytest.raises(DataError, match="4 rows, which is no multiple of 3 samples"):
        check_alignment(path, 3)
