"""Count the tokens that a job of the stage `exploration` has used, from its records in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from treadle.agent.cached_units import asked_role
from treadle.agent.metering import TokenBudget
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.stage import JournalView
from treadle.datagen.exploration.settings import ExplorationSettings
from treadle.environments.scorers.graders.grader import Grader

EXPLORER, SUMMARISER, SOLVER, GRADER = "explorer", "summariser", "solver", "grader"
"""Roles, and beginnings of the names of their units: `explorer-0/llm-3`, `summariser-0/1`, `grader/0`."""

Usage = dict[str, list[int]]
"""Role -> prompt and sampled tokens."""


def used_tokens(journal: JournalView, key: str) -> Usage:
    """Return what an unfinished job has used so far, including restarted rollouts and models that episodes ask."""
    used: Usage = {}
    for unit in journal.units(key):
        scope, _, name = unit.partition("/")
        value = journal.get(key, unit)
        data = None if value is None else orjson.loads(value)
        # A completion; observations and outcomes have no endpoint.
        if isinstance(data, dict) and "endpoint" in data:
            counts = used.setdefault(asked_role(name) or scope.split("-")[0], [0, 0])
            counts[0] += data["prompt_tokens"]
            counts[1] += data["completion_tokens"]
    return used


def role_models(settings: ExplorationSettings) -> dict[str, ModelSettings]:
    """Return the models that are paid for, by role."""
    models = {role: one.model for role, one in {**settings.environment_roles, **settings.roles}.items()}
    if isinstance(settings.grader, Grader):
        models[GRADER] = settings.grader.service()
    return models


def charge(budget: TokenBudget, models: Mapping[str, ModelSettings], used: Mapping[str, Any]) -> None:
    """Charge a budget with what a job has used; roles that are not in `models` cost nothing."""
    for role, (prompt, sampled) in used.items():
        if role in models:
            budget.count(models[role], prompt, sampled)
