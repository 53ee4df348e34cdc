"""Score choices among options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from treadle.core.answers.rules import score_choice
from treadle.core.answers.score import Score
from treadle.environments.scorers.answer import AnswerScorer, AnswerTools
from treadle.environments.scorers.base import Scale


class ChoiceScorer(AnswerScorer):
    """Compare the option that an answer names with the right ones."""

    SCALE: ClassVar[Scale] = "binary"

    type: str = "choice"
    """One of several options."""

    def rule(self, prediction: str, answers: Sequence[str], choices: Sequence[str], tools: AnswerTools) -> Score:
        """See `AnswerScorer`."""
        return score_choice(prediction, answers, choices)
