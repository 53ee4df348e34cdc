"""Compare answers like the program published with ET-Agent (arXiv 2601.06860), for the column `f1_legacy`.

Known faults, kept on purpose: punctuation is kept in words, containment is by characters, and yes/no answers get
partial credit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from treadle.core.answers.text_match import TextMatch, normalize_math, token_f1

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def legacy_words(text: str) -> str:
    """Return an answer in lower case, without articles, with white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", text.lower()).split())


def legacy_match_text(prediction: str, references: Iterable[str]) -> TextMatch:
    """Compare the prediction with each reference; return the best value of each metric over all references.

    Texts are normalized by `legacy_words`.
    """
    predicted = legacy_words(prediction)
    matches = [_match(predicted, legacy_words(reference)) for reference in references]
    return TextMatch(
        max((match.em for match in matches), default=0.0),
        max((match.acc for match in matches), default=0.0),
        max((match.f1 for match in matches), default=0.0),
    )


def legacy_match_math(prediction: str, reference: str) -> TextMatch:
    """Compare an answer to a mathematical question with the reference, after `normalize_math`, which keeps articles."""
    return _match(normalize_math(prediction), normalize_math(reference))


def _match(predicted: str, reference: str) -> TextMatch:
    f1 = token_f1(predicted.split(), reference.split()) if predicted and reference else 0.0
    return TextMatch(float(predicted == reference), float(reference in predicted), f1)
