"""Declare the stage `conversion`: a teacher rewrites right trajectories as plans of parallel calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.datagen.conversion.jobs import CONTENT_VERSION, CONVERSION_JOBS
from treadle.datagen.conversion.settings import ConversionSettings
from treadle.datagen.conversion.tables import CONVERSIONS


def _work(context: StageContext) -> WorkResult:
    """Rewrite the unfinished trajectories of one stage instance."""
    from treadle.core import steady_loop
    from treadle.datagen.conversion.run import ConversionRun

    return steady_loop.run(ConversionRun(context).work())


def _run(context: StageContext) -> Mapping[str, Any]:
    """Write the rows of one stage instance; return counts by outcome and reason."""
    from treadle.datagen.conversion.run import ConversionRun

    return ConversionRun(context).write()


CONVERSION_STAGE = Stage(
    name="conversion",
    version=CONTENT_VERSION,
    settings=ConversionSettings,
    consumes={"rollouts": "rollouts", "scores": "scores", "questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"rollouts", "scores", "questions", "checkpoint"}),
    produces=(CONVERSIONS,),
    run=_run,
    work=_work,
    jobs=CONVERSION_JOBS,
    num_shards=lambda settings: settings.options.shards,
)
