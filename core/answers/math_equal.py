r"""Equality of mathematical answers, in layers from cheap to dear.

Text, then exact numbers, then tuples, sets and intervals element by element, then, where a checker is given, a
computer algebra system in a confined process. No layer evaluates an expression in this process, and every layer is
linear in the answer or bounded, because answers are written by models.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from treadle.core.answers.math_number import numbers_equal, parse_number
from treadle.core.answers.math_text import clean, textual_form

MAX_ANSWER_CHARS = 2_000
"""Longer answers are compared character by character."""

MAX_SYMBOLIC_CHARS = 400
MAX_SYMBOLIC_CHECKS = 16
"""Per pair of answers: a list of many elements may ask for no more."""

MAX_ELEMENTS = 64
MAX_DEPTH = 4

_OPENING = re.compile(r"\\lbrace(?![a-z])|[(\[{]")
_BRACKET = re.compile(r"\\[lr]brace(?![a-z])|\\cup(?![a-z])|[()\[\]{},]")
_WORDS = re.compile(r"[^\W\d_]{4,}(?:[\s'-]+[^\W\d_]+)*|[^\W\d_]+(?:[\s'-]+[^\W\d_]+)+")
_EQUATION = re.compile(r"(?<![<>!:=\\])=(?!=)")


@dataclass(frozen=True, slots=True)
class SymbolicVerdict:
    """What the symbolic layer found; `limit` says which limit made it give up, in which case `equal` is False."""

    equal: bool
    limit: str | None = None


class Checker(Protocol):
    """The symbolic layer, see `core.answers.symbolic`."""

    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        """Compare two expressions; raises EngineError if the verdict cannot be had."""
        ...


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """Whether two answers are equal, and the rule that decided."""

    equal: bool
    rule: str
    """math_text, math_numeric, math_structure, math_symbolic, math_symbolic_limit, or math_rules: unequal for all
    layers but the symbolic one, which was not there or does not apply."""


def math_equal(prediction: str, gold: str, checker: Checker | None = None) -> MathVerdict:
    """Compare two answers; raises EngineError only if the symbolic layer broke down."""
    if prediction.strip() == gold.strip():
        return MathVerdict(True, "math_text")
    if max(len(prediction), len(gold)) > MAX_ANSWER_CHARS:
        return MathVerdict(False, "math_text")
    return _Comparison(checker).compare(clean(prediction), clean(gold), 0)


def textually_equal(prediction: str, gold: str) -> bool:
    """The textual layer alone, as the MATH data set's customary rule has it; for comparison with older results."""
    return textual_form(prediction, original=True) == textual_form(gold, original=True)


class _Comparison:
    """One pair of answers; counts the symbolic checks spent on its elements."""

    def __init__(self, checker: Checker | None) -> None:
        self.checker = checker
        self.num_checks = 0

    def compare(self, left: str, right: str, depth: int) -> MathVerdict:
        if left == right and left:
            return MathVerdict(True, "math_text")
        numbers = parse_number(left), parse_number(right)
        if numbers[0] and numbers[1]:
            return MathVerdict(numbers_equal(numbers[0], numbers[1]), "math_numeric")
        forms = textual_form(left), textual_form(right)
        if forms[0] == forms[1] and forms[0]:
            return MathVerdict(True, "math_text")
        numbers = parse_number(forms[0]), parse_number(forms[1])
        if numbers[0] and numbers[1]:
            return MathVerdict(numbers_equal(numbers[0], numbers[1]), "math_numeric")
        groups = split_group(left), split_group(right)
        if (groups[0] or groups[1]) and depth < MAX_DEPTH:
            if groups[0] and groups[1]:
                return self._compare_groups(groups[0], groups[1], depth)
            if numbers[0] or numbers[1]:
                return MathVerdict(False, "math_structure")
        return self._compare_symbolically(left, right)

    def _compare_groups(self, left: Group, right: Group, depth: int) -> MathVerdict:
        if left.kind != right.kind or len(left.elements) != len(right.elements):
            return MathVerdict(False, "math_structure")
        if len(left.elements) == 1 and left.kind == "()":
            return self.compare(left.elements[0], right.elements[0], depth + 1)
        remaining = list(right.elements)
        limit = False
        for element in left.elements:
            for index, candidate in enumerate(remaining if left.unordered else remaining[:1]):
                verdict = self.compare(element, candidate, depth + 1)
                limit = limit or verdict.rule == "math_symbolic_limit"
                if verdict.equal:
                    del remaining[index]
                    break
            else:
                return MathVerdict(False, "math_symbolic_limit" if limit else "math_structure")
        return MathVerdict(True, "math_structure")

    def _compare_symbolically(self, left: str, right: str) -> MathVerdict:
        if self.checker is None or not _is_symbolic(left, right):
            return MathVerdict(False, "math_rules")
        self.num_checks += 1
        if self.num_checks > MAX_SYMBOLIC_CHECKS or max(len(left), len(right)) > MAX_SYMBOLIC_CHARS:
            return MathVerdict(False, "math_symbolic_limit")
        verdict = self.checker.check(_to_latex(left), _to_latex(right))
        return MathVerdict(verdict.equal, "math_symbolic_limit" if verdict.limit else "math_symbolic")


