"""Combine the verdicts of several judges and the rule into one verdict on an answer. Pure functions.

Documented in docs/behaviour/scores.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from treadle.core.answers.score import Score

Status = Literal["parsed", "fallback_rule", "failed"]

PARSED: Literal["parsed"] = "parsed"
FALLBACK_RULE: Literal["fallback_rule"] = "fallback_rule"
FAILED: Literal["failed"] = "failed"

JUDGE = "judge"
"""Name in the column `scorer` if judges decided."""


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """Result of one judge for one answer or trajectory. `verdict` is None unless `status` is `parsed`.

    `failed`: the reply could not be parsed. `fallback_rule`: the judge could not be asked, and the user accepted that.
    `grade` is None for a judge that gives verdicts; `parts` are the numbers that it declares.
    """

    verdict: bool | None
    status: Status
    raw: tuple[str, ...] = ()
    grade: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dict; `grade` and `parts` only if there is a grade."""
        said = asdict(self)
        return said if self.grade is not None else {name: said[name] for name in ("verdict", "status", "raw")}


def binary_score(rule: Score) -> Score:
    """Return the rule's score on the scale of judges: 1 or 0 by its verdict, without partial credit."""
    return rule if rule.correct is None else replace(rule, score=float(rule.correct))


def decide(
    rule: Score,
    judge_verdicts: Sequence[JudgeVerdict],
    on_failed: Literal["exclude", "rule"],
    is_correct: Callable[[float], bool] = bool,
) -> tuple[Score, Status]:
    """Return the verdict and its status for an answer that judges were asked about.

    The majority of parsed verdicts decides. If judges give grades, the score is their mean, and `is_correct` returns
    whether it counts as right. In a tie, or if no judge could be asked, the rule decides. If no reply could be parsed,
    `on_failed` decides.
    """
    grades = [judge_verdict.grade for judge_verdict in judge_verdicts if judge_verdict.grade is not None]
    if grades:
        mean = math.fsum(grades) / len(grades)
        return replace(rule, correct=is_correct(mean), score=mean, scorer=JUDGE, error=None), PARSED
    verdicts = [judge_verdict.verdict for judge_verdict in judge_verdicts if judge_verdict.verdict is not None]
    lead = 2 * sum(verdicts) - len(verdicts)
    if lead:
        return replace(rule, correct=lead > 0, score=float(lead > 0), scorer=JUDGE, error=None), PARSED
    if verdicts or all(judge_verdict.status == FALLBACK_RULE for judge_verdict in judge_verdicts):
        return binary_score(rule), FALLBACK_RULE
    if on_failed == "rule":
        return binary_score(rule), FAILED
    error = "no judge gave a parsable reply"
    return replace(rule, correct=None, score=None, scorer=JUDGE, error=error), FAILED


def mean_parts(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each part over the judges that gave it."""
    values: dict[str, list[float]] = {}
    for given in parts:
        for name, value in given.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(some) / len(some) for name, some in sorted(values.items())}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of judges on the answers for which all of them gave a verdict.

    Attributes:
        share: Share of pairs of verdicts that are equal; None without such answers.
        kappa: Cohen's kappa for two judges, Fleiss' for more. None without such answers, and if all verdicts are the
            same, so that chance alone explains the agreement.
    """

    num_answers: int
    share: float | None
    kappa: float | None


def agreement(verdicts: Sequence[Sequence[bool]]) -> Agreement:
    """Compute the agreement of at least two judges, from their verdicts per answer in a fixed order of judges.

    Cohen (1960); Fleiss (1971). Raise ValueError for rows of different lengths or with fewer than two verdicts.
    """
    if not verdicts:
        return Agreement(0, None, None)
    num_judges = len(verdicts[0])
    if num_judges < 2 or any(len(row) != num_judges for row in verdicts):
        raise ValueError("agreement needs at least two judges, each with a verdict on every answer")
    pairs = num_judges * (num_judges - 1)
    same = [_same_pairs(sum(row), num_judges) / pairs for row in verdicts]
    share = math.fsum(same) / len(verdicts)
    chance = _chance_of_two(verdicts) if num_judges == 2 else _chance_of_many(verdicts)
    return Agreement(len(verdicts), share, (share - chance) / (1 - chance) if chance < 1 else None)


def _same_pairs(right: int, num_judges: int) -> int:
    wrong = num_judges - right
    return right * (right - 1) + wrong * (wrong - 1)


def _chance_of_two(verdicts: Sequence[Sequence[bool]]) -> float:
    """Return the chance agreement of two judges, each with its own share of positive verdicts (Cohen)."""
    first, second = (sum(row[judge] for row in verdicts) / len(verdicts) for judge in (0, 1))
    return first * second + (1 - first) * (1 - second)


def _chance_of_many(verdicts: Sequence[Sequence[bool]]) -> float:
    """Return the chance agreement if all judges have the same share of positive verdicts (Fleiss)."""
    right = sum(map(sum, verdicts)) / (len(verdicts) * len(verdicts[0]))
    return right**2 + (1 - right) ** 2


def joint_verdicts(judge_verdicts: Mapping[str, Mapping[str, Any]], judges: Sequence[str]) -> list[bool] | None:
    """Return the verdicts of all judges on an answer, from the column `judges`; None if any judge has no verdict."""
    verdicts = [judge_verdicts.get(judge, {}).get("verdict") for judge in judges]
    return [bool(verdict) for verdict in verdicts] if verdicts and None not in verdicts else None
