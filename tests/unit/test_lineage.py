"""The way back from a rollout names what it came from, and nothing else."""

from __future__ import annotations

from pathlib import Path

from support.score_tables import new_run, put_rows, question, rollout

from treadle.core.schemas import QUESTIONS, ROLLOUTS
from treadle.tasks.lineage import trace_back


def test_a_rollout_is_traced_to_the_artifact_that_holds_it_and_not_to_those_of_other_models(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["1"])])
    put_rows(run, "1/rollouts@a", ROLLOUTS, [rollout("aa", "q1", [], model="a")])
    put_rows(run, "1/rollouts@b", ROLLOUTS, [rollout("bb", "q1", [], model="b")])
    holders = {record.address: record.outputs for record in run.records()}
    step = next(step for step in trace_back(run, "aa") if "rollout" in step.facts)
    assert step.facts["artifacts"] == [holders["1/rollouts@a"]["rollouts"].digest]
