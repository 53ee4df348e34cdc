"""Find the words that were added to or removed from a text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import groupby
from os.path import commonprefix
from typing import NamedTuple

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
    head = len(commonprefix((first, second)))
    tail = len(commonprefix((first[head:][::-1], second[head:][::-1])))
    left, right = first[head : len(first) - tail], second[head : len(second) - tail]
    if max(len(left), len(right)) > _MAX_WORDS:
        return None
    # Keep `autojunk`: without it, a model's endless repetitions take time with the cube of their length.
    kept = SequenceMatcher(None, left, right).get_matching_blocks()
    runs = (
        _runs(first, head, tail, [(a, n) for a, _, n in kept]),
        _runs(second, head, tail, [(b, n) for _, b, n in kept]),
    )
    return runs if min(_unchanged_share(side) for side in runs) >= _MIN_SIMILARITY else None


def _unchanged_share(runs: list[WordRun]) -> float:
    """Return the share of unchanged words, ignoring white space; 1 without words."""
    sizes = [(sum(not word.isspace() for word in _WORDS.findall(run.text)), run.is_changed) for run in runs]
    total = sum(size for size, _ in sizes)
    return sum(size for size, is_changed in sizes if not is_changed) / total if total else 1.0


def _runs(words: list[str], head: int, tail: int, kept: Iterable[tuple[int, int]]) -> list[WordRun]:
    """Return the runs of a text whose first `head` and last `tail` words are unchanged.

    `kept` are the start, counted from the end of the head, and length of other unchanged runs.
    """
    changed = [head <= place < len(words) - tail for place in range(len(words))]
    for start, length in kept:
        changed[head + start : head + start + length] = [False] * length
    marked = groupby(zip(words, changed, strict=True), key=lambda pair: pair[1])
    return [WordRun("".join(word for word, _ in run), is_changed) for is_changed, run in marked]
