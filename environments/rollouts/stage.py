"""Declare the stage `rollouts`: sample K trajectories per question, without scoring them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.environments.rollouts.jobs import ROLLOUT_JOBS
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY, ROLLOUTS
from treadle.environments.settings import ENVIRONMENT_VERSION


def work(context: StageContext) -> WorkResult:
    """Run the unfinished rollouts of one stage instance."""
    from treadle.agent.rollout import rare_collections
    from treadle.core import steady_loop
    from treadle.environments.rollouts.run import RolloutsRun

    with rare_collections():
        return steady_loop.run(RolloutsRun(context).work())


def run(context: StageContext) -> Mapping[str, Any]:
    """Write the rollouts of one stage instance; return counts of statuses, turns, calls and tokens."""
    from treadle.agent.rollout import rare_collections
    from treadle.environments.rollouts.run import RolloutsRun

    with rare_collections():
        return RolloutsRun(context).write()


ROLLOUTS_STAGE = Stage(
    name="rollouts",
    version=ENVIRONMENT_VERSION,
    settings=RolloutsSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(ROLLOUTS,),
    telemetry=(ROLLOUT_TELEMETRY,),
    run=run,
    work=work,
    journal_format=3,
    jobs=ROLLOUT_JOBS,
    num_shards=lambda settings: settings.options.shards,
)
