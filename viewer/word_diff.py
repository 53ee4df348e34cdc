"""Find the words that were added to or removed from a text."""

from __future__ import annotations

import re
from itertools import groupby
from typing import NamedTuple

import numpy as np

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_WORDS = 2000
_MIN_SIMILARITY = 0.3


class WordRun(NamedTuple):
    """Consecutive words that are all changed or all unchanged."""

    text: str
    is_changed: bool


def changed_words(before: str, after: str) -> tuple[list[WordRun], list[WordRun]] | None:
    """Split both texts into runs of common and changed words; None if they are too long or have too little in common.

    Common beginnings and ends do not count towards the length limit.
    """
    first, second = _WORDS.findall(before), _WORDS.findall(after)
    head = _common(first, second)
    tail = _common(first[head:][::-1], second[head:][::-1])
    left, right = first[head : len(first) - tail], second[head : len(second) - tail]
    if max(len(left), len(right)) > _MAX_WORDS:
        return None
    kept = _common_words(left, right)
    runs = _runs(first, head, kept[0]), _runs(second, head, kept[1])
    return runs if min(_unchanged_share(side) for side in runs) >= _MIN_SIMILARITY else None


def _unchanged_share(runs: list[WordRun]) -> float:
    """Return the share of unchanged words, ignoring white space; 1 without words."""
    sizes = [(sum(not word.isspace() for word in _WORDS.findall(run.text)), run.is_changed) for run in runs]
    total = sum(size for size, _ in sizes)
    return sum(size for size, is_changed in sizes if not is_changed) / total if total else 1.0


def _common(first: list[str], second: list[str]) -> int:
    """Return the number of words that both begin with."""
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count


def _common_words(left: list[str], right: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of a longest common subsequence.

    The time is the product of the lengths, independent of the words (unlike `difflib`, which slows down with
    repetitions).
    """
    numbers: dict[str, int] = {}
    first, second = (np.array([numbers.setdefault(word, len(numbers)) for word in side]) for side in (left, right))
    lengths = np.zeros((len(left) + 1, len(right) + 1), np.int16)
    for row, word in enumerate(first, 1):
        before = lengths[row - 1]
        np.maximum.accumulate(np.where(second == word, before[:-1] + 1, before[1:]), out=lengths[row, 1:])
    kept = np.zeros(len(left), bool), np.zeros(len(right), bool)
    row, column = len(left), len(right)
    while row and column:
        if lengths[row, column] == lengths[row - 1, column]:
            row -= 1
        elif lengths[row, column] == lengths[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            kept[0][row] = kept[1][column] = True
    return kept


def _runs(words: list[str], head: int, kept: np.ndarray) -> list[WordRun]:
    """Return the runs of a text in which only words not in `kept`, after the head, have changed."""
    changed = [False] * len(words)
    changed[head : head + len(kept)] = (~kept).tolist()
    marked = groupby(zip(words, changed, strict=True), key=lambda pair: pair[1])
    return [WordRun("".join(word for word, _ in run), is_changed) for is_changed, run in marked]
