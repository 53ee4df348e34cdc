"""Summarize a finished stage for terminal and UI by its entry.

Prices are taken from the run's current configuration, so they may be added or corrected later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import one_line
from treadle.environments.mixture import environments_of
from treadle.stages.registry import SHIPPED, stage_entries
from treadle.stages.report import StageReport
from treadle.tasks.config import TreadleConfig

_log = logging.getLogger(__name__)


def stage_report(record: StageRecord, run: Run) -> StageReport | None:
    """Return the report of a stage; None if the stage has none or another version wrote its metrics."""
    entry = stage_entries().get(record.stage)
    if entry is None or entry.report is None:
        return None
    if record.stage not in SHIPPED:
        return _report_of_package(entry.report, record, run)
    try:
        return entry.report(record, run, _models(run))
    except (KeyError, TypeError):
        return None  # Metrics of another version: the record shows them unchanged.


def _report_of_package(make: Callable[..., object], record: StageRecord, run: Run) -> StageReport | None:
    """Return the report of another package's stage; if its code fails, log a warning and return None."""
    try:
        made = make(record, run, _models(run))
        if made is None or isinstance(made, StageReport):
            return made
        problem = f"it returned {type(made).__name__}, not a StageReport"
    except Exception as error:  # noqa: BLE001 - any error of another package
        problem = one_line(f"{type(error).__name__}: {error}")
    _log.warning("%s: the report of its StageEntry cannot be shown: %s", record.address, problem)
    return None


def _models(run: Run) -> Mapping[str, ModelSettings]:
    """Return the models of the run's current configuration; empty if this version does not accept it."""
    try:
        return load_config(TreadleConfig, base=run.config()).models
    except ConfigError:
        return {}


def role_models(record: StageRecord, run: Run) -> dict[str, ModelSettings]:
    """Return the model of each role of `pools` or `rollouts`, with prices from the run's current configuration."""
    models = _models(run)
    names = {role: one["name"] for role, one in record.settings.get("roles", {}).items()}
    if "model_name" in record.settings:
        names = {"policy": record.settings["model_name"], **names}
        stored = (table or {} for table in environments_of(record.settings).values())
        helpers = (table.get("search", {}).get("summarizer") for table in stored)
        if helper := next(filter(None, helpers), None):
            names["summarizer"] = helper
    return {role: models[name] for role, name in names.items() if name in models}
