r"""Numbers as agents write them, read as exact rationals.

No expression is evaluated: only literals, fractions of literals, mixed numbers and powers of ten of bounded size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 400
"""Longer literals, and powers of ten beyond this, are not read as numbers: their textual form decides."""

RELATIVE_TOLERANCE = Fraction(1, 1_000_000)

_DIGITS = rf"\d{{1,{MAX_DIGITS}}}"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d{{0,{MAX_DIGITS}}})?|\.{_DIGITS})"
_LITERAL = re.compile(
    rf"(?P<mantissa>{_DECIMAL})"
    r"(?:e(?P<e>[+-]?\d{1,4})|\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^\s?(?:\{(?P<power>[+-]?\d{1,4})\}|(?P<digit>\d)))?"
)
_FRACTION = re.compile(
    rf"(?P<whole>{_DIGITS}\s?)?\\[dt]?frac\s?"
    rf"(?:\{{\s?(?P<top>[+-]?{_DECIMAL})\s?\}}|(?P<top1>\d))\s?(?:\{{\s?(?P<bottom>{_DECIMAL})\s?\}}|(?P<bottom1>\d))"
)
_SLASH = re.compile(rf"(?:(?P<whole>{_DIGITS})\s)?(?P<top>{_DECIMAL})\s?/\s?(?P<bottom>{_DECIMAL})")
_SIGN = re.compile(r"\s?([+-]?)\s?")


@dataclass(frozen=True, slots=True)
class Number:
    """A value; `approximate` if it was written with a decimal point or an exponent."""

    value: Fraction
    approximate: bool


def parse_number(text: str) -> Number | None:
    """Read a cleaned answer as a number; None if it is anything else."""
    sign = _SIGN.match(text)
    body = text[sign.end() :] if sign else text
    if sign and body.startswith("(") and body.endswith(")") and body.count("(") == 1:
        body = body[1:-1].strip()
    number = _parse_unsigned(body)
    if number is None or not sign or sign[1] != "-":
        return number
    return Number(-number.value, number.approximate)


def _parse_unsigned(text: str) -> Number | None:
    if match := _LITERAL.fullmatch(text):
        return _literal(match)
    match = _FRACTION.fullmatch(text) or _SLASH.fullmatch(text)
    if match is None:
        return None
    parts = match.groupdict()
    top = parts["top"] or parts["top1"]
    bottom = parts["bottom"] or parts["bottom1"]
    if Fraction(bottom) == 0 or (parts["whole"] and top.startswith("-")):
        return None
    value = Fraction(top) / Fraction(bottom) + Fraction((parts["whole"] or "0").strip())
    return Number(value, "." in top + bottom)


def _literal(match: re.Match[str]) -> Number | None:
    exponent = match["e"] or match["power"] or match["digit"]
    if exponent is not None and abs(int(exponent)) > MAX_DIGITS:
        return None
    mantissa = match["mantissa"]
    return Number(Fraction(mantissa) * Fraction(10) ** int(exponent or 0), "." in mantissa or exponent is not None)


def numbers_equal(left: Number, right: Number) -> bool:
    """Exact equality; within a relative 1e-6 if either side was written as a decimal."""
    if left.value == right.value:
        return True
    if not (left.approximate or right.approximate):
        return False
    return abs(left.value - right.value) <= RELATIVE_TOLERANCE * max(abs(left.value), abs(right.value))
