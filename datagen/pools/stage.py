"""Declare the stage `pools`: make pools of diverse trajectories by repairing wrong ones and condensing right ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.datagen.pools.jobs import CONTENT_VERSION, POOL_JOBS
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.environments.settings import ENVIRONMENT_VERSION


def work(context: StageContext) -> WorkResult:
    """Make the unfinished pools of one stage instance."""
    from treadle.agent.rollout import rare_collections
    from treadle.core import steady_loop
    from treadle.datagen.pools.run import PoolsRun

    with rare_collections():
        return steady_loop.run(PoolsRun(context).work())


def run(context: StageContext) -> Mapping[str, Any]:
    """Write the pools of one stage instance; return counts by outcome, operator, reason and role."""
    from treadle.agent.rollout import rare_collections
    from treadle.core import steady_loop
    from treadle.datagen.pools.run import PoolsRun

    with rare_collections():
        return steady_loop.run(PoolsRun(context).write())


POOLS_STAGE = Stage(
    name="pools",
    version=ENVIRONMENT_VERSION + CONTENT_VERSION,
    settings=PoolsSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(POOLS, POOL_QUESTIONS, POOL_EVENTS),
    telemetry=(ROLLOUT_TELEMETRY,),
    run=run,
    work=work,
    journal_format=3,
    jobs=POOL_JOBS,
    num_shards=lambda settings: settings.options.shards,
)
