"""Evaluate expressions of rational numbers exactly, within a bound. Only the symbolic worker's process imports this."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce

import sympy

MAX_BITS = 2**18
"""Most bits of a numerator or denominator: almost 80,000 digits."""

MAX_FACTORIAL = 20_000


class TooLarge(Exception):
    """A value that has more than the allowed number of bits."""


def exact_value(
    expression: sympy.Basic, at: Mapping[sympy.Symbol, sympy.Rational], max_bits: int = MAX_BITS
) -> Fraction | None:
    """Return the value at a point; None if it is no rational number by arithmetic alone; raise TooLarge.

    A decimal counts as the number that is written.
    """
    if isinstance(expression, sympy.Rational):
        return Fraction(int(expression.p), int(expression.q))
    if isinstance(expression, sympy.Float):
        return Fraction(str(expression)) if expression.is_finite else None
    if isinstance(expression, sympy.Symbol):
        return exact_value(at[expression], {}) if expression in at else None
    operation = next((found for kind, found in _OPERATIONS.items() if isinstance(expression, kind)), None)
    if operation is None:
        return None
    values = []
    for argument in expression.args:
        value = exact_value(argument, at, max_bits)
        if value is None:
            return None
        values.append(value)
    return operation(values, max_bits)


def _sum(values: list[Fraction], max_bits: int) -> Fraction:
    return reduce(lambda one, other: _bounded(one + other, max_bits), values)


def _product(values: list[Fraction], max_bits: int) -> Fraction:
    return reduce(lambda one, other: _bounded(one * other, max_bits), values)


def _power(values: list[Fraction], max_bits: int) -> Fraction | None:
    base, exponent = values
    if exponent.denominator != 1 or (base == 0 and exponent < 0):
        return None
    if base in (0, 1, -1):
        return base ** (exponent.numerator if exponent < 2 else 2 + exponent.numerator % 2)
    if _num_bits(base) * abs(exponent.numerator) > max_bits + _num_bits(base):
        raise TooLarge
    return base**exponent.numerator


def _factorial(values: list[Fraction], max_bits: int) -> Fraction | None:
    number = values[0]
    if number.denominator != 1 or number < 0:
        return None
    if number > MAX_FACTORIAL:
        raise TooLarge
    return _bounded(Fraction(math.factorial(number.numerator)), max_bits)


def _binomial(values: list[Fraction], max_bits: int) -> Fraction | None:
    total, chosen = values
    if total.denominator != 1 or chosen.denominator != 1 or total < 0 or chosen < 0:
        return None
    if total > MAX_FACTORIAL:
        raise TooLarge
    return _bounded(Fraction(math.comb(total.numerator, chosen.numerator)), max_bits)


_OPERATIONS: dict[type[sympy.Basic], Callable[[list[Fraction], int], Fraction | None]] = {
    sympy.Add: _sum,
    sympy.Mul: _product,
    sympy.Pow: _power,
    sympy.factorial: _factorial,
    sympy.binomial: _binomial,
    sympy.Abs: lambda values, _: abs(values[0]),
    sympy.floor: lambda values, _: Fraction(math.floor(values[0])),
    sympy.ceiling: lambda values, _: Fraction(math.ceil(values[0])),
}


def _bounded(value: Fraction, max_bits: int) -> Fraction:
    if _num_bits(value) > max_bits:
        raise TooLarge
    return value


def _num_bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
