"""The one implementation of "is this answer right": used by scoring, selection, reward and evaluation alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.answers.choice import is_letter, match_choice
from treadle.core.answers.math_equal import Checker, MathVerdict, math_equal
from treadle.core.answers.text_match import match_text, normalize_math, normalize_text
from treadle.core.errors import ConfigError, EngineError

DOMAINS = ("math", "qa", "choice")

DEFAULT_F1_THRESHOLD = 0.8
"""A qa answer is right if its token F1 is greater than this."""


@dataclass(frozen=True, slots=True)
class Score:
    """Verdict on one prediction. `score` and `correct` are None if, and only if, the scorer failed (`error`)."""

    em: float
    acc: float
    f1: float
    score: float | None
    """P of the metrics: 1 or 0 for math and choice, token F1 for qa."""
    correct: bool | None
    scorer: str
    """The rule that decided."""
    error: str | None = None


def score_answer(
    prediction: str,
    answers: Sequence[str],
    choices: Sequence[str] = (),
    domain: str = "qa",
    *,
    checker: Checker | None = None,
    f1_threshold: float = DEFAULT_F1_THRESHOLD,
) -> Score:
    """Compare a prediction with the accepted answers by the rule of the domain; the best answer counts.

    An empty prediction scores 0. With choices, or where all gold answers are single letters outside math, the choice
    rule decides. `checker` adds the symbolic layer to math; without it such a pair is unequal by `math_rules`.
    Raises ConfigError for an unknown domain.
    """
    if domain not in DOMAINS:
        raise ConfigError(f"domain {domain!r} has no scorer; known: {', '.join(DOMAINS)}")
    if not prediction.strip():
        return Score(0.0, 0.0, 0.0, 0.0, False, "empty")
    if choices or domain == "choice" or (domain == "qa" and answers and all(map(is_letter, answers))):
        value = float(match_choice(prediction, answers, choices))
        return Score(value, value, value, value, bool(value), "choice")
    if domain == "math":
        return _score_math(prediction, answers, checker)
    match = match_text(prediction, answers, normalize_text)
    if match.em:
        return Score(match.em, match.acc, match.f1, 1.0, True, "qa_em")
    return Score(match.em, match.acc, match.f1, match.f1, match.f1 > f1_threshold, "qa_f1")


def _score_math(prediction: str, answers: Sequence[str], checker: Checker | None) -> Score:
    match = match_text(prediction, answers, normalize_math)
    verdict = MathVerdict(False, "math_rules")
    error: str | None = None
    for gold in answers:
        try:
            verdict = math_equal(prediction, gold, checker)
        except EngineError as failure:
            error = str(failure)
            continue
        if not verdict.equal and _is_option(gold) and match_choice(prediction, [_bare(gold)]):
            verdict = MathVerdict(True, "choice")
        if verdict.equal:
            return Score(match.em, match.acc, match.f1, 1.0, True, verdict.rule)
    if error is not None:
        return Score(match.em, match.acc, match.f1, None, None, "math_symbolic", error)
    return Score(match.em, match.acc, match.f1, 0.0, False, verdict.rule)


def _bare(gold: str) -> str:
    return gold.replace(r"\text", "").replace("{", "").replace("}", "").strip()


def _is_option(gold: str) -> bool:
    """Whether the gold answer of a math question is an option such as `(C)`; a bare letter may be a variable."""
    bare = _bare(gold)
    return is_letter(bare) and len(bare) > 1
