"""Word-level comparison of a prediction with gold answers: exact match, containment, token F1.

Follows the SQuAD conventions (Rajpurkar et al. 2016) with three corrections: containment respects token boundaries,
yes/no answers get no partial credit, and an answer that consists of articles or punctuation alone is not erased.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_YES_NO = frozenset({"yes", "no"})


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Exact match, containment (each 0 or 1) and token F1."""

    em: float
    acc: float
    f1: float


def normalize_text(text: str) -> str:
    """Lower-case, without ASCII punctuation and articles, white space collapsed.

    Where nothing would be left, the articles stay, and then the punctuation too: else the gold answers `The` and `A`
    would be the same as an empty string, and equal to each other.
    """
    lowered = unicodedata.normalize("NFC", text).lower()
    bare = lowered.translate(_PUNCTUATION)
    return _collapse(_ARTICLES.sub(" ", bare)) or _collapse(bare) or _collapse(lowered)


def normalize_math(text: str) -> str:
    """Lower-case, white space collapsed and trimmed; nothing is deleted."""
    return _collapse(text.lower())


def _collapse(text: str) -> str:
    return " ".join(text.split())


def match_normalized(prediction: str, reference: str) -> TextMatch:
    """Compare two normalised strings."""
    em = float(prediction == reference)
    acc = float(bool(reference) and f" {reference} " in f" {prediction} ")
    if prediction in _YES_NO or reference in _YES_NO:
        return TextMatch(em, acc, em)
    return TextMatch(em, acc, token_f1(prediction.split(), reference.split()))


def match_text(
    prediction: str, references: Iterable[str], normalize: Callable[[str], str] = normalize_text
) -> TextMatch:
    """Compare with each reference; the best value of each metric on its own."""
    normalized = normalize(prediction)
    matches = [match_normalized(normalized, normalize(reference)) for reference in references]
    return TextMatch(
        max((match.em for match in matches), default=0.0),
        max((match.acc for match in matches), default=0.0),
        max((match.f1 for match in matches), default=0.0),
    )


def token_f1(prediction: list[str], reference: list[str]) -> float:
    """F1 of two token multisets; 1 if both are empty."""
    if not prediction and not reference:
        return 1.0
    common = sum((Counter(prediction) & Counter(reference)).values())
    return 2 * common / (len(prediction) + len(reference))


def legacy_match_text(prediction: str, references: Iterable[str]) -> TextMatch:
    """The metrics as published for ET-Agent (arXiv 2601.06860), for comparison with its tables alone.

    Punctuation is kept, containment is by characters, and no answer is treated specially.
    """

    def normalize(text: str) -> str:
        return _collapse(_ARTICLES.sub(" ", text.lower()))

    def match(reference: str) -> TextMatch:
        common = sum((Counter(predicted.split()) & Counter(reference.split())).values())
        f1 = 2 * common / (len(predicted.split()) + len(reference.split())) if common else 0.0
        return TextMatch(float(predicted == reference), float(reference in predicted), f1)

    predicted = normalize(prediction)
    matches = [match(normalize(reference)) for reference in references]
    return TextMatch(
        max((match.em for match in matches), default=0.0),
        max((match.acc for match in matches), default=0.0),
        max((match.f1 for match in matches), default=0.0),
    )
