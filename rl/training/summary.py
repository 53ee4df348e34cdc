"""Summarize a finished RL training for terminal and UI, from its metrics and, if it still exists, its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.core.figures import Figures
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.rl.groups.oversampling_report import oversampling_figures
from treadle.rl.training.tables import RL_LOG
from treadle.stages.report import Metrics, StageReport, telemetry_rows

_CURVE_BLOCKS = 24
_SHOWN = {
    "reward": "reward",
    "score": "score",
    "calls": "calls",
    "length": "length in tokens",
}
"""Log column -> label."""


def rl_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return a report with sentences about the training, its curves, and a row per step."""
    log = telemetry_rows(record, run, RL_LOG.kind)
    figures = [*rl_figures(log), *oversampling_figures(log)]
    return StageReport(rl_sentences(record.metrics), figures, rl_steps(log))


def rl_sentences(metrics: Metrics) -> list[str]:
    """Return sentences about the training: steps, questions, lost rollouts, and the step of the exported policy."""
    sentences = [
        f"{metrics['steps']:,} steps over {metrics['rows']:,} questions by {metrics['engine']}, "
        f"{metrics['rollouts']:,} rollouts; reward {metrics['reward_rule']}.",
        f"In {metrics['equal_groups']:,} of {metrics['groups']:,} groups all rewards were equal, so they gave no "
        "training signal.",
    ]
    if lost := metrics.get("lost_rollouts"):
        sentences.append(
            f"{lost:,} rollouts were lost to infrastructure and left out, {metrics['lost_groups']:,} whole groups "
            "among them."
        )
    if too_long := metrics.get("rollouts_too_long"):
        sentences.append(f"{too_long:,} rollouts were left out because their prompts left no room for a turn.")
    handed_over = f"The policy of step {metrics['chosen_step']:,} is exported"
    if (score := metrics.get("validation_score")) is None:
        return [*sentences, f"{handed_over}."]
    questions = metrics["validation_questions"]
    return [*sentences, f"{handed_over}: score {score:.3f} on {questions:,} held-out questions, greedily."]


def rl_figures(log: Sequence[Metrics]) -> list[Figures]:
    """Return means over the first and the last steps, and a curve over all of them."""
    from treadle.rl.training.curves import end_steps, sparkline

    span = end_steps(len(log))
    rows = []
    for name, values in _shown_values(log).items():
        ends = (_number(_mean(values[:span])), _number(_mean(values[-span:])))
        rows.append((name, *ends, sparkline(_blocks(values), _CURVE_BLOCKS)))
    header = ("mean of", f"first {span:,} steps", f"last {span:,} steps", "curve")
    return [Figures("Rollouts in training", header, tuple(rows))] if log else []


def rl_steps(log: Sequence[Metrics]) -> list[dict[str, Any]]:
    """Return a row per step, for a page that sorts and filters them."""
    shown = _shown_values(log)
    return [
        {"step": step["step"], **{name: _rounded(values[place]) for name, values in shown.items()}}
        for place, step in enumerate(log)
    ]


def _shown_values(log: Sequence[Metrics]) -> dict[str, list[float | None]]:
    """Return label -> value at each step: general figures, figures by environment, and changing parts of rewards."""
    shown: dict[str, list[float | None]] = {label: [step[column] for step in log] for column, label in _SHOWN.items()}
    of_each = [{one["environment"]: one for one in step["environments"]} for step in log]
    for name in sorted({name for of_step in of_each for name in of_step}):
        for figure in ("reward", "score"):
            shown[f"{name}: {figure}"] = [of_step.get(name, {}).get(figure) for of_step in of_each]
    parts = [{part["name"]: part["value"] for part in step["parts"]} for step in log]
    for name in dict.fromkeys(name for of_step in parts for name in of_step):
        values = [of_step.get(name) for of_step in parts]
        if len({*values} - {None}) > 1:
            shown.setdefault(name, values)
    return shown


def _blocks(values: Sequence[float | None]) -> list[float | None]:
    """Split the values into parts of equal length, one per block of the curve, and return their means."""
    number = min(len(values), _CURVE_BLOCKS)
    cuts = [len(values) * place // number for place in range(number + 1)] if number else []
    return [_mean(values[begin:end]) for begin, end in zip(cuts, cuts[1:], strict=False)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
