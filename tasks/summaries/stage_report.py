"""Summarize a finished stage for terminal and UI by its entry.

Prices are taken from the run's current configuration, so they may be added or corrected later.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.stages.registry import stage_entries
from treadle.stages.report import StageReport
from treadle.tasks.config import TreadleConfig


def stage_report(record: StageRecord, run: Run) -> StageReport | None:
    """Return the report of a stage; None if the stage has none or another version wrote its metrics."""
    entry = stage_entries().get(record.stage)
    try:
        return entry.report(record, run, _models(run)) if entry is not None and entry.report is not None else None
    except (KeyError, TypeError):
        return None  # Metrics of another version: the record shows them unchanged.


def _models(run: Run) -> Mapping[str, ModelSettings]:
    """Return the models of the run's current configuration; empty if this version does not accept it."""
    try:
        return load_config(TreadleConfig, base=run.config()).models
    except ConfigError:
        return {}


def role_models(record: StageRecord, run: Run) -> dict[str, ModelSettings]:
    """Return role -> its model with prices from the run's current configuration, for `pools` and `rollouts`."""
    models = _models(run)
    names = {role: one["name"] for role, one in record.settings.get("roles", {}).items()}
    if "model_name" in record.settings:
        names = {"policy": record.settings["model_name"], **names}
        if helper := record.settings["environment"].get("search", {}).get("summarizer"):
            names["summarizer"] = helper
    return {role: models[name] for role, name in names.items() if name in models}
