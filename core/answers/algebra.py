"""Compare two LaTeX expressions by computer algebra. Only the symbolic worker's process imports this module.

Expressions are parsed by latex2sympy2-extended. Two expressions are equal if they have the same value wherever both
are defined. Values are compared at random points: exactly if they are rational, else by their difference, which is
evaluated with growing precision until its first digits are certain. If there are too few points, sympy simplifies the
difference. Two equations are equal if the differences of their sides have a constant ratio; if the ratio varies or is
unknown, math-verify compares them. It also compares other objects, such as sets. A comparison that cannot be decided
raises an exception; it is never reported as unequal.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import symbols as latex_symbols
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify import grader
from sympy.core.evalf import PrecisionExhausted
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from treadle.core.answers.exact import MAX_BITS, TooLarge, exact_value
from treadle.core.answers.residues import same_remainders

DIGITS = 30
"""Digits to which the two sides are evaluated."""

MAX_DIGITS = 100
"""Maximum number of digits with which sympy computes a value, because digits may cancel."""

DEEP_DIGITS = 4_000
DEEP_POINT_DIGITS = 700
SHALLOW_DEEP_DIGITS = 300
MAX_DEEP_DIGITS = 20_000
"""Digits to which a difference is evaluated once before it counts as zero: `DEEP_DIGITS` without variables,
`DEEP_POINT_DIGITS` with variables, `SHALLOW_DEEP_DIGITS` with functions that are not elementary. The number of digits
of the values is added, up to `MAX_DEEP_DIGITS` in total."""

MAX_POINT_BITS = 2**16
"""Maximum number of bits of an exact value at a point; lower than `MAX_BITS`, because values are computed at many
points."""

EXACT_TOLERANCE = sympy.Float("1e-20", DIGITS)
NOISE = sympy.Float("1e-25", DIGITS)
"""Absolute value below which a number may be an exact zero that was computed from digits that cancel."""

DECIMAL_TOLERANCE = sympy.Float("1e-6", DIGITS)
"""Relative difference that is allowed if either side is written with a decimal point, as for plain numbers."""

_DECIMAL_RATIO = Fraction(1, 1_000_000)

MIN_POINTS = 4
MIN_INTEGER_POINTS = 12
MAX_POINTS = 24

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_CURRENT = re.compile(r"(?<![A-Za-z\\])I(?![A-Za-z_])")

Point = dict[sympy.Symbol, sympy.Expr]


class Unparsable(Exception):
    """Text that the parser does not understand."""


class Undecided(Exception):
    """Comparison that the algebra cannot decide. The message names the cause, and quotes nothing of the answers."""


def compare(prediction: str, gold: str) -> bool:
    """Return whether two LaTeX expressions are equal; raise Unparsable, Undecided, or what sympy raises."""
    _failures.clear()
    equal = _equal(_parse(prediction), _parse(gold), random.Random(f"{prediction}\0{gold}"))
    if not equal and _failures:
        raise Undecided(_failures[0])
    return equal


def _equal(left: Any, right: Any, chance: random.Random) -> bool:
    if left == right:
        return True
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _same_value(left, right, chance)
    if isinstance(left, Relational) and isinstance(right, Relational):
        return _same_relation(left, right, chance)
    if isinstance(left, sympy.Expr) or isinstance(right, sympy.Expr):
        return False
    return _check_parser(left, right)


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """Parse LaTeX. Results are cached, because a gold answer occurs once for each rollout."""
    latex = _CURRENT.sub(r"\\mathit{I}", text)
    try:
        found = latex2sympy(
            normalize_latex(latex, _NORMALIZATION),
            is_real=True,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=_CONVERSION,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the parser raises plain Exception
        raise Unparsable(type(error).__name__) from error
    if not isinstance(found, sympy.Basic | sympy.MatrixBase):
        raise Unparsable("no expression")
    return _with_imaginary_unit(found)


def _with_imaginary_unit(found: Any) -> Any:
    """Replace the letter i by the imaginary unit, unless it is the index of a sum or product."""
    letters = [symbol for symbol in found.free_symbols if symbol.name == "i"]
    if not letters:
        return found
    return found.xreplace({letter: sympy.I for letter in letters})


def prepare() -> None:
    r"""Adapt the libraries, and compare once, so that the parser's tables are loaded.

    `\gamma` becomes a letter instead of a constant. Exceptions that math-verify treats as "not equal" are recorded.
    """
    for name in ("gamma", "Gamma"):
        latex_symbols.sympy_singleton_map.pop(name, None)
    for name in ("simplify", "solve"):
        setattr(grader, name, _recording_failures(getattr(grader, name)))
    compare(r"\frac{x^2-1}{x-1}\sin 2x", r"2(x+1)\sin(x)\cos x")


# Values


def _same_value(left: sympy.Expr, right: sympy.Expr, chance: random.Random) -> bool:
    left, right = _without_calls(_done(left)), _without_calls(_done(right))
    if left == right:
        return True
    agreed = _Values(left, right).agree(chance)
    if agreed is not None:
        return agreed
    difference = sympy.simplify(left - right)
    if difference.is_zero is not None:
        return bool(difference.is_zero)
    raise Undecided("no values")


def _done(expression: sympy.Expr) -> sympy.Expr:
    """Evaluate integrals, sums and derivatives; leave those that sympy cannot evaluate to numerical evaluation."""
    expression = expression.replace(sympy.UnevaluatedExpr, lambda inner: inner)
    if not expression.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Derivative, sympy.Limit):
        return expression
    with contextlib.suppress(NotImplementedError, ValueError, TypeError, AttributeError):
        return expression.doit()
    return expression


def _without_calls(expression: sympy.Expr) -> sympy.Expr:
    """Replace calls of unknown functions such as `f(x+1)` by symbols, one for each function and arguments."""
    calls = expression.atoms(AppliedUndef)
    if not calls:
        return expression
    return expression.xreplace({call: sympy.Symbol(str(call.func(*map(sympy.expand, call.args)))) for call in calls})


class _Values:
    """Pair of expressions whose values are compared at points: exactly if they are rational, else to many digits."""

    def __init__(self, left: sympy.Expr, right: sympy.Expr) -> None:
        self.is_decimal = left.has(sympy.Float) or right.has(sympy.Float)
        self.sides = (_with_exact_decimals(left), _with_exact_decimals(right))
        self.names = sorted({symbol.name for side in self.sides for symbol in side.free_symbols})
        self.is_complex = any(side.has(sympy.I) for side in self.sides)
        # `\ln |x|` and `\ln x` differ in their domains alone.
        self.is_domain_compared = _has_log_of_abs(left) != _has_log_of_abs(right)

    @cached_property
    def difference(self) -> sympy.Expr:
        """Difference of both sides; for large numbers, sympy may take seconds to compute it."""
        return self.sides[0] - self.sides[1]

    @cached_property
    def deep_digits(self) -> int:
        """Digits to which the difference is evaluated once before it counts as zero."""
        if not _is_elementary(self.difference):
            return SHALLOW_DEEP_DIGITS
        return DEEP_POINT_DIGITS if self.names else DEEP_DIGITS

    def agree(self, chance: random.Random) -> bool | None:
        """Return whether both have the same values; None if both have a value at too few points."""
        if not self.names:
            return self.same_at({}, is_deep=True)
        if self.difference.has(sympy.floor, sympy.ceiling):
            # `\\lfloor x\\rfloor` and `\\lceil x\\rceil-1` differ at whole numbers alone.
            points = itertools.islice(_integer_points(self.names, chance), MIN_POINTS)
            if any(self.same_at(point, is_deep=False) is False for point in points):
                return False
        for candidates, num_needed in (
            (_real_points(self.names, chance), MIN_POINTS),
            (_integer_points(self.names, chance), MIN_INTEGER_POINTS),
        ):
            num_agreed = 0
            for point in candidates:
                same = self.same_at(point, is_deep=num_agreed == 0)
                if same is None:
                    continue
                if not same:
                    return False
                num_agreed += 1
                if num_agreed == num_needed:
                    return True
        return None

    def same_at(self, point: dict[str, sympy.Expr], *, is_deep: bool) -> bool | None:
        """Return whether both values are the same; None if one is undefined, such as the root of a negative number.

        `is_deep` tells values that agree in hundreds of digits apart, such as `2^{2009}` and `2^{2009}-1`.
        """
        at = self.assigned(point)
        is_too_large = False
        try:
            numbers = [exact_value(side, at, MAX_POINT_BITS if point else MAX_BITS) for side in self.sides]
        except TooLarge:
            is_too_large = True
            same = same_remainders(*self.sides, at)
            if same or (same is False and not self.is_decimal):
                return same
        else:
            if numbers[0] is not None and numbers[1] is not None:
                return self._same_number(numbers[0], numbers[1])
        if point and not self.is_complex:
            defined = [_is_in_domain(side, at) for side in self.sides]
            if not all(defined):
                return False if any(defined) and self.is_domain_compared else None
        values = self.values(at)
        if values is None:
            return None
        if values[0] in _INFINITE or values[1] in _INFINITE:
            return bool(values[0] == values[1])
        same = self._same_value(values, at, is_deep=is_deep)
        # Equal leading digits do not prove that numbers with more digits are equal.
        return None if same and is_too_large and not point and not self.is_decimal else same

    def assigned(self, point: dict[str, sympy.Expr]) -> Point:
        """Return a point's values by symbol; the sides may have symbols of one name with different assumptions."""
        return {symbol: point[symbol.name] for side in self.sides for symbol in side.free_symbols}

    def values(self, at: Point, digits: int = MAX_DIGITS) -> tuple[sympy.Expr, sympy.Expr] | None:
        """Return the values of both sides at a point; None if one of them is undefined or not real."""
        found = []
        for side in self.sides:
            value = _value(side, at, digits)
            if value is None or (at and not self.is_complex and not _is_real(value)):
                return None
            found.append(value)
        return found[0], found[1]

    def _same_number(self, left: Fraction, right: Fraction) -> bool:
        if left == right or not self.is_decimal:
            return left == right
        return abs(left - right) <= _DECIMAL_RATIO * max(abs(left), abs(right))

    def _same_value(self, values: tuple[sympy.Expr, sympy.Expr], at: Point, *, is_deep: bool) -> bool | None:
        if self.difference.has(*_SLOW):
            # Integrals and the like take too long to be evaluated to more digits.
            return None if _are_noise(values) else _is_close(*values, EXACT_TOLERANCE)
        if self.is_decimal and _is_close(*values, DECIMAL_TOLERANCE):
            return True
        if not is_deep and _is_close(*values, EXACT_TOLERANCE):
            return True
        if not _vanishes(self.difference, at, MAX_DIGITS):
            return False
        if not is_deep:
            return _are_noise(values)
        num_digits = self.deep_digits + max((abs(_magnitude(value)) for value in values), default=0)
        num_digits = min(num_digits, MAX_DEEP_DIGITS)
        if not _vanishes(self.difference, at, num_digits):
            return False
        deeper = self.values(at, num_digits)
        # A difference of zero counts only if both values exist: a hidden division by zero leaves noise.
        return deeper is not None and (_is_close(*deeper, EXACT_TOLERANCE) or _are_noise(deeper))


