r"""Parse numbers as agents write them, as exact rationals.

Nothing is evaluated: only literals, fractions of literals, mixed numbers and powers of ten of bounded size are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 400
"""Most digits of a literal, and largest power of ten. Beyond that, an answer is not read as a number but as text."""

RELATIVE_TOLERANCE = Fraction(1, 1_000_000)

_DIGITS = rf"\d{{1,{MAX_DIGITS}}}"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d{{0,{MAX_DIGITS}}})?|\.{_DIGITS})"
_LITERAL = re.compile(
    rf"(?P<mantissa>{_DECIMAL})"
    r"(?:[eE](?P<e>[+-]?\d{1,4})|\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^\s?(?:\{(?P<power>[+-]?\d{1,4})\}|(?P<digit>\d)))?"
)
_FRACTION = re.compile(
    rf"(?P<whole>{_DIGITS}\s?)?\\[dt]?frac\s?"
    rf"(?:\{{\s?(?P<top>[+-]?{_DECIMAL})\s?\}}|(?P<top1>\d))\s?(?:\{{\s?(?P<bottom>[+-]?{_DECIMAL})\s?\}}|(?P<bottom1>\d))"
)
_SLASH = re.compile(rf"(?:(?P<whole>{_DIGITS})\s)?(?P<top>{_DECIMAL})\s?/\s?(?P<bottom>{_DECIMAL})")
_REPEATING = re.compile(
    r"(?P<whole>\d{0,40})\.(?P<fixed>\d{0,40})\\(?:overline|bar|dot)\s?(?:\{\s?(?P<block>\d{1,40})\s?\}|(?P<block1>\d))"
)
_BASE = re.compile(r"(?P<digits>[\dA-Fa-f]{1,64})\s?_\s?(?:\{\s?\(?(?P<base>\d{1,2})\)?\s?\}|(?P<base1>\d))")
_BASE_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASE_WORD = re.compile(r"_\s?\{?\s?(?:\\text\s?\{)?\s?([a-z]{3,5})\s?\}{0,2}$")
_DIGITS_IN_TEXT = re.compile(r"\\(?:text|mathrm)\s?\{\s?([\dA-Fa-f]{1,64})\s?\}(?=\s?_)")
_SIGN = re.compile(r"\s?([+-]?)\s?")


@dataclass(frozen=True, slots=True)
class Number:
    """Value of a number; `approximate` if it was written with a decimal point or an exponent."""

    value: Fraction
    approximate: bool


@dataclass(frozen=True, slots=True)
class Digits:
    """Digits with the base that they are written in."""

    text: str
    base: int

    @property
    def value(self) -> int | None:
        """Integer that the digits represent; None if the base has no such digits."""
        try:
            return int(self.text, self.base)
        except ValueError:
            return None


def parse_digits(text: str) -> Digits | None:
    r"""Parse `2516_8`, `1A_{16}` and `110_{\text{two}}`; return None if no base is given."""
    text = _DIGITS_IN_TEXT.sub(r"\1", text)
    if match := _BASE_WORD.search(text):
        text = text[: match.start()] + "_{" + str(_BASE_WORDS.get(match[1], "")) + "}"
    match = _BASE.fullmatch(text)
    if match is None or not any(character.isdigit() for character in match["digits"]):
        return None
    base = int(match["base"] or match["base1"])
    return Digits(match["digits"].lower(), base) if 2 <= base <= 36 else None


def parse_number(text: str) -> Number | None:
    """Parse a cleaned answer as a number; return None if it is anything else."""
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
    if match := _REPEATING.fullmatch(text):
        return _repeating(match)
    match = _FRACTION.fullmatch(text) or _SLASH.fullmatch(text)
    if match is None:
        return None
    parts = match.groupdict()
    top = parts["top"] or parts["top1"]
    bottom = parts["bottom"] or parts["bottom1"]
    if Fraction(bottom) == 0 or (parts["whole"] and (top[0] in "+-" or bottom[0] in "+-")):
        return None
    value = Fraction(top) / Fraction(bottom) + Fraction((parts["whole"] or "0").strip())
    return Number(value, "." in top + bottom)


def _repeating(match: re.Match[str]) -> Number:
    block = match["block"] or match["block1"]
    fixed = Fraction(int((match["whole"] or "0") + match["fixed"]), 10 ** len(match["fixed"]))
    return Number(fixed + Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(match["fixed"])), False)


def _literal(match: re.Match[str]) -> Number | None:
    exponent = match["e"] or match["power"] or match["digit"]
    if exponent is not None and abs(int(exponent)) > MAX_DIGITS:
        return None
    mantissa = match["mantissa"]
    if exponent is None and "." not in mantissa:
        return Number(Fraction(int(mantissa)), False)
    return Number(Fraction(mantissa) * Fraction(10) ** int(exponent or 0), "." in mantissa or exponent is not None)


def numbers_equal(left: Number, right: Number) -> bool:
    """Return whether two numbers are equal; within a relative 1e-6 if either was written as a decimal."""
    if left.value == right.value:
        return True
    if not (left.approximate or right.approximate):
        return False
    return abs(left.value - right.value) <= RELATIVE_TOLERANCE * max(abs(left.value), abs(right.value))
