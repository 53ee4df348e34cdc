"""Find the known words that a word may be a misspelling of, without comparing it with all of them.

Two spellings of a word share at least a certain number of letters, in order, which depends on their lengths alone. For
each word the index keeps a hash of every sequence of that many of its letters, so that two spellings of a word have a
hash in common. A long word has too many such sequences. It is compared with all words of a fitting length, by bit sets
of its letters.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations, pairwise

import numpy as np

from treadle.datagen.questions.question_similarity import MIN_SPELLING_LENGTH, fewest_shared_letters, is_misspelling

_MAX_INDEXED_LENGTH = 11
"""Length of the longest words that are found by sequences; a word of 11 letters has at most 232 of them, one of 12 has
794."""
_BUFFERED = 8_192
"""Number of sequences that are kept in a dictionary before they are sorted into an array."""
_REMEMBERED = 64
"""Number of words that were looked up, but not yet added, whose spellings are remembered."""
_HASH_BITS = 32
_MASK_BITS = 64


class Spellings:
    """The words of the indexed questions, and which of them are misspellings of each other."""

    def __init__(self) -> None:
        self._near: dict[str, list[str]] = {}
        self._words: list[str] = []
        self._sequences = _Sequences()
        self._by_length: dict[int, _Words] = defaultdict(_Words)
        self._found_last: dict[str, list[str]] = {}

    def add(self, word: str) -> None:
        """Add a word of an indexed question."""
        if word in self._near:
            return
        found = self._near[word] = self.near(word)
        for other in found:
            self._near[other].append(word)
        if len(word) <= _MAX_INDEXED_LENGTH:
            self._sequences.add(len(self._words), (key for key, _ in _sequences(word)))
            self._words.append(word)
        self._by_length[len(word)].add(word)
        self._found_last.pop(word, None)
        if len(self._found_last) > _REMEMBERED:
            self._found_last = {}
        for other, near in self._found_last.items():
            if _may_be_spellings(word, other):
                near.append(word)

    def near(self, word: str) -> list[str]:
        """Return the words added so far that may be misspellings of the word."""
        found = self._near.get(word, self._found_last.get(word))
        if found is None:
            likely = self._likely(word)
            found = [other for other in likely if _may_be_spellings(word, other)]
            self._found_last[word] = found
        return found

    def _likely(self, word: str) -> list[str]:
        """Return the words that share enough letters with the word to be misspellings of it."""
        likely = []
        if is_short := len(word) <= _MAX_INDEXED_LENGTH:
            shared: dict[str, int] = {}
            for number, num_letters in self._sequences.find(_sequences(word)):
                other = self._words[number]
                shared[other] = max(num_letters, shared.get(other, 0))
            likely += [other for other, most in shared.items() if most >= fewest_shared_letters(len(word), len(other))]
        for length, words in self._by_length.items():
            if length > _MAX_INDEXED_LENGTH or not is_short:
                likely += words.like(word)
        return likely


def _may_be_spellings(word: str, other: str) -> bool:
    # The comparison may depend on the order.
    return is_misspelling(word, other) or is_misspelling(other, word)


class _Sequences:
    """Hashes of sequences of letters, each with the numbers of the words that have it.

    They are kept in sorted arrays, each at least twice as long as the next, which take 8 bytes for each sequence of a
    word; a dictionary would take more than 100.
    """

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []
        self._recent: dict[int, list[int]] = {}
        self._num_recent = 0

    def add(self, number: int, keys: Iterable[int]) -> None:
        """Note that word `number` has the letter sequences with these hashes."""
        for key in keys:
            self._recent.setdefault(key, []).append(number)
            self._num_recent += 1
        if self._num_recent >= _BUFFERED:
            self._sort_recent()

    def _sort_recent(self) -> None:
        pairs = (key << _HASH_BITS | number for key, numbers in self._recent.items() for number in numbers)
        merged = np.sort(np.fromiter(pairs, dtype=np.uint64, count=self._num_recent))
        while self._sorted and len(self._sorted[-1]) < 2 * len(merged):
            # A stable sort merges two sorted halves in linear time.
            merged = np.sort(np.concatenate((self._sorted.pop(), merged)), kind="stable")
        self._sorted.append(merged)
        self._recent, self._num_recent = {}, 0

    def find(self, sequences: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the number of each word that has one of the sequences, with the number of letters of the sequence."""
        for key, num_letters in sequences:
            for number in self._recent.get(key, ()):
                yield number, num_letters
        lows = np.array([key for key, _ in sequences], dtype=np.uint64) << np.uint64(_HASH_BITS)
        highs = lows | np.uint64((1 << _HASH_BITS) - 1)
        for pairs in self._sorted:
            starts, ends = np.searchsorted(pairs, lows), np.searchsorted(pairs, highs, side="right")
            for place in np.flatnonzero(starts < ends).tolist():
                for pair in pairs[starts[place] : ends[place]].tolist():
                    yield pair & ((1 << _HASH_BITS) - 1), sequences[place][1]


