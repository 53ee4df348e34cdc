"""Compare the verdicts of a grader with those of the environment on the same rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from treadle.core.errors import StageFailed
from treadle.core.runs.address import Address

_PAIRS = {
    (True, True): "both_right",
    (False, False): "both_wrong",
    (True, False): "grader_only",
    (False, True): "environment_only",
}
"""Verdicts of grader and environment -> name of their count."""


def agreement_metrics(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how often grader and environment said the same, without `agreement` if there is no rollout of both.

    `records` are those of finished calibrations, with `graded` and `scored`: right, wrong, or None without a verdict.
    """
    counts: Counter[str] = Counter()
    for record in records:
        verdicts = (record["graded"], record["scored"])
        counts[_PAIRS.get(verdicts, "without_verdict")] += 1
    judged = sum(counts[name] for name in _PAIRS.values())
    agreed = counts["both_right"] + counts["both_wrong"]
    return {
        **({"agreement": agreed / judged} if judged else {}),
        "calibration.rollouts": judged,
        **{f"calibration.{name}": counts[name] for name in (*_PAIRS.values(), "without_verdict")},
    }


def check_agreement(address: Address, grader: str, metrics: Mapping[str, Any], least: float) -> None:
    """Raise StageFailed if grader and environment agree on too few rollouts, or if both judged none."""
    if not least:
        return
    share, number = metrics.get("agreement"), metrics["calibration.rollouts"]
    remedy = "choose another grader or model, or set exploration.min_agreement"
    if share is None:
        raise StageFailed(
            f"{address}: no rollout of a seed task has a verdict of both the grader {grader} and the environment; "
            f"raise exploration.calibration_tasks, or {remedy}"
        )
    if share < least:
        raise StageFailed(
            f"{address}: the grader {grader} and the environment agree on {share:.0%} of {number} rollouts of seed "
            f"tasks, less than exploration.min_agreement = {least:g}: right for the grader alone "
            f"{metrics['calibration.grader_only']}, for the environment alone "
            f"{metrics['calibration.environment_only']}; {remedy}"
        )
