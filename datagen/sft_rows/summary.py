"""Summarize finished fine-tuning rows for terminal and UI: yield, reasons of rejections, calls, data sets."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.core.figures import Figures
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.datagen.pools.summary import projection
from treadle.stages.report import Metrics, StageReport, group, ranked_counts, reads


def sft_rows_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return how many rows were made, and why trajectories were left out."""
    metrics = record.metrics
    text_mode = f", {metrics['text_mode_rows']:,} without token ids" if metrics["text_mode_rows"] else ""
    sentences = [
        f"{metrics['rows']:,} rows from {metrics['trajectories']:,} trajectories, of which {metrics['accepted']:,} "
        f"passed the quality gate{text_mode}.",
        f"{metrics['tokens']:,} tokens, {metrics['target_tokens']:,} of them targets.",
    ]
    pools = next((one for one in run.records() if one.stage == "pools" and reads(record, one)), None)
    if pools is not None:
        sentences += projection(pools, run, models, metrics["accepted"], "accepted")
    by_call = {name: group(metrics, f"calls.{name}.") for name in ("initial", "rows")}
    calls = sorted({*by_call["initial"], *by_call["rows"]}, key=int)
    return StageReport(
        sentences,
        [
            ranked_counts("Why trajectories were rejected", "reason", "trajectories", group(metrics, "reason.")),
            ranked_counts("Accepted, but not made into rows", "why", "trajectories", group(metrics, "left_out.")),
            _operators(metrics),
            Figures(
                "Tool calls",
                ("calls", "initial rollouts", "rows"),
                tuple((name, by_call["initial"].get(name, 0), by_call["rows"].get(name, 0)) for name in calls),
            ),
            ranked_counts("Data sets", "data set", "rows", group(metrics, "dataset.")),
        ],
    )


def _operators(metrics: Metrics) -> Figures:
    accepted, turned = group(metrics, "accepted."), group(metrics, "corrected.")
    rows = tuple((name, accepted[name], turned.get(name, "-")) for name in sorted(accepted))
    return Figures("Accepted by operator", ("operator", "accepted", "wrong turned right"), rows)
