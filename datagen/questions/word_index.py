"""Find the questions of a template that another question may repeat, without comparing it with all of them.

Questions of a template are similar, but a few words make each of them a different question. The index returns every
question that can pass `is_same_question`, and few others:

- Questions all of whose words are in the new question, or are misspelled in it: found in a tree of words, rarest first,
  by following only the branches with such words.
- Questions with all words of the new question and more: found by the rarest of its words, among questions with more
  words.

All questions in one index have the same signature (`QuestionFeatures.signature`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from treadle.datagen.questions.question_similarity import QuestionFeatures, may_be_misspelled
from treadle.datagen.questions.spellings import Spellings

_LEAF = 8
"""Maximum number of word sets at a node of the tree before it branches."""


class _WordSetGroup:
    """The questions with the same set of words."""

    __slots__ = ("members", "words")

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        """The words, rarest first at the time when the first of these questions was added."""
        self.members: dict[str, dict[int, list[int]]] = {}
        """Answer -> hash of the words in their order -> numbers of the questions."""


class _Branch:
    """A node of the tree: all questions below it have the words on the path to it."""

    __slots__ = ("children", "groups")

    def __init__(self) -> None:
        self.groups: list[_WordSetGroup] = []
        self.children: dict[str, _Branch] = {}


class WordIndex:
    """Index of questions by their words, for one signature."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._groups: dict[tuple[str, ...], _WordSetGroup] = {}
        self._root = _Branch()
        self._with_word: dict[str, dict[int, list[_WordSetGroup]]] = {}
        """Word -> number of different words -> the questions with that word and that many words."""
        self._frequency: Counter[str] = Counter()

    def add(self, number: int, features: QuestionFeatures, answers: Iterable[str]) -> None:
        """Add a question."""
        key = tuple(sorted(features.kinds))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._new_group(features)
        order = hash(tuple(features.order(features.kinds)))
        for answer in answers:
            group.members.setdefault(answer, {}).setdefault(order, []).append(number)

    def _new_group(self, features: QuestionFeatures) -> _WordSetGroup:
        group = _WordSetGroup(tuple(sorted(features.kinds, key=lambda word: (self._frequency[word], word))))
        for word in group.words:
            self._with_word.setdefault(word, {}).setdefault(len(group.words), []).append(group)
        self._frequency.update(group.words)
        for word, _ in features.words:
            if may_be_misspelled(word):
                self._spellings.add(word)
        self._place(group)
        return group

    def _place(self, group: _WordSetGroup) -> None:
        branch, depth = self._root, 0
        while branch.children and depth < len(group.words):
            branch = branch.children.setdefault(group.words[depth], _Branch())
            depth += 1
        branch.groups.append(group)
        if not branch.children and len(branch.groups) > _LEAF:
            here, branch.groups = branch.groups, []
            for one in here:
                place = branch.children.setdefault(one.words[depth], _Branch()) if depth < len(one.words) else branch
                place.groups.append(one)

    def candidates(self, features: QuestionFeatures, answers: frozenset[str]) -> set[int]:
        """Return the numbers of the questions that may ask the same and share an answer."""
        found: set[int] = set()
        for group in self._within(self._allowed(features)):
            is_part = features.kinds.issuperset(group.words)
            order = hash(tuple(features.order(set(group.words)))) if is_part else None
            found.update(_members(group, answers, order))
        for group in self._around(features.kinds):
            found.update(_members(group, answers, None))
        return found

    def _allowed(self, features: QuestionFeatures) -> set[str]:
        """Return the question's words and the known words that may be misspellings of them."""
        allowed = set(features.kinds)
        for word, _ in features.words:
            if may_be_misspelled(word):
                allowed.update(other.casefold() for other in self._spellings.near(word))
        return allowed

    def _within(self, allowed: set[str]) -> Iterator[_WordSetGroup]:
        """Yield the groups of questions that have only allowed words."""
        branches = [self._root]
        while branches:
            branch = branches.pop()
            yield from (group for group in branch.groups if allowed.issuperset(group.words))
            children = branch.children
            branches += [children[word] for word in children.keys() & allowed]

    def _around(self, kinds: frozenset[str]) -> Iterator[_WordSetGroup]:
        """Yield the groups of questions that have all these words and at least one more."""
        if not kinds:
            yield from (group for group in self._groups.values() if group.words)
            return
        larger = []
        for word in kinds:
            sizes = self._with_word.get(word, {})
            larger.append([having for size, having in sizes.items() if size > len(kinds)])
        rarest = min(larger, key=lambda lists: sum(map(len, lists)))
        yield from (group for having in rarest for group in having if kinds.issubset(group.words))


def _members(group: _WordSetGroup, answers: frozenset[str], order: int | None) -> Iterator[int]:
    """Yield the numbers of the questions with one of the answers, and with their words in this order if it is given."""
    for answer in answers & group.members.keys():
        orders = group.members[answer]
        if order is None:
            for numbers in orders.values():
                yield from numbers
        else:
            yield from orders.get(order, ())
