"""Score short answers in words by token F1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from treadle.core.answers.rules import score_text
from treadle.core.answers.score import Score
from treadle.core.answers.text_match import words
from treadle.environments.scorers.answer import AnswerScorer, AnswerTools
from treadle.environments.scorers.base import Scale

BY_F1 = "qa_f1"
"""Name of the rule in a score that was decided by an F1 threshold only."""


class QaScorer(AnswerScorer):
    """Compare answers in words by exact match and token F1."""

    SCALE: ClassVar[Scale] = "graded"
    JUDGED_AS: ClassVar[str] = "qa"

    type: str = "qa"
    """Exact match and F1 over words."""
    f1_threshold: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Token F1 above which an answer is right; default: `scores.f1_threshold`."""

    @staticmethod
    def tokens(text: str) -> list[str]:
        """Split an answer into the tokens that F1 counts."""
        return words(text)

    def rule(self, prediction: str, answers: Sequence[str], choices: Sequence[str], tools: AnswerTools) -> Score:
        """See `AnswerScorer`."""
        threshold = tools.f1_threshold if self.f1_threshold is None else self.f1_threshold
        return score_text(prediction, answers, choices, tokens=self.tokens, f1_threshold=threshold)