def _are_noise(values: tuple[sympy.Expr, sympy.Expr]) -> bool:
    return all(bool(abs(value) < NOISE) for value in values)


def _magnitude(value: sympy.Expr) -> int:
    """Return the decimal order of magnitude; 0 for 0."""
    _, mantissa, exponent, num_bits = sympy.Float(abs(value), 15)._mpf_
    return int((exponent + num_bits) * 0.30103) if mantissa else 0


def _is_close(left: sympy.Expr, right: sympy.Expr, tolerance: sympy.Float) -> bool:
    return bool(abs(left - right) <= tolerance * max(abs(left), abs(right)))


def _vanishes(difference: sympy.Expr, at: Point, digits: int) -> bool:
    """Return whether a difference is zero, as far as its evaluation to at most this many digits shows."""
    try:
        value = difference.evalf(15, subs=at or None, maxn=digits, strict=True)
    except PrecisionExhausted:
        return True
    return bool(value == 0)


def _with_exact_decimals(expression: sympy.Expr) -> sympy.Expr:
    """Replace decimals by the fractions that are written; a binary number would be another one."""
    return expression.xreplace({number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)})


def _has_log_of_abs(expression: sympy.Expr) -> bool:
    return any(log.has(sympy.Abs) for log in expression.atoms(sympy.log))


