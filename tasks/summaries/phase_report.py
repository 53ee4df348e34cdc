"""Summarize a finished `selection` or `rl` stage for terminal and UI: selected questions, and curves over the steps.

Reads the stage's record, and for `rl` also its telemetry, if that still exists.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.core.figures import Figures
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.schemas import RL_LOG
from treadle.rl.curriculum import phase_name
from treadle.rl.training.curves import end_steps, sparkline

Metrics = Mapping[str, Any]

_CURVE_BLOCKS = 24
_SHOWN = {
    "reward": "reward",
    "correctness": "correctness",
    "format_ok": "share in good format",
    "calls": "calls",
    "length": "length in tokens",
}
"""Log column -> label."""


def selection_sentences(metrics: Metrics) -> list[str]:
    """Return how many questions were selected of how many."""
    first = "" if _group(metrics, "fronts.") else "the first "  # Under quotas each domain has its own fronts.
    return [
        f"{metrics['rows']:,} of {metrics['questions']:,} questions are selected, from {first}"
        f"{metrics['selected_fronts']:,} of {metrics['fronts']:,} fronts; {metrics['rollouts']:,} rollouts decided.",
    ]


def selection_figures(metrics: Metrics) -> list[Figures]:
    """Return why questions were left out, and what happened to those that earlier phases trained on."""
    left_out = sorted(_group(metrics, "left_out.").items(), key=lambda item: (-item[1], item[0]))
    overlap = _group(metrics, "overlap.")
    phases = sorted({name.partition(".")[0] for name in overlap}, key=int)
    rows = []
    for phase in phases:
        outcomes = {name.partition(".")[2]: count for name, count in overlap.items() if name.startswith(f"{phase}.")}
        rest = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in outcomes.items() if n and name != "selected")
        rows.append((phase_name(int(phase)), sum(outcomes.values()), outcomes.get("selected", 0), rest or "-"))
    return [
        Figures(
            "Why questions were left out",
            ("reason", "questions"),
            tuple((name.replace("_", " "), count) for name, count in left_out if count),
        ),
        Figures("Questions of earlier phases", ("phase", "questions", "selected again", "others"), tuple(rows)),
    ]


def rl_sentences(metrics: Metrics) -> list[str]:
    """Return what was trained on how many questions, and which step's policy is the result."""
    sentences = [
        f"{metrics['steps']:,} steps over {metrics['rows']:,} questions by {metrics['engine']}, "
        f"{metrics['rollouts']:,} rollouts; sigmas {metrics['sigma_tool']:g} (calls) and "
        f"{metrics['sigma_length']:g} (length).",
        f"In {metrics['equal_groups']:,} of {metrics['groups']:,} groups all rewards were equal, so they gave no "
        "training signal.",
    ]
    handed_over = f"The policy of step {metrics['chosen_step']:,} is exported"
    if (correctness := metrics.get("validation_correctness")) is None:
        return [*sentences, f"{handed_over}."]
    questions = metrics["validation_questions"]
    return [*sentences, f"{handed_over}: {correctness:.3f} right on {questions:,} held-out questions, greedily."]


def rl_figures(log: Sequence[Metrics]) -> list[Figures]:
    """Return means over the first and the last steps, and a curve over all of them."""
    span = end_steps(len(log))
    rows = []
    for column, name in _SHOWN.items():
        values = [step[column] for step in log]
        ends = (_number(_mean(values[:span])), _number(_mean(values[-span:])))
        rows.append((name, *ends, sparkline(_blocks(values), _CURVE_BLOCKS)))
    header = ("mean of", f"first {span:,} steps", f"last {span:,} steps", "curve")
    return [Figures("Rollouts in training", header, tuple(rows))] if log else []


def rl_steps(log: Sequence[Metrics]) -> list[dict[str, Any]]:
    """Return a row per step, for a page that sorts and filters them."""
    return [{"step": step["step"], **{name: _rounded(step[column]) for column, name in _SHOWN.items()}} for step in log]


def rl_log(record: StageRecord, run: Run) -> list[dict[str, Any]]:
    """Return the rows of the step log; empty if it no longer exists."""
    import pyarrow.parquet as pq

    key = record.telemetry.get(RL_LOG.kind)
    content = run.storage.get(key) if key is not None else None
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist() if content is not None else []
    return rows


def _blocks(values: Sequence[float | None]) -> list[float | None]:
    """Return the means of equal parts of the values, one per block of the curve."""
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


def _group(metrics: Metrics, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in metrics.items() if name.startswith(prefix)}
