"""Validate the policy in training on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle.agent.contract import Task
from treadle.rl.engine.group_source import GroupSource
from treadle.rl.engine.trl.events import TrlReporter, gathered, rank_and_world
from treadle.rl.training.figures import validation_figures


def validator(
    rows: Sequence[Task], source: GroupSource, refresh_weights: Callable[[], None], reporter: TrlReporter
) -> Callable[[], dict[str, Any]]:
    """Return a function that validates the policy with its current weights and returns the figures."""

    def validate() -> dict[str, Any]:
        refresh_weights()
        rank, world = rank_and_world()
        mine = rows[rank::world]
        rewards = gathered(list(zip(source.validate(mine), [row.domain for row in mine], strict=True)))
        figures = validation_figures([reward for reward, _ in rewards], [domain for _, domain in rewards])
        reporter.report_validation(figures)
        return figures

    return validate
