r"""Compare mathematical answers, in layers from cheap to expensive.

The layers are text, exact numbers and units, the elements of tuples, sets and intervals one by one, and, if a checker
is given, computer algebra in a confined process. No layer evaluates an expression in this process, and every layer is
linear in the answer or bounded, because answers are written by models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from treadle.core.answers.math_number import numbers_equal, parse_digits, parse_number
from treadle.core.answers.math_structure import (
    ElementGroup,
    has_equation,
    has_relation,
    split_group,
    split_interval,
    split_label,
)
from treadle.core.answers.math_text import clean, fold_case, plain_form
from treadle.core.answers.math_units import (
    DEGREE,
    PERCENT,
    Quantity,
    counts_only,
    in_base_units,
    split_unit,
    units_match,
    with_number_words,
)

MAX_ANSWER_CHARS = 2_000
"""Length above which answers are compared character by character."""

MAX_SYMBOLIC_CHARS = 400
MAX_SYMBOLIC_CHECKS = 16
"""Most symbolic checks per pair of answers, however many elements they have."""

MAX_LIMITS_REACHED = 2
"""Symbolic checks of a pair of answers that may run into a limit; after that, no further element is checked."""

MAX_DEPTH = 6

LIMIT_RULE = "math_symbolic_limit"
UNPARSABLE_RULE = "math_symbolic_unparsable"
ERROR_RULE = "math_symbolic_error"
UNDECIDED_RULES = (LIMIT_RULE, UNPARSABLE_RULE, ERROR_RULE)
"""Rules of answers that count as unequal because the algebra could not compare them."""

_WORDS = re.compile(r"[^\W\d_]{4,}(?:[\s'-]+[^\W\d_]+)*|[^\W\d_]+(?:[\s'-]+[^\W\d_]+)+")
_SHORT_WORD = re.compile(r"[A-Z]{2,3}|no|on|yes|up|go|so|to|of")
_IN_TEXT = re.compile(r"\s*\$?\s*\\(?:text|textbf|textit|textrm|mbox|mathrm)\s?\{")
_LETTER = re.compile(r"[A-Za-z]")
_NAME = re.compile(
    r"\\(?P<shape>angle|triangle)\s?(?P<points>[A-Z]{1,3})(?![A-Za-z])|\\[A-Za-z]+"
    r"|(?P<primed>[A-Za-z](?:_(?:\w|\{\w{1,8}\}))?\s?(?:'{1,4}|\^\s?(?:\\prime(?![A-Za-z])|\{\s?(?:\\prime\s?){1,4}\})))"
)
_FREE_LETTERS = "qwuvkjhgpzsQWUVKJHGPZSMNORTLF"
_LONG_WORD = re.compile(r"[^\W\d_]{3,}")
_APART = re.compile(r"(?<![\d_^.])\d[\d.]*\s+\d")
_TRIGONOMETRY = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_CIRCLE = re.compile(r"(\d+(?:\.\d+)?)\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ)|(\^\s?(?:\{\s?\\circ\s?\}|\\circ))")
_SET = re.compile(r"\\(?:mathbb|setminus|cap|ne)(?![a-z])")
_UPRIGHT = re.compile(r"\\(?:mathrm|text)\s?\{\s?([eid])\s?\}")


@dataclass(frozen=True, slots=True)
class SymbolicVerdict:
    """Result of the symbolic layer. If it could not decide, `equal` is False and `cause` is set.

    Causes: `time`, `memory`, `depth`, `crash` (a limit was reached), `unread` (the parser does not understand an
    answer), `error: …` (the algebra failed with this kind of exception).
    """

    equal: bool
    cause: str | None = None

    @property
    def rule(self) -> str:
        """Rule under which the verdict is reported."""
        if self.cause is None:
            return "math_symbolic"
        if self.cause == "unread":
            return UNPARSABLE_RULE
        return ERROR_RULE if self.cause.startswith("error") else LIMIT_RULE


class Checker(Protocol):
    """Symbolic layer, see `core.answers.symbolic`."""

    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        """Compare two expressions; raise EngineError if no verdict can be given."""
        ...


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """Verdict on two answers, and the rule that decided."""

    equal: bool
    rule: str
    """math_text, math_numeric, math_structure, math_symbolic, one of UNDECIDED_RULES, or math_rules: unequal by all
    layers but the symbolic one, which is missing or does not apply."""


def math_equal(prediction: str, gold: str, checker: Checker | None = None) -> MathVerdict:
    """Compare two answers; raise EngineError only if the symbolic layer fails."""
    if prediction.strip() == gold.strip():
        return MathVerdict(True, "math_text")
    if max(len(prediction), len(gold)) > MAX_ANSWER_CHARS:
        return MathVerdict(False, "math_text")
    numbers = parse_number(prediction.strip()), parse_number(gold.strip())
    if numbers[0] and numbers[1]:
        return MathVerdict(numbers_equal(numbers[0], numbers[1]), "math_numeric")
    left, right = fold_case(with_number_words(clean(prediction)), with_number_words(clean(gold)))
    if not left or not right:
        return MathVerdict(False, "math_text")
    if left.isalpha() and right.isalpha() and any(_IN_TEXT.match(answer) for answer in (prediction, gold)):
        checker = None  # Words in `\text` are no products of letters.
    return _Comparison(checker).compare(left, right, 0)


class _Comparison:
    """Comparison of one pair of answers; counts the symbolic checks spent on its elements."""

    def __init__(self, checker: Checker | None) -> None:
        self.checker = checker
        self.num_checks = self.num_limits_reached = 0

    def compare(self, left: str, right: str, depth: int) -> MathVerdict:
        """Compare two cleaned answers or parts of them."""
        verdict = self._compare_plainly(left, right)
        if verdict is not None or depth > MAX_DEPTH:
            return verdict or MathVerdict(False, "math_structure")
        quantities = split_unit(left), split_unit(right)
        if quantities[0].unit or quantities[1].unit:
            return self._compare_quantities(*quantities, depth)
        labels = split_label(left), split_label(right)
        if labels[0][0] or labels[1][0]:
            return self._compare_labelled(*labels, left, right, depth)
        intervals = split_interval(left), split_interval(right)
        if intervals[0] and intervals[1] and intervals[0][0] != intervals[1][0]:
            return MathVerdict(False, "math_structure")
        is_union = r"\cup" in left or r"\cup" in right
        if (
            intervals != (None, None)
            and None in intervals
            and not is_union
            and has_relation(left)
            and has_relation(right)
        ):
            return self._compare_symbolically(left, right)
        one = intervals[0][1] if intervals[0] else split_group(left)
        other = intervals[1][1] if intervals[1] else split_group(right)
        for group, text in ((one, left), (other, right)):
            if group and group.kind == "()" and len(group.elements) == 1:
                inner = group.elements[0]
                return self.compare(inner if text is left else left, inner if text is right else right, depth + 1)
        if one and other:
            return self._compare_groups(one, other, depth)
        for group, text in ((one, right), (other, left)):
            if group and len(group.labels) == 1 and has_equation(text):
                return self._compare_roots(group, text)
        if (one or other) and not (_SET.search(left) or _SET.search(right)):
            return MathVerdict(False, "math_structure")
        return self._compare_symbolically(left, right)

    def _compare_plainly(self, left: str, right: str) -> MathVerdict | None:
        """Compare by text and number; return None if these do not decide."""
        if left == right:
            return MathVerdict(True, "math_text")
        forms = plain_form(left), plain_form(right)
        if forms[0] == forms[1]:
            return MathVerdict(True, "math_text")
        if not forms[0] or not forms[1]:
            return MathVerdict(False, "math_text")
        for pair in ((left, right), forms):
            numbers = parse_number(pair[0]), parse_number(pair[1])
            if numbers[0] and numbers[1]:
                return MathVerdict(numbers_equal(numbers[0], numbers[1]), "math_numeric")
        return _compare_digits(*forms)

    def _compare_quantities(self, left: Quantity, right: Quantity, depth: int) -> MathVerdict:
        """Compare quantities, converting units of one dimension. If one has no unit, only the values count."""
        if left.unit and right.unit:
            if not units_match(left.unit, right.unit):
                return MathVerdict(False, "math_structure")
            if left.unit.factor != right.unit.factor:
                numbers = in_base_units(left), in_base_units(right)
                if numbers[0] is None or numbers[1] is None:
                    return MathVerdict(False, "math_structure")
                return MathVerdict(numbers_equal(numbers[0], numbers[1]), "math_numeric")
            return self.compare(left.value, right.value, depth + 1)
        counted, plain = (left, right.value) if left.unit else (right, left.value)
        if counted.unit is not None and not counts_only(counted.unit):
            return MathVerdict(False, "math_structure")
        forms = [counted.value]
        if counted.unit == PERCENT:
            forms.append(_hundredth(counted.value))
        if counted.unit == DEGREE:
            forms.append(rf"\frac{{{counted.value}\pi}}{{180}}")
        verdict = MathVerdict(False, "math_numeric")
        for form in forms:
            pair = (form, plain) if left.unit else (plain, form)
            verdict = self.compare(*pair, depth + 1)
            if verdict.equal:
                break
        return verdict

    def _compare_labelled(
        self, one: tuple[str, str], other: tuple[str, str], left: str, right: str, depth: int
    ) -> MathVerdict:
        """Compare answers with labels: `x = 5` equals `5`, not `y = 5`; equations of several unknowns need algebra."""
        if one[0] and other[0] and one[0] != other[0]:
            if any(letter.isalpha() for letter in one[1] + other[1]):
                return self._compare_symbolically(left, right)
            return MathVerdict(False, "math_structure")
        unlabelled = right if one[0] else left
        if not (one[0] and other[0]):
            label, value = one if one[0] else other
            if _LETTER.fullmatch(label) and _LETTER.fullmatch(value):
                return MathVerdict(False, "math_structure")  # `x = y` says more than `y`
            roots = split_group(f"{label}={value}")
            if has_equation(unlabelled) and roots and roots.labels == (label,):
                return self._compare_roots(roots, unlabelled)
        if not (one[0] and other[0]) and has_equation(unlabelled) and split_group(unlabelled) is None:
            return self._compare_symbolically(left, right)
        return self.compare(one[1], other[1], depth + 1)

    def _compare_roots(self, roots: ElementGroup, equation: str) -> MathVerdict:
        """Compare the values of an unknown with an equation, `x = 2, -2` with `x^2 = 4`, by the equation they solve."""
        (letter,) = roots.labels
        return self._compare_symbolically("".join(f"({letter}-({root}))" for root in roots.elements) + "=0", equation)

    def _compare_groups(self, left: ElementGroup, right: ElementGroup, depth: int) -> MathVerdict:
        if "named" in (left.kind, right.kind):
            return self._compare_named(left, right, depth)
        kinds = {left.kind, right.kind}
        if left.labels and right.labels and left.labels != right.labels:
            return MathVerdict(False, "math_structure")
        if len(left.elements) != len(right.elements):
            return MathVerdict(False, "math_structure")
        if len(kinds) == 1:
            return self._compare_elements(left.elements, right.elements, depth, unordered=left.unordered)
        if kinds == {"list", "{}"}:
            return self._compare_elements(left.elements, right.elements, depth, unordered=True)
        if kinds == {"list", "()"}:
            return self._compare_elements(left.elements, right.elements, depth, unordered=False)
        return MathVerdict(False, "math_structure")

    def _compare_named(self, left: ElementGroup, right: ElementGroup, depth: int) -> MathVerdict:
        """Compare named values: `x = 1, y = 2` equals `y = 2, x = 1` and `(1, 2)`; `x_1 = 1, x_2 = 2` also `2, 1`."""
        if left.kind == right.kind:
            if set(left.labels) != set(right.labels):
                return MathVerdict(False, "math_structure")
            values = dict(zip(right.labels, right.elements, strict=True))
            return self._compare_elements(
                left.elements, [values[label] for label in left.labels], depth, unordered=False
            )
        named, other = (left, right) if left.kind == "named" else (right, left)
        if other.kind not in ("()", "list", "{}") or len(left.elements) != len(right.elements):
            return MathVerdict(False, "math_structure")
        are_roots = bool(named.unknown) and other.unordered and other.unknown in ("", named.unknown)
        if not are_roots and (other.labels or other.kind == "{}"):
            return MathVerdict(False, "math_structure")
        one, two = (group.in_label_order() if group is named else group.elements for group in (left, right))
        return self._compare_elements(one, two, depth, unordered=are_roots)

    def _compare_elements(
        self, left: Sequence[str], right: Sequence[str], depth: int, *, unordered: bool
    ) -> MathVerdict:
        remaining = list(right)
        undecided = None
        for element in left:
            for index, candidate in enumerate(remaining if unordered else remaining[:1]):
                verdict = self.compare(element, candidate, depth + 1)
                if verdict.rule in UNDECIDED_RULES:
                    undecided = undecided or verdict.rule
                if verdict.equal:
                    del remaining[index]
                    break
            else:
                return MathVerdict(False, undecided or "math_structure")
        return MathVerdict(True, "math_structure")

    def _compare_symbolically(self, left: str, right: str) -> MathVerdict:
        if self.checker is None or not _is_symbolic(left, right):
            return MathVerdict(False, "math_rules")
        self.num_checks += 1
        if self.num_checks > MAX_SYMBOLIC_CHECKS or self.num_limits_reached == MAX_LIMITS_REACHED:
            return MathVerdict(False, LIMIT_RULE)
        if max(len(left), len(right)) > MAX_SYMBOLIC_CHARS:
            return MathVerdict(False, LIMIT_RULE)
        sides = _with_letters_for_names(left, right)
        if sides is None:
            return MathVerdict(False, LIMIT_RULE)
        verdict = self.checker.check(_to_latex(sides[0]), _to_latex(sides[1]))
        self.num_limits_reached += verdict.rule == LIMIT_RULE
        return MathVerdict(verdict.equal, verdict.rule)


def _compare_digits(left: str, right: str) -> MathVerdict | None:
    """Compare numbers of which at least one names its base; a number without a base must have the same digits."""
    digits = parse_digits(left), parse_digits(right)
    if digits[0] and digits[1]:
        if digits[0].base == digits[1].base:
            return MathVerdict(digits[0].text.lstrip("0") == digits[1].text.lstrip("0"), "math_numeric")
        return MathVerdict(digits[0].value is not None and digits[0].value == digits[1].value, "math_numeric")
    for found, other in ((digits[0], right), (digits[1], left)):
        if found and other.isalnum():
            return MathVerdict(found.text == other.lower(), "math_numeric")
    return None


def _hundredth(value: str) -> str:
    number = parse_number(value)
    if number is None:
        return rf"\frac{{{value}}}{{100}}"
    hundredth: Fraction = number.value / 100
    return f"{hundredth.numerator}/{hundredth.denominator}"


def _is_symbolic(left: str, right: str) -> bool:
    """Return whether algebra applies to two answers: not if one is a word, nor if only one is an equation.

    Letters that may be a product of variables are not a word.
    """
    for side in (left, right):
        if not side or r"\text" in side or _APART.search(side):
            return False
        match = _WORDS.fullmatch(side)
        if match and _LONG_WORD.search(side):
            return False
    if left.isalpha() and right.isalpha() and (_SHORT_WORD.fullmatch(left) or _SHORT_WORD.fullmatch(right)):
        return False
    return has_equation(left) == has_equation(right)


def _with_letters_for_names(left: str, right: str) -> tuple[str, str] | None:
    r"""Replace names that the parser would split or cut (`f'`, `\angle ABC`) by letters that occur on neither side.

    Return None if there are more names than letters.
    """
    free = iter([letter for letter in _FREE_LETTERS if letter not in left and letter not in right])
    letters: dict[str, str | None] = {}

    def letter(match: re.Match[str]) -> str:
        if not (match["primed"] or match["points"]):
            return match[0]
        name = re.sub(r"[\s{}^]", "", match[0]).replace(r"\prime", "'")
        if match["points"]:
            points = match["points"]
            name = match["shape"] + (
                "".join(sorted(points)) if match["shape"] == "triangle" else min(points, points[::-1])
            )
        if name not in letters:
            letters[name] = next(free, None)
        return f" {letters[name] or ''} "

    sides = _NAME.sub(letter, left), _NAME.sub(letter, right)
    return None if None in letters.values() else sides


def _to_latex(text: str) -> str:
    r"""Convert to the parser's LaTeX: braces of sets as `\{`, degrees within trigonometric functions as radians."""
    text = _UPRIGHT.sub(r"\1", text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}"))
    radians = _TRIGONOMETRY.search(text) is not None
    return _CIRCLE.sub(
        lambda match: rf"(\frac{{{match[1]}\pi}}{{180}})" if radians and match[1] else match[1] or "", text
    )
