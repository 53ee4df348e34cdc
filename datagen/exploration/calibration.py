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
    """Return counts of the verdicts of grader and environment, and the shares of rollouts on which they agree.

    `agreement` is the share among all rollouts with verdicts of both; it is left out if there are none.
    `balanced_agreement` is the mean of this share among rollouts that the environment scored right and among those that
    it scored wrong, so a grader with a constant verdict gets 0.5; it is left out if the environment gave all the same
    verdict. `records` are those of finished calibrations, with the verdicts `graded` and `scored`: True, False, or None
    if unknown.
    """
    counts: Counter[str] = Counter()
    for record in records:
        verdicts = (record["graded"], record["scored"])
        counts[_PAIRS.get(verdicts, "without_verdict")] += 1
    judged = sum(counts[name] for name in _PAIRS.values())
    agreed = counts["both_right"] + counts["both_wrong"]
    num_right = counts["both_right"] + counts["environment_only"]
    is_mixed = 0 < num_right < judged
    shares = (counts["both_right"] / num_right, counts["both_wrong"] / (judged - num_right)) if is_mixed else ()
    return {
        **({"agreement": agreed / judged} if judged else {}),
        **({"balanced_agreement": sum(shares) / 2} if is_mixed else {}),
        "calibration.rollouts": judged,
        **{f"calibration.{name}": counts[name] for name in (*_PAIRS.values(), "without_verdict")},
    }


def scored_alike(metrics: Mapping[str, Any]) -> str | None:
    """Return the verdict, `right` or `wrong`, that the environment gave all rollouts of seed tasks; None if mixed."""
    is_right = metrics["calibration.both_right"] + metrics["calibration.environment_only"] > 0
    return None if "balanced_agreement" in metrics else "right" if is_right else "wrong"


def check_agreement(address: Address, grader: str, metrics: Mapping[str, Any], least: float) -> None:
    """Raise StageFailed if grader and environment agree on too few rollouts.

    Also raises it if no rollout has verdicts of both, or if the environment gave all rollouts the same verdict: then a
    grader that always gives this verdict would agree.
    """
    if not least:
        return
    share, number = metrics.get("agreement"), metrics["calibration.rollouts"]
    remedy = "choose another grader or model, or set exploration.min_agreement"
    if share is None:
        raise StageFailed(
            f"{address}: no rollout of a seed task has a verdict of both the grader {grader} and the environment; "
            f"raise exploration.calibration_tasks, or {remedy}"
        )
    balanced = metrics.get("balanced_agreement", share)
    if min(share, balanced) < least:
        raise StageFailed(
            f"{address}: the grader {grader} and the environment agree on {share:.0%} of {number} rollouts of seed "
            f"tasks ({balanced:.0%} if right and wrong ones count alike), less than exploration.min_agreement = "
            f"{least:g}: right for the grader alone {metrics['calibration.grader_only']}, for the environment alone "
            f"{metrics['calibration.environment_only']}; {remedy}"
        )
    if alike := scored_alike(metrics):
        raise StageFailed(
            f"{address}: the environment scored all {number} rollouts of seed tasks {alike}, so their agreement with "
            f"the grader {grader} ({share:.0%}) does not show that it can tell right from wrong; raise "
            "exploration.calibration_tasks, let a model solve them that sometimes succeeds (exploration.roles.solver), "
            "or set exploration.min_agreement = 0 to use the grader without this check"
        )
