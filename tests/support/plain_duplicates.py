"""Duplicates and contamination by the definition: every question is compared with every candidate, one by one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from datasketch import MinHash, MinHashLSH

from treadle.datagen.questions import question_similarity as likeness
from treadle.datagen.questions.duplicates import identity
from treadle.datagen.questions.question_similarity import jaccard, normalize, shingles, tokenize

NUM_PERMUTATIONS = 128


class Kept(NamedTuple):
    key: str
    text: str
    answers: frozenset[str]
    is_heldout: bool


class Found(NamedTuple):
    kind: str
    key: str
    same_answers: bool
    similarity: float


class PlainIndex:
    """Finds the same as `DuplicateIndex`, in time quadratic in the number of similar questions."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.kept: list[Kept] = []
        self.same_text: dict[str, list[Kept]] = {}
        self.lsh = MinHashLSH(threshold=max(0.3, threshold - 0.15), num_perm=NUM_PERMUTATIONS)

    def add(
        self, key: str, question: str, answers: Iterable[str], choices: Sequence[str] = (), *, heldout: bool = False
    ) -> Found | None:
        new = Kept(key, "\n".join((question, *choices)), frozenset(map(normalize, answers)), heldout)
        same_text = self.same_text.setdefault(identity(question, choices), [])
        for kept in same_text:
            if may_repeat(new, kept):
                return Found("exact_duplicate", kept.key, kept.answers == new.answers, 1.0)
        tokens = tokenize(new.text)
        grams = shingles(tokens)
        sketch = MinHash(num_perm=NUM_PERMUTATIONS, seed=1)
        sketch.update_batch([" ".join(gram).encode() for gram in grams])
        for number in sorted(self.lsh.query(sketch)):
            kept = self.kept[number]
            theirs = tokenize(kept.text)
            similarity = jaccard(grams, shingles(theirs))
            shares_answer = bool(kept.answers & new.answers) and may_repeat(new, kept)
            if similarity >= self.threshold and shares_answer and ask_the_same(tokens, theirs):
                return Found("near_duplicate", kept.key, kept.answers == new.answers, similarity)
        self.lsh.insert(len(self.kept), sketch)
        self.kept.append(new)
        same_text.append(new)
        return None


def may_repeat(new: Kept, kept: Kept) -> bool:
    return new.answers == kept.answers or not (new.is_heldout and kept.is_heldout)


def is_formal(token: str) -> bool:
    return not token[0].isalpha() or (len(token) == 1 and token not in "aAiI")


def ask_the_same(left: Sequence[str], right: Sequence[str]) -> bool:
    """Return whether two token lists differ only by function words, additions and misspellings."""
    sides = (left, right)
    formal = [[token for token in side if is_formal(token)] for side in sides]
    words = [[token for token in side if token.casefold() not in likeness._FUNCTION_WORDS] for side in sides]
    kinds = [{word.casefold() for word in side} for side in words]
    common = kinds[0] & kinds[1]
    order = [[word.casefold() for word in side if word.casefold() in common] for side in words]
    only = [[word for word in side if word.casefold() not in common] for side in words]
    if formal[0] != formal[1] or order[0] != order[1]:
        return False
    if any(word[0].isupper() or word.casefold() in likeness._NEGATIONS for side in only for word in side):
        return False
    if not only[0] or not only[1]:
        return True
    return len(only[0]) == len(only[1]) and all(map(is_misspelling, *only))


def is_misspelling(left: str, right: str) -> bool:
    ratio = difflib.SequenceMatcher(None, left, right, autojunk=False).ratio()
    return min(len(left), len(right)) >= 5 and ratio >= 0.8


class PlainBenchmarks:
    """Finds the same as `BenchmarkIndex` by shared runs, comparing every benchmark question."""

    def __init__(self, overlap: float) -> None:
        self.overlap = overlap
        self.rows: list[list[str]] = []

    def add(self, question: str) -> None:
        self.rows.append([token.casefold() for token in tokenize(question)])

    def find(self, question: str, run: int) -> tuple[int, float] | None:
        """Return the first row that is covered enough, and its share."""
        tokens = [token.casefold() for token in tokenize(question)]
        copied = {tuple(tokens[start : start + run]) for start in range(len(tokens) - run + 1)}
        for number, row in enumerate(self.rows):
            starts = [start for start in range(len(row) - run + 1) if tuple(row[start : start + run]) in copied]
            share = len({place for start in starts for place in range(start, start + run)}) / len(row)
            if starts and share >= self.overlap:
                return number, share
        return None
