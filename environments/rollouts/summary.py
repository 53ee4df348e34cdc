"""Summarize finished rollouts for terminal and UI: what looks wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.diagnosis.summary import problems_report
from treadle.stages.report import StageReport


def rollouts_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport | None:
    """Return what is wrong with the rollouts, with examples and likely causes; None if nothing is."""
    from treadle.environments.rollouts.report import odd_warnings

    found = problems_report(record, run, models)
    sentences = [*(found.sentences if found else ()), *odd_warnings(record.metrics)]
    return StageReport(sentences) if sentences else None
