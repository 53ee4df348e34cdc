"""Summarize a finished conversion for terminal and UI: how many were rewritten, and why others were not."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.figures import money
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.stages.report import StageReport, group, ranked_counts


def conversion_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return counts by outcome, and the refusals by reason."""
    metrics = record.metrics
    converted = metrics["status_converted"]
    teacher = models.get(record.settings["teacher"]["name"])
    tokens = metrics["prompt_tokens"], metrics["completion_tokens"]
    cost = f", cost {money(teacher.cost(*tokens))}" if teacher is not None and teacher.is_priced else ""
    return StageReport(
        [
            f"{converted:,} of {metrics['trajectories']:,} trajectories are rewritten: {metrics['parallel']:,} "
            f"parallel, {metrics['sequential']:,} sequential, "
            f"{metrics['searches'] / max(converted, 1):.1f} searches each.",
            f"{metrics['status_rejected']:,} were rejected, {metrics['status_not_asked']:,} not sent to the teacher, "
            f"{metrics['status_left_out']:,} left out, {metrics['status_failed']:,} failed. The teacher was asked "
            f"{metrics['num_attempts']:,} times: {sum(tokens):,} tokens{cost}.",
        ],
        [ranked_counts("Why trajectories were not rewritten", "reason", "trajectories", group(metrics, "reason."))],
    )