def _is_symbolic(left: str, right: str) -> bool:
    """Whether algebra has a say: words are no products of letters, and an equation is not its right side."""
    if not left or not right or r"\text" in left or r"\text" in right:
        return False
    if _WORDS.fullmatch(left) or _WORDS.fullmatch(right):
        return False
    return bool(_EQUATION.search(left)) == bool(_EQUATION.search(right))


def _to_latex(text: str) -> str:
    return text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")


@dataclass(frozen=True, slots=True)
class Group:
    """Elements with their brackets: `()`, `[]`, `(]`, `[)`, `{}`, `list` (no brackets) or `union`."""

    kind: str
    elements: tuple[str, ...]

    @property
    def unordered(self) -> bool:
        """Whether the order of the elements says nothing."""
        return self.kind in ("{}", "union")


def split_group(text: str) -> Group | None:
    r"""Split a cleaned answer into elements; None if it is a single value.

    A list without brackets is a set, so that `1,-2` equals `\{-2,1\}`. More than MAX_ELEMENTS are not split.
    """
    kind = "{}"
    body = text
    marks = list(_BRACKET.finditer(text))
    if _is_enclosed(text, marks):
        first, last = marks[0], marks[-1]
        kind = ("{" if "brace" in first[0] else first[0]) + ("}" if "brace" in last[0] else last[0])
        body = text[first.end() : last.start()]
        marks = [mark for mark in marks[1:-1]]
        offset = first.end()
    else:
        offset = 0
    separators = _top_level(marks)
    cuts = [mark for mark in separators if "cup" in mark[0]]
    if cuts and not offset:
        kind = "union"
    else:
        cuts = [mark for mark in separators if mark[0] == ","]
        if not cuts and (not offset or kind not in ("()", "{}")):
            return None
    if len(cuts) >= MAX_ELEMENTS:
        return None
    starts = [0, *(mark.end() - offset for mark in cuts)]
    ends = [*(mark.start() - offset for mark in cuts), len(body)]
    return Group(kind, tuple(body[start:end].strip() for start, end in zip(starts, ends, strict=True)))


def _is_enclosed(text: str, marks: list[re.Match[str]]) -> bool:
    """Whether the first bracket opens at the start and closes at the very end of the text."""
    if len(marks) < 2 or marks[0].start() != 0 or marks[-1].end() != len(text):
        return False
    if marks[0][0] not in ("(", "[", r"\lbrace") or marks[-1][0] not in (")", "]", r"\rbrace"):
        return False
    if (marks[0][0] == r"\lbrace") != (marks[-1][0] == r"\rbrace"):
        return False
    depth = 0
    for mark in marks:
        depth += _step(mark[0])
        if depth == 0:
            return mark is marks[-1]
    return False


def _top_level(marks: list[re.Match[str]]) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    depth = 0
    for mark in marks:
        depth += _step(mark[0])
        if depth == 0 and (mark[0] == "," or "cup" in mark[0]):
            found.append(mark)
    return found


def _step(bracket: str) -> int:
    if bracket in ("(", "[", "{", r"\lbrace"):
        return 1
    return -1 if bracket in (")", "]", "}", r"\rbrace") else 0
