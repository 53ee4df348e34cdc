"""Finding a question that was already taken in: exactly, or nearly.

Exact means equal after Unicode NFC, case folding and white space, options included. Near is deliberately narrow,
because most questions of a data set share a template: "Which river flows through X?" with another X, or the same
word problem with other numbers, are different questions. Candidates come from MinHash LSH over word 3-grams; a
candidate counts only where the exact Jaccard similarity reaches the threshold, numbers and symbols are the same in
the same order, the words differ by additions or misspellings alone, and an answer is shared.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_TOKEN = re.compile(r"\d+(?:[.,:/]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)*|[^\s\w,.;:?\"“”]|_")
_NUM_PERMUTATIONS = 128
_LSH_MARGIN = 0.15
"""LSH finds only about half of the pairs right at its own threshold, so it is asked for less similar ones too."""
_MIN_SPELLING_LENGTH = 5
_MIN_SPELLING_RATIO = 0.8

# Words whose presence does not change what is asked. Negations and superlatives are not among them.
_FUNCTION_WORD_TEXT = (
    "a an and are as at be been by can could did do does for from had has have how i in is it its me of on or please "
    "s t tell that the their there these this those to was were what when where which who whom whose will with would "
    "you your question answer following find determine give state"
)
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_TEXT.split())
_NEGATION_TEXT = "not no never none neither nor without except least most fewest only isn't doesn't wasn't"
_NEGATIONS = frozenset(_NEGATION_TEXT.split())


def normalize(text: str) -> str:
    """NFC, case folded, runs of white space as one blank."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def identity(question: str, choices: Sequence[str] = ()) -> str:
    """What exact duplicates have in common: the normalised question and its options."""
    return "\n".join(normalize(part) for part in (question, *choices))


def tokenize(text: str) -> list[str]:
    """Numbers, words and symbols in their order, case kept; sentence punctuation is dropped."""
    return _TOKEN.findall(unicodedata.normalize("NFC", text).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))


def shingles(tokens: Sequence[str], size: int = 3) -> set[tuple[str, ...]]:
    """Runs of `size` case-folded tokens; of a shorter text the whole."""
    folded = [token.casefold() for token in tokens]
    return {tuple(folded[start : start + size]) for start in range(max(1, len(folded) - size + 1))}


def jaccard(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> float:
    """Size of the intersection divided by that of the union."""
    return len(left & right) / len(left | right)


def _is_formal(token: str) -> bool:
    return not token[0].isalpha() or (len(token) == 1 and token not in "aAiI")


def asks_the_same(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether two token lists differ by function words, additions and misspellings alone."""
    if [token for token in left if _is_formal(token)] != [token for token in right if _is_formal(token)]:
        return False
    words = [[token for token in tokens if token.casefold() not in _FUNCTION_WORDS] for tokens in (left, right)]
    kinds = [{word.casefold() for word in side} for side in words]
    common = kinds[0] & kinds[1]
    order = [[word.casefold() for word in side if word.casefold() in common] for side in words]
    if order[0] != order[1]:
        return False
    only = [[word for word in side if word.casefold() not in common] for side in words]
    if any(word[0].isupper() or word.casefold() in _NEGATIONS for side in only for word in side):
        return False
    if not only[0] or not only[1]:
        return True
    return len(only[0]) == len(only[1]) and all(_is_misspelling(a, b) for a, b in zip(*only, strict=True))


def _is_misspelling(left: str, right: str) -> bool:
    if min(len(left), len(right)) < _MIN_SPELLING_LENGTH:
        return False
    return difflib.SequenceMatcher(None, left, right, autojunk=False).ratio() >= _MIN_SPELLING_RATIO


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Why a question is left out: the earlier one that it repeats."""

    kind: Literal["exact_duplicate", "near_duplicate"]
    key: str
    same_answers: bool
    similarity: float = 1.0


@dataclass(frozen=True, slots=True)
class _Kept:
    key: str
    text: str
    answers: frozenset[str]
    is_heldout: bool


def _may_repeat(new: _Kept, kept: _Kept) -> bool:
    return new.answers == kept.answers or not (new.is_heldout and kept.is_heldout)


class DuplicateIndex:
    """All questions kept so far. Memory: the texts, and about 1 KiB of LSH bands for each."""

    def __init__(self, threshold: float = 0.9) -> None:
        from datasketch import MinHashLSH

        self._threshold = threshold
        self._kept: list[_Kept] = []
        self._exact: dict[str, list[int]] = {}
        self._lsh = MinHashLSH(threshold=max(0.3, threshold - _LSH_MARGIN), num_perm=_NUM_PERMUTATIONS)

    def add(
        self, key: str, question: str, answers: Iterable[str], choices: Sequence[str] = (), *, heldout: bool = False
    ) -> Duplicate | None:
        """Keep a question, or return the earliest kept one that it repeats; the first always wins.

        Two held-out questions with other answers do not repeat each other: `x` and `X` may be different things there.
        """
        new = _Kept(key, "\n".join((question, *choices)), frozenset(map(normalize, answers)), heldout)
        text = identity(question, choices)
        for kept in (self._kept[number] for number in self._exact.get(text, ())):
            if _may_repeat(new, kept):
                return Duplicate("exact_duplicate", kept.key, kept.answers == new.answers)
        # Case tells names from words, so near duplicates are compared as written.
        tokens = tokenize(new.text)
        grams = shingles(tokens)
        sketch = self._sketch(grams)
        for number in sorted(self._lsh.query(sketch)):
            kept = self._kept[number]
            theirs = tokenize(kept.text)
            similarity = jaccard(grams, shingles(theirs))
            may_repeat = bool(kept.answers & new.answers) and _may_repeat(new, kept)
            if similarity >= self._threshold and may_repeat and asks_the_same(tokens, theirs):
                return Duplicate("near_duplicate", kept.key, kept.answers == new.answers, similarity)
        number = len(self._kept)
        self._exact.setdefault(text, []).append(number)
        self._kept.append(new)
        self._lsh.insert(number, sketch, check_duplication=False)
        return None

    @staticmethod
    def _sketch(grams: set[tuple[str, ...]]) -> Any:
        from datasketch import MinHash

        sketch = MinHash(num_perm=_NUM_PERMUTATIONS, seed=1)
        sketch.update_batch([" ".join(gram).encode("utf-8") for gram in grams])
        return sketch
