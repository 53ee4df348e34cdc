"""What verl asks for the reward of a trajectory that came without one, which those of our agent loop never do.

verl asks about one trajectory at a time, so nothing can be compared within a group here: only a plan without
efficiency factors, or a validation, can be scored. docs/guides/verl.md.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.core.errors import EngineError
from treadle.rl.engine.verl_host import VALIDATION
from treadle.rl.plan import RlPlan
from treadle.rl.rewards import GroupItem, group_rewards
from treadle.rl.verl_rows import domain_of


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], *, job: str, **kwargs: Any
) -> dict[str, float]:
    """Correctness and format of one trajectory, as verl's reward managers call it; `job` comes from the overrides.

    Raises EngineError where the plan rewards effort, and DataError for an unknown `data_source`.
    """
    plan = _plan(job)
    if extra_info.get("split") != VALIDATION and (plan.options.sigma_tool or plan.options.sigma_length):
        raise EngineError(
            "a trajectory came without its reward: calls and length are compared within a group, which only the agent "
            "loop `treadle` sees; let it make all rollouts, or set both sigmas to 0"
        )
    (reward,) = group_rewards(
        [GroupItem.from_text(solution_str)],
        list(ground_truth),
        domain_of(data_source),
        0.0,
        0.0,
        plan.options.reward,
        choices=tuple(extra_info.get("choices") or ()),
    )
    return {"score": reward.reward, "acc": reward.correctness, "f_format": reward.f_format}


@functools.cache
def _plan(job: str) -> RlPlan:
    return RlPlan.from_json(json.dumps(json.loads(Path(job).read_text(encoding="utf-8"))["plan"]))
