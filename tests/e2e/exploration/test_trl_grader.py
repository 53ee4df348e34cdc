"""RL by real TRL whose tasks name a grader with a model as their scorer: its grades are the rewards, each paid once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.model_servers.threaded_server import serving
from support.servers.scripted_server import RecordedRequest
from support.sweep import sampled
from support.training import trl_jobs

from treadle.core.engines.training import EngineOptions
from treadle.environments.scorers.registry import SCORERS
from treadle.rl.training.launch import EngineJob, RlFolder, reinforce
from treadle.rl.verl.rows import TRAINING_SCHEMA

GRADES = {"llm": (0.8, 0.2), "llm-gt": (0.8, 0.2), "llm-binary": (1.0, 0.0)}
"""Grader -> scores of a goal that is met with grade 80, and of one that is missed with 20."""


class Judge:
    """Say that the goal is met if the agent calls Python; remember what it was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, request: RecordedRequest) -> str:
        if request.messages is None or request.messages[0]["role"] != "system":
            return "yes"
        self.shown.append(request.messages[-1]["content"])
        is_met = "<python>" in self.shown[-1] or "\\u003cpython" in self.shown[-1]
        return json.dumps({"rationale": "By its calls.", "score": 80 if is_met else 20})


@pytest.mark.parametrize("grader", sampled(list(GRADES), ["llm-gt"]))
def test_grades_of_a_model_are_the_rewards(policy: Path, tmp_path: Path, grader: str) -> None:
    folder, judge = RlFolder(tmp_path / "training"), Judge()
    folder.logs.mkdir(parents=True)
    rows = [{**row, "scorer": "judged"} for row in trl_jobs.rows()]
    pq.write_table(pa.Table.from_pylist(rows, TRAINING_SCHEMA), folder.parquet)
    with serving(judge) as server:
        model = {"model": "scripted", "endpoints": [{"url": server.url}], "retry_limit": 0}
        scorers = {"judged": SCORERS.parse({"type": grader, "model": model})}
        plan = trl_jobs.make_plan(reward="outcome", learning_rate=1e-3, max_steps=2).model_copy(
            update={"scorers": scorers}
        )
        job = EngineJob(
            model=str(policy), environments=trl_jobs.environments_json(), interpreter=trl_jobs.interpreter()
        )
        done = reinforce(folder, plan, job, EngineOptions(variant="cpu"))
    assert [step.step for step in done.steps] == [1, 2]
    made = [json.loads(line) for path in sorted(folder.rollouts.glob("step-*.jsonl")) for line in path.open()]
    assert len(made) == 16
    met, missed = GRADES[grader]
    assert [row["score"] for row in made] == [met if "<python>" in row["output"] else missed for row in made]
    assert {row["score"] for row in made} == {met, missed}, "rollouts of both kinds are there"
    assert all(row["reward"] == row["score"] for row in made)
    assert len(judge.shown) == len(set(judge.shown)) <= len(made), "equal rollouts are graded once"
    assert all(("reference" in json.loads(text)) == (grader == "llm-gt") for text in judge.shown)
