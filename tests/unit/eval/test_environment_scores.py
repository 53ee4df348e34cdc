"""Rollouts that their environment scores: a bounded number at once, in their order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from treadle.agent.contract import DEFAULT_ENVIRONMENT, Outcome, Task
from treadle.environments.scorers import environment
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.eval.answers import Answer, Gold

NUM_ROLLOUTS = 100


def answer(number: int) -> Answer:
    row = {
        "rollout_key": f"r{number}", "status": "finished", "truncated": False, "segments": "[]", "tool_calls": "[]",
        "turn_rewards": [], "reward": float(number), "outcome": None,
    }  # fmt: skip
    return Answer(row, [], "", Gold(Task(f"q{number}", "Guess.", domain="task")))


def test_scores_run_at_most_32_at_once_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[str] = set()
    most = 0
    all_given = False

    async def score(settings: EnvironmentSettings, task: Task, rollout: StoredRollout) -> Outcome:
        nonlocal most, all_given
        running.add(task.key)
        most = max(most, len(running))
        # None ends before all have been given, which a busy machine may be slow to do.
        while not (all_given := all_given or len(asyncio.all_tasks()) >= NUM_ROLLOUTS):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.remove(task.key)
        return Outcome(rollout.reward)

    monkeypatch.setattr(environment, "environment_type", lambda settings: SimpleNamespace(score=score))
    with OpenScorers({}, {DEFAULT_ENVIRONMENT: EnvironmentSettings()}) as scorers:
        scores = scorers.scores([answer(number) for number in range(NUM_ROLLOUTS)])
    assert [score.score for score in scores] == [float(number) for number in range(NUM_ROLLOUTS)] and most == 32
