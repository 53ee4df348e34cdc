"""Decide whether an answer is right: the one implementation for scoring, selection, rewards and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.answers.choice import is_letter, match_choice
from treadle.core.answers.math_equal import Checker, MathVerdict, math_equal
from treadle.core.answers.text_match import characters, match_text, math_words, words
from treadle.core.errors import ConfigError, EngineError

_TOKENS = {"qa": words, "qa_characters": characters}
RULES = ("math", *_TOKENS, "choice")
"""Rules by which answers are compared: the domain of a question, or the `scorer` that its benchmark names."""

GRADED = frozenset(_TOKENS)
"""Rules whose score is an F1; the others score 0 or 1."""

ENVIRONMENT = "environment"
"""Name of the rule by which an environment itself says how good a rollout is."""

WORKSPACE_TESTS = "workspace_tests"
"""Name of the rule by which hidden tests decide, which ran on the workspace at the end of the episode."""

OUTCOME = "outcome"
"""Name of the rule by which the `outcome` of the episode's tools decides."""

BY_OUTCOME = frozenset({WORKSPACE_TESTS, OUTCOME})
"""Rules that read a rollout's outcome, not its answer."""

DEFAULT_F1_THRESHOLD = 0.8
"""Token F1 above which a qa answer is right."""


@dataclass(frozen=True, slots=True)
class Score:
    """Verdict on a prediction. `score` and `correct` are None if and only if the scorer failed (`error`)."""

    em: float
    acc: float
    f1: float
    score: float | None
    """P of the metrics (`docs/behaviour/metrics.md`): 1 or 0 for math and choice, F1 for qa."""
    correct: bool | None
    scorer: str
    """Rule that decided."""
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
    """Score a prediction against the accepted answers by the rule of the domain; the best answer counts.

    `domain` is one of RULES; `qa_characters` computes F1 over characters in scripts without spaces. An empty prediction
    scores 0. With choices, or if all gold answers are single letters outside math, the choice rule decides. `checker`
    adds the symbolic layer to math; without it, pairs that need it are unequal by `math_rules`. Raise ConfigError for
    an unknown domain.
    """
    if domain not in RULES:
        raise ConfigError(f"domain {domain!r} has no scorer; known: {', '.join(RULES)}")
    if not prediction.strip():
        return Score(0.0, 0.0, 0.0, 0.0, False, "empty")
    if choices or domain == "choice" or (domain in _TOKENS and answers and all(map(is_letter, answers))):
        value = float(match_choice(prediction, answers, choices))
        return Score(value, value, value, value, bool(value), "choice")
    if domain == "math":
        return _score_math(prediction, answers, checker)
    match = match_text(prediction, answers, _TOKENS[domain])
    if match.em:
        return Score(match.em, match.acc, match.f1, 1.0, True, "qa_em")
    return Score(match.em, match.acc, match.f1, match.f1, match.f1 > f1_threshold, "qa_f1")


def _score_math(prediction: str, answers: Sequence[str], checker: Checker | None) -> Score:
    match = match_text(prediction, answers, math_words)
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
    """Return whether a gold answer in math is an option such as `(C)`; a bare letter may be a variable."""
    bare = _bare(gold)
    return is_letter(bare) and len(bare) > 1
