"""Summarize finished rollouts for terminal and UI: what looks wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.mixture import environments_of
from treadle.environments.registry import environment_name
from treadle.environments.rollouts.report import in_environment, metrics_by_environment, odd_warnings, rollout_warnings
from treadle.stages.report import StageReport


def rollouts_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport | None:
    """Return warnings; None if there are none."""
    environments = environments_of(record.settings)
    sentences = []
    is_mixture = len(environments) > 1
    for name, metrics in metrics_by_environment(record.metrics).items():
        settings = environments[name]
        tools = [tool for tool, entry in settings.get("tools", {}).items() if entry.get("max_calls") != 0]
        found = rollout_warnings(metrics, environment_name({"environment": settings}), tools)
        sentences += in_environment(found, name, is_mixture=is_mixture)
    sentences += odd_warnings(record.metrics)
    return StageReport(sentences, []) if sentences else None
