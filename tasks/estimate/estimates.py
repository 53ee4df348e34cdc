"""Estimate what instances that call models will use: `pools`, `rollouts`, judges of `scores`, phases of `rl`."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.pools.settings import PoolsSettings
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.eval.config import ScoresSettings
from treadle.rl.config import RlSettings
from treadle.rl.guided.settings import GuidedSettings
from treadle.tasks.estimate.context import EstimateContext
from treadle.tasks.estimate.figures import Estimate
from treadle.tasks.estimate.judges import estimate_of_judges
from treadle.tasks.estimate.phases import estimate_of_phase
from treadle.tasks.estimate.preview import EMPTY_PREVIEW, Preview
from treadle.tasks.estimate.trajectories import estimate_of_trajectories


def estimates(
    instances: Sequence[Instance],
    run: Run | None,
    to_run: Sequence[str],
    *,
    force: bool,
    preview: Preview = EMPTY_PREVIEW,
) -> list[Estimate]:
    """Return estimates of the instances that would run and call models; `run`: None if it does not exist yet."""
    context = EstimateContext(instances, run, frozenset(to_run), force, preview)
    wanted = [item for item in instances if str(item.address) in context.to_run]
    return [found for item in wanted if (found := _estimate(item, context)) is not None]


def _estimate(item: Instance, context: EstimateContext) -> Estimate | None:
    settings = item.settings
    if isinstance(settings, GuidedSettings):
        return None  # Its requests are those of several candidates per turn, and of scores.
    if isinstance(settings, PoolsSettings | RolloutsSettings):
        return estimate_of_trajectories(item, settings, context)
    if isinstance(settings, RlSettings):
        return estimate_of_phase(item, settings, context)
    if isinstance(settings, ScoresSettings) and (settings.judges or settings.redundancy or settings.best_of):
        return estimate_of_judges(item, settings, context)
    return None
