r"""Compute correctness as the program published with arXiv 2601.06860 does; used only by differential tests.

Known faults, kept on purpose: the last box of the whole response counts, so text after the answer wins; its content is
used verbatim, so that `\text{}` and letter case matter in mathematics; only the first gold answer of a math question
counts, and no number is compared as a number; the words of a text answer are joined before they are compared, so that
token F1 is exact match.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from treadle.formats.et_agent.metrics import legacy_math_equal

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BRACE = re.compile(r"[{}]")
_BOX = r"\boxed"


def legacy_correctness(response: str, gold: Sequence[str], domain: str) -> float:
    """Return the correctness of a response, given as flat text with results; `domain` is math or qa."""
    block = _first_block(response)
    if block is None:
        return 0.0
    answer = _last_box(response if domain == "math" else block)
    if answer is None:
        return 0.0
    if domain == "math":
        return float(legacy_math_equal(answer, gold[0]))
    return max((_f1(answer, one) for one in gold), default=0.0)


def _first_block(response: str) -> str | None:
    start = response.find("<answer>")
    end = response.find("</answer>", start)
    return response[start + len("<answer>") : end] if 0 <= start < end else None


def _last_box(text: str) -> str | None:
    r"""Return the content of the last box verbatim, `\text{}` included; None if there is none or it is not closed.

    Any brace counts, also an escaped one. If `\boxed` is followed by a blank anywhere, the text from the last such
    place to the next `$` counts instead. That text, and an `\fbox`, keep their command.
    """
    if f"{_BOX} " in text:
        box = f"{_BOX} " + text.rpartition(f"{_BOX} ")[2].partition("$")[0]
    else:
        start = text.rfind(_BOX) if _BOX in text else text.rfind(r"\fbox")
        end = _closing_brace(text, start) if start >= 0 else None
        if end is None:
            return None
        box = text[start:end]
    return box[len(_BOX) + 1 : -1] if box.startswith(_BOX) and box.endswith("}") else box


def _closing_brace(text: str, start: int) -> int | None:
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0 and brace[0] == "}":
            return brace.end()
    return None


def _f1(prediction: str, answer: str) -> float:
    """Return 1 for equal words, else 0, because words are joined before they are counted.

    Two empty answers are not equal.
    """
    left, right = _joined_words(prediction), _joined_words(answer)
    return float(bool(left) and left == right)


def _joined_words(text: str) -> str:
    return "".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
