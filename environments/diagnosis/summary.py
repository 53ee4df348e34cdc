"""Summarize what looks wrong with finished rollouts or scores for terminal and UI."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.stages.report import StageReport


def problems_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport | None:
    """Return what looks wrong, with examples and likely causes; None if nothing does."""
    from treadle.environments.diagnosis.reading import diagnoses_of

    sentences = [sentence for one in diagnoses_of(record, run) for sentence in one.sentences()]
    return StageReport(sentences) if sentences else None