def _is_elementary(expression: sympy.Expr) -> bool:
    """Return whether thousands of digits are computed quickly: for sums, products, powers, elementary functions."""
    return all(
        isinstance(part, sympy.Add | sympy.Mul | sympy.Pow | sympy.Symbol | sympy.Number | sympy.NumberSymbol)
        or part is sympy.I
        or type(part).__module__.startswith("sympy.functions.elementary.")
        for part in sympy.preorder_traversal(expression)
    )


_SLOW = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Derivative, sympy.Limit)
_INFINITE = (sympy.oo, -sympy.oo)


def _value(expression: sympy.Expr, at: Point, max_digits: int = MAX_DIGITS) -> sympy.Expr | None:
    """Return the value at a point as a number of DIGITS digits or an infinity; None if it is neither."""
    if expression in _INFINITE:
        return expression
    value = expression.evalf(DIGITS, subs=at or None, maxn=max_digits)
    if value in _INFINITE:
        return value
    if not value.is_number or not value.is_finite or value.has(sympy.nan, sympy.zoo):
        return None
    real, imaginary = value.as_real_imag()
    return value if real.is_Number and imaginary.is_Number else None


def _is_real(value: sympy.Expr) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(abs(imaginary) <= EXACT_TOLERANCE * max(abs(real), 1))


