"""Hold what is known about a group of scored rollouts, from which problems and their likely causes follow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LETTER = re.compile(r"\(?[A-Za-z][).]?")
_LIST = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_LONG_CHARS = 100
_SENTENCE_WORDS = 8


def form_marks(prediction: str, gold: Sequence[str], choices: Sequence[str]) -> frozenset[str]:
    """Return the names (marks) of differences in form between an answer and the gold answers of its question."""
    given, golds = prediction.strip(), [one.strip() for one in gold if one.strip()]
    if not golds:
        return frozenset({"no_gold"})
    marks = {
        "gold_letter": all(_LETTER.fullmatch(one) for one in golds) and not _LETTER.fullmatch(given),
        "gold_option": bool(choices) and bool(_LETTER.fullmatch(given)) and not any(map(_LETTER.fullmatch, golds)),
        "gold_list": all(_LIST.fullmatch(one) for one in golds) and not _LIST.fullmatch(given),
        "gold_long": min(map(len, golds)) > max(_LONG_CHARS, 3 * len(given)),
        "answer_long": len(given.split()) > _SENTENCE_WORDS
        and max(len(one.split()) for one in golds) * 3 < len(given.split()),
        "holds_gold": any(len(one) > 1 and one.casefold() in given.casefold() != one.casefold() for one in golds),
    }
    return frozenset(name for name, holds in marks.items() if holds)


@dataclass(frozen=True, slots=True)
class JudgeCounts:
    """Counts of one judge's verdicts and grades on the answers that it was asked about."""

    num_right: int = 0
    num_wrong: int = 0
    num_grades: int = 0
    grades: frozenset[float] = frozenset()
    """Distinct grades."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFacts:
    """Counts over a group of scored rollouts; those that infrastructure ended count in `statuses` only."""

    statuses: Mapping[str, int]
    num: int = 0
    num_questions: int = 0
    num_answered: int = 0
    """Rollouts that ended with an answer, empty or not, and are scored by it."""
    num_empty: int = 0
    """Rollouts that ended with an answer in which no text was found."""
    num_right: int = 0
    num_undecided: int = 0
    """Rollouts without a verdict."""
    num_judge_failed: int = 0
    """Rollouts without a verdict because no judge gave a readable reply."""
    common_error: str = ""
    """Most frequent reason for a missing verdict, on one line."""
    answers: frozenset[str] = frozenset()
    """Distinct answers that are not empty; at most two are kept."""
    num_rewards: int = 0
    rewards: frozenset[float] = frozenset()
    """Distinct rewards; at most two are kept."""
    num_successes: int = 0
    """Number of rewards with which the rollout counts as right."""
    judges: Mapping[str, JudgeCounts] = field(default_factory=dict)
    num_read: int = 0
    """Answers that were compared with their gold answers."""
    marks: Counter[str] = field(default_factory=Counter)
    """Mark of `form_marks` -> number of compared answers that have it."""

    @property
    def num_with_answer(self) -> int:
        """Number of rollouts with an answer that is not empty."""
        return self.num_answered - self.num_empty

    def often(self, mark: str) -> bool:
        """Return whether at least half of the answers that were read have a mark."""
        return self.num_read > 0 and 2 * self.marks[mark] >= self.num_read
