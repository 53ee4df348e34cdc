"""What the program published with arXiv 2601.06860 would write about the rollouts of a run: its aggregate per data set.

From stored rows alone, so that a model's scores can be held beside published ones; see `legacy_metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from treadle.core.errors import DataError
from treadle.eval.legacy_metrics import (
    LegacySample,
    legacy_conciseness,
    legacy_execution_score,
    legacy_overall,
    legacy_results,
    legacy_sample,
    legacy_successful_execution,
)
from treadle.eval.statistics import mean_of

SCORE_COLUMNS = (
    "rollout_key", "question_key", "model", "dataset", "domain", "prediction", "correct", "judge_status",
    "reasoning_tokens",
    "votes_yes", "votes_no",
)  # fmt: skip
ROLLOUT_COLUMNS = ("rollout_key", "text")
QUESTION_COLUMNS = ("question_key", "answers")

Row = Mapping[str, Any]


@dataclass(slots=True)
class _Group:
    """One model on one data set."""

    samples: list[LegacySample] = field(default_factory=list)
    executions: list[tuple[float, list[str]]] = field(default_factory=list)
    lengths: list[float | None] = field(default_factory=list)
    """P / L of each sample; None where L is not known."""
    votes: list[tuple[int, int]] = field(default_factory=list)
    is_judged: bool = False


def legacy_report(
    scores: Iterable[Row], rollouts: Iterable[Row], questions: Iterable[Row]
) -> dict[str, dict[str, dict[str, float | str | None]]]:
    """Model -> data set -> figures under the original's names; its date is left out.

    Rows of scores say in `has_judge` whether judges decide about answers that the rule does not call right. There every
    answer has the judge's verdict, as it is there: 1 for what the rule calls right, or equality in mathematics does,
    since nobody is asked about these here; without judges it is 0. Rows of `scores` and `rollouts`
    stand in the same order. Raises KeyError for a question that is not given, DataError for other rollouts.
    """
    gold = {row["question_key"]: row["answers"] for row in questions}
    groups: dict[tuple[str, str], _Group] = {}
    for row, rollout in zip(scores, rollouts, strict=True):
        if row["rollout_key"] != rollout["rollout_key"]:
            raise DataError(
                f"rollout {row['rollout_key']} is scored where {rollout['rollout_key']} stands; score again"
            )
        group = groups.setdefault((row["model"], row["dataset"]), _Group())
        _add(group, row, gold[row["question_key"]], rollout["text"])
    report: dict[str, dict[str, dict[str, float | str | None]]] = {}
    for (model, dataset), group in groups.items():
        report.setdefault(model, {})[dataset] = _figures(group)
    return report


def _add(group: _Group, row: Row, answers: list[str], output: str) -> None:
    sample = legacy_sample(
        row["prediction"],
        output,
        answers[0] if len(answers) == 1 else answers,
        "math" if row["domain"] == "math" else "qa",
    )
    if row["has_judge"]:
        sample = replace(sample, llm_equal=float(sample.math_equal == 1 or row["correct"] is True))
    score = legacy_execution_score(sample, row["dataset"])
    tokens = row["reasoning_tokens"]
    group.samples.append(sample)
    group.executions.append((score, legacy_results(output)))
    group.lengths.append(None if tokens is None else score / max(tokens, 1))
    group.is_judged |= row["has_judge"]
    if row["votes_yes"] is not None:
        group.votes.append((row["votes_yes"], row["votes_no"]))


def _figures(group: _Group) -> dict[str, float | str | None]:
    execution, ratio = legacy_successful_execution(group.executions)
    known = [length for length in group.lengths if length is not None]
    return {
        **legacy_overall(group.samples, judged=group.is_judged),
        "successful_execution": execution,
        "correct_call_ratio": ratio,
        "reasoning_length": mean_of(known) if len(known) == len(group.lengths) else None,
        "conciseness": legacy_conciseness(group.votes) if group.votes else None,
    }
