"""Score rollouts by comparing their answer with the gold answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from treadle.agent.contract import Task
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD, Score
from treadle.environments.scorers.base import Reads, Scorer
from treadle.environments.stored_rollout import StoredRollout

if TYPE_CHECKING:
    from treadle.core.answers.math_equal import Checker

F1 = "f1"
"""Name of the part of a score that the scorer `qa` compares with its threshold."""


@dataclass(frozen=True, slots=True)
class AnswerTools:
    """Resources that all comparisons of answers in a run share.

    Attributes:
        checker: Computer algebra; None if the run does not use it.
        f1_threshold: Token F1 above which an answer is right, unless a scorer has its own.
    """

    checker: Checker | None = None
    f1_threshold: float = DEFAULT_F1_THRESHOLD


class AnswerScorer(Scorer):
    """Base of the scorers that compare an answer with the gold answers."""

    PARTS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "em": "exact match: after normalisation",
            "acc": "containment: a gold answer occurs in the prediction, at token boundaries",
            F1: "F1: of tokens, best over the gold answers",
            "f1_legacy": "F1 as published: with punctuation kept, to compare with published tables",
        }
    )
    READS: ClassVar[Reads] = "answer"
    NEEDS_ANSWERS: ClassVar[bool] = True
    TIME_LIMIT_S: ClassVar[float | None] = None

    def compare(self, prediction: str, answers: Sequence[str], choices: Sequence[str], tools: AnswerTools) -> Score:
        """Compare a prediction with gold answers. Thread-safe; computer algebra may take seconds."""
        score = self.rule(prediction, answers, choices, tools)
        return replace(score, parts={**score.parts, "f1_legacy": self.f1_legacy(prediction, answers)})

    def rule(self, prediction: str, answers: Sequence[str], choices: Sequence[str], tools: AnswerTools) -> Score:
        """Return the score by the rule of this type of scorer."""
        raise NotImplementedError(f"{type(self).__name__} needs a method rule(prediction, answers, choices, tools)")

    def f1_legacy(self, prediction: str, answers: Sequence[str]) -> float:
        """Return token F1 as the program published for ET-Agent computes it."""
        from treadle.core.answers.legacy import legacy_match_text

        return legacy_match_text(prediction, answers).f1

    async def score(self, task: Task, rollout: StoredRollout) -> Score:
        """Compare the rollout's answer with the gold answers, without computer algebra."""
        return await asyncio.to_thread(self.compare, rollout.answer, task.answers, task.choices, AnswerTools())
