"""Summarize how many candidates were sampled."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.rl.preferences.left_out import left_out_sentences
from treadle.stages.report import StageReport


def candidates_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return a report with the numbers of candidates, of turns without candidates, and of rollouts left out."""
    metrics = record.metrics
    sentences = [
        f"{metrics['candidates']:,} candidates for {metrics['turns']:,} turns of {metrics['rollouts']:,} rollouts; "
        f"{metrics['truncated']:,} are truncated."
    ]
    if full := metrics.get("full_contexts"):
        sentences.append(f"{full:,} turns have no candidates: their dialogues fill the context window of the policy.")
    return StageReport([*sentences, *left_out_sentences(metrics, "rollouts")])
