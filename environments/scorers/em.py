"""Score short answers by exact match, as multi-hop question answering is published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from treadle.core.answers.exact_match import Expected, is_exact_match
from treadle.core.answers.score import Score
from treadle.core.answers.text_match import match_text
from treadle.environments.scorers.answer import AnswerScorer, AnswerTools
from treadle.environments.scorers.base import Scale


class EmScorer(AnswerScorer):
    """Compare answers by exact match after normalisation; a prediction may give several, separated by `|`."""

    SCALE: ClassVar[Scale] = "binary"
    JUDGED_AS: ClassVar[str] = "qa"

    type: str = "em"
    """Exact match."""
    expected: Expected = "any"
    """Meaning of several gold answers. `any`: ways to write the same answer; each part of a prediction must be one of
    them. `set`: items of a list; a prediction must give all of them, and no others."""

    def rule(self, prediction: str, answers: Sequence[str], choices: Sequence[str], tools: AnswerTools) -> Score:
        """See `AnswerScorer`."""
        value = float(is_exact_match(prediction, answers, self.expected))
        match = match_text(prediction, answers) if prediction.strip() else None
        others = {"acc": match.acc, "f1": match.f1} if match is not None else {"acc": 0.0, "f1": 0.0}
        rule = self.type if prediction.strip() else "empty"
        return Score(value, bool(value), rule, parts={"em": value, **others})
