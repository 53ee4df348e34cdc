"""Compare numbers that are too large to write down, by their remainders. Only the symbolic worker's process imports it.

Numbers that differ modulo a prime are different. Different numbers agree modulo three primes of 60 bits by chance
alone, which is neglected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce

import sympy

from treadle.core.answers.exact import TooLarge, exact_value

PRIMES = (1_162_921_504_606_859_357, 1_172_921_504_606_859_361, 1_182_921_504_606_859_387)

MAX_FACTORIAL = 1_000_000
"""Largest factorial whose remainder is computed; it takes about 0.1 s."""

MAX_CHOSEN = 10_000
"""Largest number of chosen items for which a binomial coefficient is computed as a product of that many factors. With
more, it is computed from factorials, up to `MAX_FACTORIAL`."""

_MAX_BITS = 2**12
"""Maximum number of bits of an exponent that is computed exactly. An exponent with more bits exceeds 64, on which
`_raised` relies."""

_CHUNK = 64

Point = Mapping[sympy.Symbol, sympy.Expr]


class _Unknown(Exception):
    """A value whose remainder is unknown: it is not computed by rational arithmetic alone, or divides by zero."""


def same_remainders(left: sympy.Basic, right: sympy.Basic, at: Point) -> bool | None:
    """Return whether two values agree modulo all primes; None if one of them has no known remainder."""
    try:
        return all(_residue(left, prime, at) == _residue(right, prime, at) for prime in PRIMES)
    except (_Unknown, TooLarge):
        return None


def _residue(expression: sympy.Basic, modulus: int, at: Point) -> int:
    if isinstance(expression, sympy.Rational):
        return int(expression.p) * _power(int(expression.q), -1, modulus) % modulus
    if isinstance(expression, sympy.Symbol) and expression in at:
        return _residue(at[expression], modulus, {})
    operation = next((found for kind, found in _OPERATIONS.items() if isinstance(expression, kind)), None)
    if operation is None:
        raise _Unknown
    return operation(expression, modulus, at) % modulus


def _sum(expression: sympy.Basic, modulus: int, at: Point) -> int:
    return sum(_residue(part, modulus, at) for part in expression.args)


def _product(expression: sympy.Basic, modulus: int, at: Point) -> int:
    return reduce(lambda one, part: one * _residue(part, modulus, at) % modulus, expression.args, 1)


def _raised(expression: sympy.Basic, modulus: int, at: Point) -> int:
    """Return a power's remainder. For an exponent too large to compute, its remainder modulo Euler's phi is enough."""
    base, exponent = expression.args
    rest = _residue(base, modulus, at)
    try:
        return _power(rest, _integer(exponent, at), modulus)
    except TooLarge:
        period = _totient(modulus)
        if math.gcd(rest, modulus) == 1 and _is_integer(exponent):
            return pow(rest, _residue(exponent, period, at), modulus)
        if _is_large(exponent):
            # Powers repeat only from the largest power of a prime in the modulus on; the period exceeds it.
            return pow(rest, _residue(exponent, period, at) + period, modulus)
        raise


def _factorial(expression: sympy.Basic, modulus: int, at: Point) -> int:
    number = _integer(expression.args[0], at)
    if not 0 <= number <= MAX_FACTORIAL:
        raise _Unknown
    # One computation serves all primes.
    return _factorial_modulo(number, math.prod(PRIMES) if modulus in PRIMES else modulus)


def _binomial(expression: sympy.Basic, modulus: int, at: Point) -> int:
    total, chosen = (_integer(part, at) for part in expression.args)
    chosen = min(chosen, total - chosen) if 0 <= chosen <= total else chosen
    if total < 0 or chosen < 0 or modulus not in PRIMES:
        raise _Unknown
    if chosen > total:
        return 0
    if chosen <= MAX_CHOSEN:
        top = reduce(lambda one, factor: one * factor % modulus, range(total - chosen + 1, total + 1), 1)
        return top * _power(math.factorial(chosen), -1, modulus)
    if total > MAX_FACTORIAL:
        raise _Unknown
    every = math.prod(PRIMES)
    bottom = _factorial_modulo(chosen, every) * _factorial_modulo(total - chosen, every)
    return _factorial_modulo(total, every) * _power(bottom, -1, modulus)


_OPERATIONS: dict[type[sympy.Basic], Callable[[sympy.Basic, int, Point], int]] = {
    sympy.Add: _sum,
    sympy.Mul: _product,
    sympy.Pow: _raised,
    sympy.factorial: _factorial,
    sympy.binomial: _binomial,
}


def _power(base: int, exponent: int, modulus: int) -> int:
    try:
        return pow(base, exponent, modulus)
    except ValueError as error:
        raise _Unknown from error


def _integer(expression: sympy.Basic, at: Point) -> int:
    value = exact_value(expression, at, _MAX_BITS)
    if value is None or value.denominator != 1:
        raise _Unknown
    return value.numerator


def _is_integer(expression: sympy.Basic) -> bool:
    """Return whether a value is certainly an integer."""
    if isinstance(expression, sympy.Add | sympy.Mul):
        return all(_is_integer(part) for part in expression.args)
    return isinstance(expression, sympy.Integer) or _is_large(expression)


def _is_large(expression: sympy.Basic) -> bool:
    """Return whether a value is certainly a positive integer that is no smaller than any of its subexpressions."""
    if isinstance(expression, sympy.Integer):
        return bool(expression >= 2)
    if isinstance(expression, sympy.Add):
        return all(part == 1 or _is_large(part) for part in expression.args)
    if isinstance(expression, sympy.Mul | sympy.Pow | sympy.factorial):
        return all(_is_large(part) for part in expression.args)
    return False


@lru_cache(maxsize=256)
def _factorial_modulo(number: int, modulus: int) -> int:
    value = 1
    for start in range(1, number + 1, _CHUNK):
        value = value * math.prod(range(start, min(start + _CHUNK, number + 1))) % modulus
    return value


@lru_cache(maxsize=256)
def _totient(modulus: int) -> int:
    return int(sympy.totient(modulus))
