"""Find earlier questions that a new question repeats, exactly or nearly.

Exact means equal after Unicode NFC, case folding and whitespace folding, options included. Near is deliberately narrow,
because most questions of a data set share a template: "Which river flows through X?" with another X, or the same word
problem with other numbers, are different questions. Candidates come from MinHash LSH over word 3-grams. A candidate
counts only if the exact Jaccard similarity reaches the threshold, numbers and symbols are the same in the same order,
the words differ only by additions or misspellings, and an answer is shared. Questions with different payloads are
never duplicates: the payload is part of what separates buckets, so tasks that share a text are not compared.

The work per question does not grow with the number of similar questions: LSH separates questions with different
numbers, symbols or negations, and if it returns many candidates, they are looked up by their words (`WordIndex`).
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.datagen.questions.payload import EMPTY
from treadle.datagen.questions.question_similarity import (
    QuestionFeatures,
    is_same_question,
    jaccard,
    normalize,
    tokenize,
)
from treadle.datagen.questions.spellings import Spellings
from treadle.datagen.questions.word_index import WordIndex

_NUM_PERMUTATIONS = 128
_LSH_MARGIN = 0.15
"""Amount by which the LSH threshold is lower than the Jaccard threshold, because LSH finds only about half of the
pairs at its own threshold."""
_MAX_LSH_CANDIDATES = 64
"""Number of entries in a question's LSH buckets above which candidates are looked up by their words."""
_DIRECTLY_COMPARED = 64
"""Number of questions of one signature below which a new question is compared with each. From this number on, LSH is
used, whose library takes longer to import than a small run."""
_NO_ANSWERS = frozenset({""})
"""Answers of tasks without gold answers: such tasks count as sharing an answer."""
_MAX_CACHED_CHARS = 2_000


def identity(question: str, choices: Sequence[str] = ()) -> str:
    """Return the normalised question and its options, which are equal for exact duplicates."""
    return "\n".join(normalize(part) for part in (question, *choices))


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The earlier question that a new question repeats."""

    kind: Literal["exact_duplicate", "near_duplicate"]
    key: str
    same_answers: bool
    similarity: float = 1.0


@dataclass(frozen=True, slots=True)
class _KeptQuestion:
    key: str
    text: str
    answers: frozenset[str]
    is_heldout: bool
    payload: bytes
    """Digest of the payload and of the environment's name; empty without either."""

    def signature(self, features: QuestionFeatures) -> int:
        """Return a hash that is equal for questions that may be near duplicates."""
        return hash((features.signature, self.payload))


def _may_repeat(new: _KeptQuestion, kept: _KeptQuestion) -> bool:
    return new.answers == kept.answers or not (new.is_heldout and kept.is_heldout)


@lru_cache(maxsize=1_024)
def _cached_features(text: str) -> QuestionFeatures:
    return QuestionFeatures(tokenize(text))


def _features(text: str) -> QuestionFeatures:
    """Return the features of a text; a cache has those of short texts that were compared recently."""
    return _cached_features(text) if len(text) <= _MAX_CACHED_CHARS else QuestionFeatures(tokenize(text))


class _Buckets:
    """MinHash LSH over word 3-grams; all questions in a bucket have the same signature."""

    def __init__(self, threshold: float) -> None:
        from datasketch import MinHash, MinHashLSH

        lsh = MinHashLSH(threshold=threshold, num_perm=_NUM_PERMUTATIONS)
        self._ranges = [(band * lsh.r, (band + 1) * lsh.r) for band in range(lsh.b)]
        self._empty: Any = MinHash(num_perm=_NUM_PERMUTATIONS, seed=1)
        # Most buckets hold one number, and a list for each would take most of the memory.
        self._numbers: dict[int, int | list[int]] = {}

    def keys(self, features: QuestionFeatures, signature: int) -> list[int]:
        """Return the keys of the question's buckets."""
        sketch = self._empty.copy()
        sketch.update_batch([" ".join(gram).encode("utf-8") for gram in features.grams])
        values = sketch.hashvalues
        return [hash((start, values[start:end].tobytes(), signature)) for start, end in self._ranges]

    def add(self, keys: Iterable[int], number: int) -> None:
        """Add a question, by its number in the index, to its buckets; questions must be added in ascending order."""
        for key in keys:
            found = self._numbers.get(key)
            if found is None:
                self._numbers[key] = number
            elif isinstance(found, int):
                self._numbers[key] = [found, number]
            else:
                found.append(number)

    def lists(self, keys: Iterable[int]) -> list[Sequence[int]]:
        """Return the question numbers in each non-empty bucket, ascending."""
        found = [self._numbers[key] for key in keys if key in self._numbers]
        return [(numbers,) if isinstance(numbers, int) else numbers for numbers in found]


def _contains(numbers: Sequence[int], number: int) -> bool:
    place = bisect_left(numbers, number)
    return place < len(numbers) and numbers[place] == number


