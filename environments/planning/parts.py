"""Name the figures of planning agents, which their episodes return as parts of the outcome.

Computed by `PlanFigures`; definitions: docs/behaviour/planning.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

EPISODE_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "steps": "sequential steps: turns with calls that ran",
        "batch_width": "calls per step: calls that ran, per such turn",
        "max_batch_width": "most calls of a step: in one turn",
        "duplicate_calls": "duplicate calls: not run because they had been made before",
        "blocked_calls": "blocked calls: not run because a call that they depend on failed",
        "plans": "plans: that the model wrote",
        "faults": "violations: breaches of the order of blocks of the dialect",
    }
)
"""Parts of every episode, with one line on each: `title: explanation`."""

PLAN_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "bad_plans": "plans not followed: plans with an error, such as a cycle",
        "plan_tasks": "tasks: of the plans that can be followed",
        "plan_levels": "levels: of the plans that can be followed; tasks of one level do not depend on each other",
        "early_calls": "early calls: made before a task was done that theirs depends on",
        "tasks_not_run": "tasks not run: that no call answers, without those of reasoning alone",
        "calls_outside_plan": "calls outside the plan: that belong to none of its tasks",
    }
)
"""Parts of episodes with a plan."""

PARTS: Mapping[str, str] = MappingProxyType({**EPISODE_PARTS, **PLAN_PARTS})
"""All parts, in the order in which they are shown."""


def is_planning(names: Collection[str]) -> bool:
    """Return whether an outcome with parts of these names is that of a planning agent.

    Environments of users may have a part with one of these names, and mean something else by it.
    """
    return EPISODE_PARTS.keys() <= set(names)