def _is_in_domain(expression: sympy.Expr, at: Point) -> bool:
    """Return whether all roots and logarithms in an expression are defined at a point, over the reals."""
    for part in sympy.preorder_traversal(expression):
        if isinstance(part, sympy.Pow) and part.exp.is_integer is not True:
            base, exponent = _value(part.base, at), _value(part.exp, at)
            if base is None or exponent is None:
                return False
            if (
                not (base.is_real and base >= 0)
                and abs(exponent - sympy.floor(sympy.re(exponent) + 0.5)) > EXACT_TOLERANCE
            ):
                return False
        elif isinstance(part, sympy.log):
            argument = _value(part.args[0], at)
            if argument is None or not (argument.is_real and argument > 0):
                return False
    return True


def _real_points(names: list[str], chance: random.Random) -> Iterator[dict[str, sympy.Expr]]:
    """Yield points in turn positive, negative and of mixed signs, some within -1 and 1 for inverse functions."""
    for index in range(MAX_POINTS):
        size = 3 if index % 2 else 1
        signs = ((1,), (-1,), (-1, 1))[index % 3]
        yield {name: chance.choice(signs) * sympy.Rational(chance.randrange(1, size * 10**6), 10**6) for name in names}


def _integer_points(names: list[str], chance: random.Random) -> Iterator[dict[str, sympy.Expr]]:
    """Yield whole numbers, for expressions that are real only there, such as powers of -1 and sums up to n.

    The first variable gets the values 1, 2, 3 and so on, so that periodic expressions do not agree by chance.
    """
    for index in range(MAX_POINTS):
        yield {
            name: sympy.Integer(index + 1 if position == 0 else chance.randrange(1, 4 + index))
            for position, name in enumerate(names)
        }


# Relations


def _same_relation(left: Relational, right: Relational, chance: random.Random) -> bool:
    """Return whether two equations or inequalities are equivalent: their sides' differences have a fixed ratio."""
    mirrored = grader.INVERSE_RELATIONS.get(type(left))
    if type(left) is not type(right) and mirrored is not type(right):
        return False
    ratio = _fixed_ratio(left.lhs - left.rhs, right.lhs - right.rhs, chance)
    if ratio == 0:
        return False
    if ratio is not None:
        if isinstance(left, sympy.Eq | sympy.Ne):
            return True
        return ratio == (1 if type(left) is type(right) else -1)
    return isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq) and _check_parser(left, right)


def _fixed_ratio(left: sympy.Expr, right: sympy.Expr, chance: random.Random) -> int | None:
    """Return the sign of the ratio of two expressions if the ratio is constant; 0 if it is so only approximately.

    Returns None if the ratio is not constant or could not be determined; the equations may still have the same
    solutions.

    The ratio at one point is compared with that at others crosswise: `l(p) r(q) = l(q) r(p)`.
    """
    plain = _Values(_without_calls(_done(left)), _without_calls(_done(right)))
    if not plain.names:
        return None
    first = {name: sympy.Symbol(f"{name}'", real=True) for name in plain.names}
    one, other = plain.sides
    one_first, other_first = (
        side.xreplace({symbol: first[symbol.name] for symbol in side.free_symbols}) for side in (one, other)
    )
    crossed = _Values(one * other_first, other * one_first)
    crossed.is_decimal = plain.is_decimal
    start: dict[str, sympy.Expr] = {}
    sign = num_agreed = 0
    for point in _real_points(plain.names, chance):
        if not start:
            pair = plain.values(plain.assigned(point))
            if pair and 0 not in pair and pair[0].is_finite and pair[1].is_finite:
                start = {first[name].name: value for name, value in point.items()}
                sign = 1 if sympy.re(pair[0] / pair[1]) > 0 else -1
            continue
        same = crossed.same_at(point | start, is_deep=num_agreed == 0)
        if same is False:
            values_there = crossed.values(crossed.assigned(point | start))
            return 0 if values_there and _is_close(*values_there, DECIMAL_TOLERANCE) else None
        num_agreed += same is True
        if num_agreed == MIN_POINTS:
            return sign
    return None


# Comparison by math-verify


def _check_parser(left: Any, right: Any) -> bool:
    return bool(grader.verify(right, left, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True))


_failures: list[str] = []
"""Kinds of the exceptions that math-verify ignored during the current comparison."""


def _recording_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            _failures.append(type(error).__name__)
            raise

    return call
