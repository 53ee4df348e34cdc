"""Decide whether an answer is right: pure functions, one per rule, for scoring, selection, rewards and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from treadle.core.answers.choice import is_letter, match_choice
from treadle.core.answers.math_equal import Checker, MathVerdict, math_equal
from treadle.core.answers.score import DEFAULT_F1_THRESHOLD, Score
from treadle.core.answers.text_match import TextMatch, Tokens, characters, match_text, math_words, words
from treadle.core.errors import ConfigError, EngineError


def score_choice(prediction: str, answers: Sequence[str], choices: Sequence[str] = ()) -> Score:
    """Score a choice among options. An empty prediction is wrong."""
    if not prediction.strip():
        return _EMPTY
    value = float(match_choice(prediction, answers, choices))
    return Score(value, bool(value), "choice", parts={"em": value, "acc": value, "f1": value})


def score_text(
    prediction: str,
    answers: Sequence[str],
    choices: Sequence[str] = (),
    *,
    tokens: Tokens = words,
    f1_threshold: float = DEFAULT_F1_THRESHOLD,
) -> Score:
    """Score an answer by token F1; the best gold answer counts.

    With choices, or if all gold answers are single letters, the choice rule decides.
    """
    if choices or (answers and all(map(is_letter, answers))) or not prediction.strip():
        return score_choice(prediction, answers, choices)
    match = match_text(prediction, answers, tokens)
    if match.em:
        return Score(1.0, True, "qa_em", parts=_parts(match))
    return Score(match.f1, match.f1 > f1_threshold, "qa_f1", parts=_parts(match))


def score_math(
    prediction: str, answers: Sequence[str], choices: Sequence[str] = (), *, checker: Checker | None = None
) -> Score:
    """Score an answer by mathematical equality; with choices, the choice rule decides.

    `checker` adds the symbolic layer; without it, answers that only that layer could compare are unequal, and the
    scorer is `math_rules`.
    """
    if choices or not prediction.strip():
        return score_choice(prediction, answers, choices)
    parts = _parts(match_text(prediction, answers, math_words))
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
            return Score(1.0, True, verdict.rule, parts=parts)
    if error is not None:
        return Score(None, None, "math_symbolic", error, parts)
    return Score(0.0, False, verdict.rule, parts=parts)


def score_answer(
    prediction: str,
    answers: Sequence[str],
    choices: Sequence[str] = (),
    domain: str = "qa",
    *,
    checker: Checker | None = None,
    f1_threshold: float = DEFAULT_F1_THRESHOLD,
) -> Score:
    """Score a prediction by the rule called `domain`; raise ConfigError if there is no such rule."""
    rule = _RULES.get(domain)
    if rule is None:
        raise ConfigError(f"domain {domain!r} has no scorer; known: {', '.join(_RULES)}")
    return rule(prediction, answers, choices, checker, f1_threshold)


_Rule = Callable[[str, Sequence[str], Sequence[str], Checker | None, float], Score]
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "math": lambda text, gold, options, checker, _: score_math(text, gold, options, checker=checker),
        "qa": lambda text, gold, options, _, least: score_text(text, gold, options, f1_threshold=least),
        "qa_characters": lambda text, gold, options, _, least: score_text(
            text, gold, options, tokens=characters, f1_threshold=least
        ),
        "choice": lambda text, gold, options, *_: score_choice(text, gold, options),
    }
)
_EMPTY = Score(0.0, False, "empty", parts={"em": 0.0, "acc": 0.0, "f1": 0.0})


def _parts(match: TextMatch) -> dict[str, float]:
    return {"em": match.em, "acc": match.acc, "f1": match.f1}


def _bare(gold: str) -> str:
    return gold.replace(r"\text", "").replace("{", "").replace("}", "").strip()


def _is_option(gold: str) -> bool:
    """Return whether a gold answer in math is an option such as `(C)`; a bare letter may be a variable."""
    bare = _bare(gold)
    return is_letter(bare) and len(bare) > 1
