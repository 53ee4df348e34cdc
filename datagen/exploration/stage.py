"""Declare the stage `exploration`: models explore the states of tasks and make further tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.datagen.exploration.settings import ExplorationSettings
from treadle.datagen.exploration.tables import OBJECTIVES, SYNTHETIC_TASKS


def _work(context: StageContext) -> WorkResult:
    """Do the unfinished jobs of one stage instance."""
    from treadle.core import steady_loop
    from treadle.datagen.exploration.run import ExplorationRun

    return steady_loop.run(ExplorationRun(context).work())


def _run(context: StageContext) -> Mapping[str, Any]:
    """Write the rows of one stage instance; return counts by outcome."""
    from treadle.datagen.exploration.run import ExplorationRun

    return ExplorationRun(context).write()


EXPLORATION_STAGE = Stage(
    name="exploration",
    version=1,
    settings=ExplorationSettings,
    consumes={"questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(SYNTHETIC_TASKS, OBJECTIVES),
    run=_run,
    work=_work,
    keeps_journal=True,
    is_complete=lambda metrics: not metrics.get("status_failed"),
)
