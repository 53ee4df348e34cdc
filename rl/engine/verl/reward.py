"""Score a trajectory for verl if it has no reward yet, which does not happen with Treadle's agent loop.

verl passes one trajectory at a time, so nothing can be compared within a group here. Only a validation, or a plan
without efficiency factors, can be scored. See docs/guides/verl.md.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TagDialect, require_tags
from treadle.core.errors import EngineError
from treadle.environments.registry import parse_environment
from treadle.rl.engine.scorer import GroupScorer, open_scorer
from treadle.rl.engine.verl.host import VALIDATION
from treadle.rl.rewards import GroupItem
from treadle.rl.training.plan import RlPlan
from treadle.rl.verl.rows import domain_of


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], *, job: str, **kwargs: Any
) -> dict[str, float]:
    """Return reward, correctness and format of one trajectory, in the form of verl's reward functions.

    `job` is the path of the training's job, set in the overrides. Raises EngineError if the plan rewards efficiency,
    and DataError for an unknown `data_source`.
    """
    plan, scorer, dialect = _opened(job)
    if extra_info.get("split") != VALIDATION and (plan.options.sigma_tool or plan.options.sigma_length):
        raise EngineError(
            "a trajectory has no reward: calls and length are compared within a group, which only the agent loop "
            "`treadle` can do; use it for all rollouts, or set both sigmas to 0"
        )
    choices = tuple(extra_info.get("choices") or ())
    question = Task(str(extra_info.get("id", "")), "", choices, scorer=domain_of(data_source))
    item = GroupItem.from_text(solution_str, dialect=dialect)
    (reward,) = scorer.rewards([item], question, list(ground_truth), (0.0, 0.0))
    return {"score": reward.reward, "acc": reward.correctness, "f_format": reward.f_format}


@functools.cache
def _opened(job: str) -> tuple[RlPlan, GroupScorer, TagDialect]:
    """Open the plan's scorer for the lifetime of this process; its worker processes end with it."""
    described = json.loads(Path(job).read_text(encoding="utf-8"))
    plan = RlPlan.from_json(json.dumps(described["plan"]))
    environment = parse_environment(described["environment"])
    dialect = require_tags(environment.dialect, "scoring of single texts")
    return plan, _OPEN.enter_context(open_scorer(plan, environment)), dialect


_OPEN = contextlib.ExitStack()
