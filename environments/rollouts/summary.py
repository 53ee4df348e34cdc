"""Summarize finished rollouts for terminal and UI: what looks wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.registry import environment_name
from treadle.environments.rollouts.report import rollout_warnings
from treadle.stages.report import StageReport


def rollouts_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport | None:
    """Return warnings; None if there are none."""
    entries = record.settings["environment"].get("tools", {})
    tools = [name for name, entry in entries.items() if entry.get("max_calls") != 0]
    sentences = rollout_warnings(record.metrics, environment_name(record.settings), tools)
    return StageReport(sentences, []) if sentences else None
