"""Find the questions of a template that another question may repeat, without comparing it with all of them.

Questions of a template are similar, but a few words make each of them a different question. The index returns every
question that can pass `asks_the_same`, and few others:

- Questions all of whose words are in the new question, or are misspelled in it: found in a tree of words, rarest first,
  by following only the branches with such words.
- Questions with all words of the new question and more: found by the rarest of its words, among questions with more
  words.

All questions in one index have the same signature (`Reading.signature`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from treadle.datagen.questions.likeness import Reading, may_be_misspelled
from treadle.datagen.questions.spellings import Spellings

_LEAF = 8
"""Maximum number of word sets at a node of the tree before it branches."""


class _Kin:
    """The questions with the same set of words."""

    __slots__ = ("members", "words")

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        """The words, rarest first at the time when the first of these questions was added."""
        self.members: dict[str, dict[int, list[int]]] = {}
        """Answer -> hash of the words in their order -> numbers of the questions."""


class _Branch:
    """A node of the tree: all questions below it have the words on the path to it."""

    __slots__ = ("children", "kin")

    def __init__(self) -> None:
        self.kin: list[_Kin] = []
        self.children: dict[str, _Branch] = {}


class WordIndex:
    """Index of questions by their words, for one signature."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._kin: dict[tuple[str, ...], _Kin] = {}
        self._root = _Branch()
        self._with_word: dict[str, dict[int, list[_Kin]]] = {}
        """Word -> number of different words -> the questions with that word and that many words."""
        self._frequency: Counter[str] = Counter()

    def add(self, number: int, reading: Reading, answers: Iterable[str]) -> None:
        """Add a question."""
        key = tuple(sorted(reading.kinds))
        kin = self._kin.get(key)
        if kin is None:
            kin = self._kin[key] = self._new_kin(reading)
        order = hash(tuple(reading.order(reading.kinds)))
        for answer in answers:
            kin.members.setdefault(answer, {}).setdefault(order, []).append(number)

    def _new_kin(self, reading: Reading) -> _Kin:
        kin = _Kin(tuple(sorted(reading.kinds, key=lambda word: (self._frequency[word], word))))
        for word in kin.words:
            self._with_word.setdefault(word, {}).setdefault(len(kin.words), []).append(kin)
        self._frequency.update(kin.words)
        for word, _ in reading.words:
            if may_be_misspelled(word):
                self._spellings.add(word)
        self._place(kin)
        return kin

    def _place(self, kin: _Kin) -> None:
        branch, depth = self._root, 0
        while branch.children and depth < len(kin.words):
            branch = branch.children.setdefault(kin.words[depth], _Branch())
            depth += 1
        branch.kin.append(kin)
        if not branch.children and len(branch.kin) > _LEAF:
            here, branch.kin = branch.kin, []
            for one in here:
                place = branch.children.setdefault(one.words[depth], _Branch()) if depth < len(one.words) else branch
                place.kin.append(one)

    def candidates(self, reading: Reading, answers: frozenset[str]) -> set[int]:
        """Return the numbers of the questions that may ask the same and share an answer."""
        found: set[int] = set()
        for kin in self._within(self._allowed(reading)):
            is_part = reading.kinds.issuperset(kin.words)
            order = hash(tuple(reading.order(set(kin.words)))) if is_part else None
            found.update(_members(kin, answers, order))
        for kin in self._around(reading.kinds):
            found.update(_members(kin, answers, None))
        return found

    def _allowed(self, reading: Reading) -> set[str]:
        """Return the question's words and the known words that may be misspellings of them."""
        allowed = set(reading.kinds)
        for word, _ in reading.words:
            if may_be_misspelled(word):
                allowed.update(other.casefold() for other in self._spellings.near(word))
        return allowed

    def _within(self, allowed: set[str]) -> Iterator[_Kin]:
        """Yield the questions that have only allowed words."""
        branches = [self._root]
        while branches:
            branch = branches.pop()
            yield from (kin for kin in branch.kin if allowed.issuperset(kin.words))
            children = branch.children
            branches += [children[word] for word in children.keys() & allowed]

    def _around(self, kinds: frozenset[str]) -> Iterator[_Kin]:
        """Yield the questions that have all these words and more."""
        if not kinds:
            yield from (kin for kin in self._kin.values() if kin.words)
            return
        larger = []
        for word in kinds:
            sizes = self._with_word.get(word, {})
            larger.append([having for size, having in sizes.items() if size > len(kinds)])
        rarest = min(larger, key=lambda lists: sum(map(len, lists)))
        yield from (kin for having in rarest for kin in having if kinds.issubset(kin.words))


def _members(kin: _Kin, answers: frozenset[str], order: int | None) -> Iterator[int]:
    """Yield the numbers of the questions with one of the answers, and with their words in this order if it is given."""
    for answer in answers & kin.members.keys():
        orders = kin.members[answer]
        if order is None:
            for numbers in orders.values():
                yield from numbers
        else:
            yield from orders.get(order, ())
