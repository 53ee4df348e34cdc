"""The stage `rl` with real TRL and real Python: rows and a policy in, a policy out that is its start, trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tables.rl_tables import PLACE, Watched, rl_row
from support.tables.score_tables import new_run, put_rows, question
from support.training import trl_jobs

from treadle.core.config import load_config
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.rl.config import RlSettings
from treadle.rl.selection.tables import RL_ROWS
from treadle.rl.training.stage import RL_STAGE

OPTIONS = {
    "group_size": 4, "prompts_per_step": 2, "mini_batch_prompts": 2, "max_prompt_tokens": 200,
    "max_response_tokens": 260, "max_new_tokens": 90, "learning_rate": 1e-3,
    "reward": {"sigma_tool": 0.1, "sigma_length": 0.1},
    "save_steps": 1, "validation_steps": 1, "validation_questions": 2, "checkpoint_rule": "best", "variant": "cpu",
}  # fmt: skip


@pytest.mark.sweep
def test_a_phase_is_trained_checked_and_exported(trl_environment: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    trl_jobs.write_policy(start)
    run = new_run(tmp_path / "root")
    rows, held_out = [], []
    for row in trl_jobs.rows():
        asked = {"question": row["question"], "domain": "math", "dataset": "sums"}
        reward_model = {"ground_truth": row["answers"], "style": "rule"}
        rows.append(rl_row(row["question_key"], **asked, reward_model=reward_model))
        held_out.append(question(f"h{row['question_key']}", row["answers"]) | asked)
    selected = put_rows(run, "1/selection@phase-1", RL_ROWS, rows)
    questions = put_rows(run, "1/questions", QUESTIONS, held_out)
    environment = trl_jobs.ENVIRONMENT.model_dump(mode="json")
    data = {"options": {**OPTIONS, "start": str(start)}, "environment": environment, "seed": 3}
    inputs = {"rl_rows": (selected,), "questions": (questions,)}
    phase = Instance(
        address=Address.parse(PLACE), stage=RL_STAGE, settings=load_config(RlSettings, data=data), inputs=inputs
    )
    watched = Watched()
    record = execute(phase, run, progress=watched)

    assert (record.metrics["steps"], record.metrics["rollouts"], watched.done) == (2, 16, 2)
    assert record.metrics["engine"].startswith("trl 1.") and record.metrics["validation_questions"] == 2
    made = list(run.rows(record.outputs["rl_rollouts"]).rows())
    assert len(made) == 16 and {row["question_key"] for row in made} == {"q0", "q1", "q2", "q3"}
    assert any(row["tool_calls"] and "<result>" in row["output"] for row in made)
    checkpoint = run.rows(record.outputs["checkpoint"])
    trained, before = checkpoint.folder("model") / "model.safetensors", start / "model.safetensors"
    assert trained.stat().st_size == before.stat().st_size and trained.read_bytes() != before.read_bytes()
