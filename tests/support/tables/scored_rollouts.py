"""Scored rollouts for the figures of evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from treadle.eval.averages import AVERAGES
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import DatasetFigures
from treadle.eval.scored_rollout import ScoredRollout, ToolCalls
from treadle.report.summary import model_rows


def averages(parts: Sequence[DatasetFigures]) -> dict[str, dict[str, Any]]:
    """Average -> figure -> value, as the report has them in the rows of a model."""
    found: dict[str, dict[str, Any]] = {}
    for row in model_rows("m", parts, ReportSettings(bootstrap_samples=100)):
        found.setdefault(row["dataset"], {})[row["figure"]] = row["value"]
    return {name: found[name] for name in AVERAGES if name in found}


def scored(
    score: float | None = 1.0, calls: int = 0, failed: int = 0, tokens: int = 100, **given: Any
) -> ScoredRollout:
    """Return a rollout with P, T, Wrong and L; correct if P is 1, answered with all calls run unless `given`
    differs.
    """
    exact, f1 = float(score == 1.0), score or 0.0
    is_reward = given.get("scorer") == "environment"
    parts = {} if is_reward else {"em": exact, "acc": exact, "f1": f1, "f1_legacy": f1}
    parts |= {name: given.pop(name) for name in parts if name in given}
    fields: dict[str, Any] = {
        "question_key": "q0",
        "dataset": "world",
        "domain": "qa",
        "score": score,
        "correct": None if score is None else score == 1.0,
        "is_reward": is_reward,
        "parts": tuple(sorted(parts.items())),
        "scorer": "qa_f1",
        "calls_requested": calls,
        "calls_executed": calls,
        "failed_calls": failed,
        "tools": (ToolCalls("python", calls, calls, failed),) if calls else (),
        "prompt_tokens": 1_000,
        "completion_tokens": tokens,
        "reasoning_tokens": tokens,
        "output_chars": 4 * tokens,
        "status": "answered",
        "is_valid_answer": True,
    }
    return ScoredRollout(**fields | given)


@st.composite
def rollouts(draw: st.DrawFn, datasets: int = 2, questions: int = 4) -> ScoredRollout:
    """Any rollout, with or without a verdict."""
    domain = draw(st.sampled_from(["math", "qa"]))
    whole = st.sampled_from([0.0, 1.0])
    score = draw(st.none() | (whole if domain == "math" else whole | st.floats(0, 1)))
    calls = draw(st.integers(0, 12))
    executed = draw(st.integers(0, calls))
    return scored(
        score,
        calls,
        draw(st.integers(0, executed)),
        draw(st.integers(0, 5_000)),
        dataset=f"{domain}{draw(st.integers(1, datasets))}",
        question_key=f"q{draw(st.integers(1, questions))}",
        domain=domain,
        calls_executed=executed,
        status=draw(st.sampled_from(["answered", "limit", "failed"])),
        is_valid_answer=draw(st.booleans()),
    )