class DuplicateIndex:
    """Index of all questions kept so far. Memory: the texts, and 2 to 4 KiB per question."""

    def __init__(self, threshold: float = 0.9) -> None:
        self._threshold = threshold
        self._kept: list[_KeptQuestion] = []
        self._exact: dict[bytes, int] = {}
        self._exact_heldout: dict[tuple[bytes, frozenset[str]], int] = {}
        self._by_signature: dict[int, list[int]] = {}
        self._by_words: dict[int, WordIndex] = {}
        self._spellings = Spellings()
        self._alone: dict[bytes, int | None] = {}
        """Payload -> number of the only question with it; None if there are several."""

    def add(
        self,
        key: str,
        question: str,
        answers: Iterable[str],
        choices: Sequence[str] = (),
        *,
        heldout: bool = False,
        payload: str = EMPTY,
        environment: str = DEFAULT_ENVIRONMENT,
    ) -> Duplicate | None:
        """Keep a question, or return the earliest kept one that it repeats.

        Two held-out questions with different answers do not repeat each other: `x` and `X` may be different things
        there. Tasks of two environments do not repeat each other either.
        """
        apart = "" if (payload, environment) == (EMPTY, DEFAULT_ENVIRONMENT) else f"{payload}\n{environment}"
        hidden = hashlib.blake2b(apart.encode(), digest_size=16).digest() if apart else b""
        gold = frozenset(map(normalize, answers)) or _NO_ANSWERS
        new = _KeptQuestion(key, "\n".join((question, *choices)), gold, heldout, hidden)
        digest = hashlib.blake2b(identity(question, choices).encode() + hidden, digest_size=16).digest()
        if (same := self._find_exact(digest, new)) is not None:
            return Duplicate("exact_duplicate", same.key, same.answers == new.answers)
        if hidden and self._is_first_with(hidden):
            self._keep(new, digest)
            return None
        # Compare near duplicates as written, because case distinguishes names from words.
        features = _features(new.text)
        keys = self._keys(features, new.signature(features))
        for number in self._candidates(new, features, keys):
            if (similarity := self._similarity(new, features, self._kept[number])) is not None:
                kept = self._kept[number]
                return Duplicate("near_duplicate", kept.key, kept.answers == new.answers, similarity)
        self._index(self._keep(new, digest), features, keys)
        return None

    def _is_first_with(self, payload: bytes) -> bool:
        """Return whether no kept question has the payload.

        If exactly one has it, that question is indexed now. Most payloads occur once, and a question with such a
        payload repeats no other, so it need not be compared or indexed.
        """
        if payload not in self._alone:
            self._alone[payload] = len(self._kept)
            return True
        if (number := self._alone[payload]) is not None:
            self._alone[payload] = None
            kept = self._kept[number]
            features = _features(kept.text)
            self._index(number, features, self._keys(features, kept.signature(features)))
        return False

    def _find_exact(self, digest: bytes, new: _KeptQuestion) -> _KeptQuestion | None:
        """Return the earliest kept question with the same text that the new one repeats."""
        number = self._exact.get(digest)
        if number is not None and not _may_repeat(new, self._kept[number]):
            # All kept questions with this text are held out and have different answers.
            number = self._exact_heldout.get((digest, new.answers))
        return None if number is None else self._kept[number]

    @functools.cached_property
    def _buckets(self) -> _Buckets:
        return _Buckets(max(0.3, self._threshold - _LSH_MARGIN))

    def _keys(self, features: QuestionFeatures, signature: int) -> list[int] | None:
        """Return the keys of a question's buckets; None if few questions have its signature."""
        is_sketched = len(self._by_signature.get(signature, ())) >= _DIRECTLY_COMPARED
        return self._buckets.keys(features, signature) if is_sketched else None

    def _candidates(self, new: _KeptQuestion, features: QuestionFeatures, keys: Sequence[int] | None) -> Sequence[int]:
        """Return the numbers of the kept questions to compare with, ascending."""
        if keys is None:
            return self._by_signature.get(new.signature(features), ())
        lists = self._buckets.lists(keys)
        if sum(map(len, lists)) <= _MAX_LSH_CANDIDATES:
            return sorted({number for numbers in lists for number in numbers})
        found = self._word_index(new.signature(features)).candidates(features, new.answers)
        return sorted(number for number in found if any(_contains(numbers, number) for numbers in lists))

    def _word_index(self, signature: int) -> WordIndex:
        """Return the index of the kept questions with the same signature, built on first use."""
        index = self._by_words.get(signature)
        if index is None:
            index = self._by_words[signature] = WordIndex(self._spellings)
            for number in self._by_signature[signature]:
                kept = self._kept[number]
                index.add(number, _features(kept.text), kept.answers)
        return index

    def _similarity(self, new: _KeptQuestion, features: QuestionFeatures, kept: _KeptQuestion) -> float | None:
        """Return the similarity to a kept question that the new one repeats; None if it does not repeat it."""
        if new.payload != kept.payload or new.answers.isdisjoint(kept.answers) or not _may_repeat(new, kept):
            return None
        theirs = _features(kept.text)
        if not is_same_question(features, theirs):
            return None
        similarity = jaccard(features.grams, theirs.grams)
        return similarity if similarity >= self._threshold else None

    def _keep(self, new: _KeptQuestion, digest: bytes) -> int:
        """Keep a question and return its number."""
        number = len(self._kept)
        self._kept.append(new)
        self._exact.setdefault(digest, number)
        if new.is_heldout:
            self._exact_heldout[digest, new.answers] = number
        return number

    def _index(self, number: int, features: QuestionFeatures, keys: Sequence[int] | None) -> None:
        """Let later questions be compared with a kept one."""
        kept = self._kept[number]
        signature = kept.signature(features)
        alike = self._by_signature.setdefault(signature, [])
        alike.append(number)
        if keys is not None:
            self._buckets.add(keys, number)
        elif len(alike) == _DIRECTLY_COMPARED:
            for one in alike:
                self._buckets.add(self._buckets.keys(_features(self._kept[one].text), signature), one)
        if (index := self._by_words.get(signature)) is not None:
            index.add(number, features, kept.answers)
