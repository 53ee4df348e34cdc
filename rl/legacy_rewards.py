r"""Correctness as the program published with arXiv 2601.06860 computes it, for differential tests alone.

Nothing of Treadle imports this. Known faults, kept on purpose: the last box of the whole response counts, so text after
the answer wins; only the first gold answer of a math question counts, and no number is compared as a number; the words
of a text answer are joined before they are compared, so that token F1 is exact match.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from treadle.core.answers.extraction import last_box
from treadle.core.answers.math_equal import textually_equal
from treadle.core.answers.math_text import textual_form
from treadle.core.answers.text_match import token_f1

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})


def legacy_correctness(response: str, gold: Sequence[str], domain: str) -> float:
    """C of a response, given as flat text with results; `domain` is math or qa."""
    block = _first_block(response)
    if block is None:
        return 0.0
    if domain == "math":
        box = last_box(response)
        return float(bool(box) and textually_equal(box or "", gold[0]))
    box = last_box(block)
    return max((_f1(box, answer) for answer in gold), default=0.0) if box else 0.0


def _first_block(response: str) -> str | None:
    start = response.find("<answer>")
    end = response.find("</answer>", start)
    return response[start + len("<answer>") : end] if 0 <= start < end else None


def _f1(prediction: str, answer: str) -> float:
    left, right = _normalize(prediction), _normalize(answer)
    if (left in _CLOSED or right in _CLOSED) and left != right:
        return 0.0
    return token_f1(textual_form(left, original=True).split(), textual_form(right, original=True).split())


def _normalize(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
