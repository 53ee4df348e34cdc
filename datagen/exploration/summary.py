"""Summarize a finished exploration for terminal and UI: tasks made, why others were not, and the grader's agreement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.figures import Figures, money
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.datagen.exploration.calibration import scored_alike
from treadle.stages.report import StageReport, group, ranked_counts


def exploration_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return counts by outcome, tokens by role, and how often grader and environment agree."""
    metrics = record.metrics
    sentences = [
        f"{metrics['status_kept']:,} tasks were made of {metrics['drafts']:,} drafts, from "
        f"{metrics['explorations']:,} explorations of {metrics['seed_tasks']:,} seed tasks with {metrics['steps']:,} "
        f"steps; {metrics['unreadable']:,} summaries could not be read.",
    ]
    figures = [
        ranked_counts("What became of the drafts", "status", "drafts", group(metrics, "status_")),
        ranked_counts("Drafts that filters dropped", "filter", "drafts", group(metrics, "filter.")),
    ]
    if "calibration.rollouts" in metrics:
        sentences.append(_agreement(metrics))
        figures.append(_verdicts(metrics))
    figures.append(_tokens(record, models))
    return StageReport(sentences, figures)


def _agreement(metrics: Mapping[str, Any]) -> str:
    number = metrics["calibration.rollouts"]
    if "agreement" not in metrics:
        return "The grader was not compared with the environment."
    sentence = f"Grader and environment agree on {metrics['agreement']:.0%} of {number:,} rollouts of seed tasks"
    if alike := scored_alike(metrics):
        return (
            f"{sentence}; the environment scored all of them {alike}, so this does not show that the grader can tell "
            "right from wrong."
        )
    return f"{sentence}, {metrics['balanced_agreement']:.0%} if right and wrong ones count alike."


def _verdicts(metrics: Mapping[str, Any]) -> Figures:
    counts = {name: metrics[f"calibration.{name}"] for name in _MEANINGS}
    rows = tuple((_MEANINGS[name], count) for name, count in counts.items())
    return Figures("Grader and environment on seed tasks", ("verdicts", "rollouts"), rows)


_MEANINGS = {
    "both_right": "right for both",
    "both_wrong": "wrong for both",
    "grader_only": "right for the grader alone",
    "environment_only": "right for the environment alone",
    "without_verdict": "without a verdict of one of them",
}


def _tokens(record: StageRecord, models: Mapping[str, ModelSettings]) -> Figures:
    """Return prompt and sampled tokens of each role, with their cost if the model has prices."""
    metrics, roles = record.metrics, record.settings["roles"]
    names = sorted({name.split(".")[1] for name in metrics if name.startswith("tokens.")})
    rows = []
    for role in names:
        tokens = metrics[f"tokens.{role}.prompt"], metrics[f"tokens.{role}.sampled"]
        model = models.get(roles[role]["name"]) if role in roles else None
        cost = money(model.cost(*tokens)) if model is not None and model.is_priced else ""
        rows.append((role, *tokens, cost))
    return Figures("Tokens by role", ("role", "prompt tokens", "sampled tokens", "cost"), tuple(rows))
