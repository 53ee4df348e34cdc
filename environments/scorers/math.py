"""Score answers of mathematical questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from treadle.core.answers.legacy import legacy_match_math
from treadle.core.answers.rules import score_math
from treadle.core.answers.score import Score
from treadle.environments.scorers.answer import AnswerScorer, AnswerTools
from treadle.environments.scorers.base import Scale


class MathScorer(AnswerScorer):
    """Compare mathematical answers by rules, and by computer algebra if `scores.symbolic` is on."""

    SCALE: ClassVar[Scale] = "binary"
    JUDGED_AS: ClassVar[str] = "math"

    type: str = "math"
    """Mathematical equality."""

    def rule(self, prediction: str, answers: Sequence[str], choices: Sequence[str], tools: AnswerTools) -> Score:
        """See `AnswerScorer`."""
        return score_math(prediction, answers, choices, checker=tools.checker)

    def f1_legacy(self, prediction: str, answers: Sequence[str]) -> float:
        """Return the F1 with the first gold answer: only that one counts in the published program."""
        return max((legacy_match_math(prediction, answer).f1 for answer in answers[:1]), default=0.0)
