"""Summarize which candidates the critic scored."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.rl.preferences.left_out import left_out_sentences
from treadle.stages.report import StageReport


def advantages_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return a report with the number of scored candidates, and the numbers of turns and tasks left out."""
    metrics = record.metrics
    sentences = [
        f"The critic scored {metrics['candidates']:,} candidates of {metrics['turns']:,} turns; their advantages have "
        f"the mean {metrics['mean_advantage']:+.4g} and the standard deviation {metrics['std_advantage']:.4g}."
    ]
    tasks = left_out_sentences(metrics, "tasks of the best of N", "best_of.left_out.")
    return StageReport([*sentences, *left_out_sentences(metrics, "turns"), *tasks])
