"""Compare an answer with gold answers by exact match: one rule for rewards and evaluation.

Documented in docs/behaviour/answers.md.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from typing import Literal

Expected = Literal["any", "set"]
"""What the gold answers of a question are. `any`: ways to write one answer. `set`: the items of a list, all of which
must be found."""

SEPARATOR = "|"
"""Separator between the answers of a prediction that gives several."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_exact(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and then without articles, with single spaces.

    A text of articles alone keeps them, so that the gold answers `A` and `The` are not equal.
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split()) or " ".join(bare.split())


def is_exact_match(prediction: str, answers: Iterable[str], expected: Expected = "any") -> bool:
    """Return whether a prediction is right: each part is a gold answer; with `set`, each gold answer is also a part.

    Parts are separated by `|`; empty ones do not count, and a prediction without any is wrong. With `set`, a gold
    answer that has the separator is several items.
    """
    parts = _parts(prediction)
    if expected == "set":
        return bool(parts) and parts == {part for answer in answers for part in _parts(answer)}
    gold = {normalize_exact(answer) for answer in answers}
    return bool(parts) and parts <= gold


def _parts(text: str) -> set[str]:
    return {normalize_exact(part) for part in text.split(SEPARATOR) if part.strip()}
