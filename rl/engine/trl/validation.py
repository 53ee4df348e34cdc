"""Validate the policy in training on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle.agent.contract import Task
from treadle.rl.engine.group_source import GroupSource
from treadle.rl.engine.trl.events import TrlReporter, gathered, rank_and_world
from treadle.rl.training.figures import validation_figures
from treadle.rl.training.plan import RlPlan


def validator(
    plan: RlPlan, rows: Sequence[Task], source: GroupSource, refresh_weights: Callable[[], None], reporter: TrlReporter
) -> Callable[[], dict[str, Any]]:
    """Return a function that validates the policy with its current weights and returns the figures."""

    def validate() -> dict[str, Any]:
        refresh_weights()
        rank, world = rank_and_world()
        mine = rows[rank::world]
        made = gathered(
            [(reward, row.domain, row.environment) for reward, row in zip(source.validate(mine), mine, strict=True)]
        )
        rewards, domains, environments = ([one[place] for one in made] for place in range(3))
        figures = validation_figures(rewards, domains, environments if plan.is_mixed else None)
        reporter.report_validation(figures)
        return figures

    return validate