@lru_cache(maxsize=256)
def _sequences(word: str) -> list[tuple[int, int]]:
    """Return (hash, number of letters) of each subsequence of the word that a misspelling of it may contain too."""
    return [
        (hash(letters) & ((1 << _HASH_BITS) - 1), num_letters)
        for num_letters in _shared_lengths(len(word))
        for letters in set(combinations(word, num_letters))
    ]


@lru_cache(maxsize=64)
def _shared_lengths(length: int) -> list[int]:
    """Return how many letters a word of this length may have to share with an indexed word."""
    lengths = range(MIN_SPELLING_LENGTH, _MAX_INDEXED_LENGTH + 1)
    pairs = [(fewest_shared_letters(length, other), min(length, other)) for other in lengths]
    return sorted({shared for shared, shorter in pairs if shared <= shorter})


class _Words:
    """Words of one length, with bit sets of their letters and pairs of letters."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._letters = array("Q")
        self._pairs = array("Q")

    def add(self, word: str) -> None:
        """Add a word."""
        self._words.append(word)
        self._letters.append(_letters(word))
        self._pairs.append(_pairs(word))

    def like(self, word: str) -> list[str]:
        """Return the words that share enough letters with the word to be misspellings of it."""
        shared = fewest_shared_letters(len(word), len(self._words[0]))
        mine, theirs = len(word) - shared, len(self._words[0]) - shared
        if min(mine, theirs) < 0:
            return []
        # A missing letter removes two pairs, an added letter splits one.
        pairs, pair = np.frombuffer(self._pairs, dtype=np.uint64), np.uint64(_pairs(word))
        places = np.flatnonzero(_has_at_most(pair & ~pairs, 2 * mine + theirs))
        letters, letter = np.frombuffer(self._letters, dtype=np.uint64)[places], np.uint64(_letters(word))
        fits = _has_at_most(letter & ~letters, mine) & _has_at_most(letters & ~letter, theirs)
        return [self._words[place] for place in places[fits].tolist()]


def _letters(word: str) -> int:
    """Return the word's letters as a bit set; different letters may share a bit."""
    mask = 0
    for letter in word:
        mask |= 1 << ord(letter) % _MASK_BITS
    return mask


def _pairs(word: str) -> int:
    """Return the word's pairs of letters as a bit set; different pairs may share a bit."""
    mask = 0
    for left, right in pairwise(word):
        mask |= 1 << (23 * ord(left) + ord(right)) % _MASK_BITS
    return mask


def _has_at_most(masks: np.ndarray, num_bits: int) -> np.ndarray:
    """Return a mask of the bit sets with at most `num_bits` bits."""
    one = np.uint64(1)
    for _ in range(num_bits):
        masks = masks & (masks - one)
    is_empty: np.ndarray = masks == 0
    return is_empty
