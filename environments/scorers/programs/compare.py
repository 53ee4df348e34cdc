"""Compare values that programs returned in their sandboxes, as `harness.encoded` writes them. Pure functions.

Values are data here: no code of a program runs, so no object can claim to be equal to another one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

Encoded = Sequence[Any]
"""A list of a kind and its content; see `treadle.environments.scorers.programs.harness.encoded`."""
_NUMBERS = ("int", "float")
_FRACTION = re.compile(r"-?[0-9]+(?:/[0-9]+)?")
_MAX_SHOWN_CHARS = 300
_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "dict": ("{", "}")}


def same(value: Encoded, expected: Encoded, tolerance: float = 0.0) -> bool:
    """Return whether two values are equal: by kind and content, in dicts and sets without regard to order.

    Whole and floating numbers are compared by value, within the relative and absolute `tolerance`, and NaN is equal to
    NaN; True is not 1. Raises nothing for values of any form.
    """
    try:
        return _same(value, expected, tolerance)
    except (TypeError, ValueError, IndexError, RecursionError, ArithmeticError):
        return False


def _same(value: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(value, list) or not isinstance(expected, list):
        return type(value) is type(expected) and bool(value == expected)
    if value and expected and value[0] in _NUMBERS and expected[0] in _NUMBERS:
        return _same_number(_number(value), _number(expected), tolerance)
    if value and expected and value[0] == expected[0] == "complex":
        pairs = zip(value[1:], expected[1:], strict=True)
        return all(_same_number(float.fromhex(a), float.fromhex(b), tolerance) for a, b in pairs)
    if value and expected and value[0] == expected[0] == "text" and value[1] == expected[1] == "Decimal":
        return _same_decimal(_exact(*value[1:]), _exact(*expected[1:]))
    if value and expected and value[0] == expected[0] and value[0] in ("set", "dict"):
        return _same_items(sorted(value[1], key=_order), sorted(expected[1], key=_order), tolerance)
    return _same_items(value, expected, tolerance)


def _same_items(value: Sequence[Any], expected: Sequence[Any], tolerance: float) -> bool:
    return len(value) == len(expected) and all(
        _same(one, other, tolerance) for one, other in zip(value, expected, strict=True)
    )


def _same_decimal(one: Any, other: Any) -> bool:
    """Return whether two decimals are equal, whatever the zeros at their ends."""
    if one.is_nan() or other.is_nan():
        return bool(one.is_nan() and other.is_nan())
    return bool(one == other)


def _order(value: Any) -> Any:
    """Return what sorts encoded values with numbers by value, so that 2 and 2.0 have the same place."""
    if not isinstance(value, list):
        return value
    if value and value[0] in _NUMBERS:
        number = _number(value)
        return ("number", number != number, 0 if number != number else number)
    if value and value[:2] == ["text", "Decimal"]:
        number = _exact(*value[1:])
        return ("decimal", number.is_nan(), 0 if number.is_nan() else number)
    return tuple(map(_order, value))


def _number(value: Encoded) -> int | float:
    return int(value[1], 16) if value[0] == "int" else float.fromhex(value[1])


def _same_number(one: int | float, other: int | float, tolerance: float) -> bool:
    if one == other or (one != one and other != other):
        return True
    if not tolerance or (isinstance(one, int) and isinstance(other, int)):
        return False
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def same_legacy(value: Encoded, expected: Encoded) -> bool:
    """Return whether `==` of Python holds, as in the published program: 1 is True, NaN is nothing, and arrays fail.

    Objects of the programs' own classes are never equal.
    """
    try:
        return bool(_decoded(value) == _decoded(expected))
    except (TypeError, ValueError, IndexError, KeyError, RecursionError, ArithmeticError):
        return False


class _Unequal:
    """Value that is equal to no other one."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class _Array:
    """Array of numpy or index of pandas: a comparison has a truth value only for one element."""

    items: Sequence[Any]

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        others = other.items if isinstance(other, _Array) else [other]
        if len(self.items) != 1 or len(others) != 1:
            raise ValueError("the truth value of an array is ambiguous")
        return bool(self.items[0] == others[0])


def _decoded(value: Encoded) -> Any:
    """Return a value made of built-in types alone."""
    kind, content = value[0], value[1] if len(value) > 1 else None
    if kind in _NUMBERS:
        return _number(value)
    if kind in ("none", "bool", "str"):
        return content
    if kind == "complex":
        return complex(float.fromhex(value[1]), float.fromhex(value[2]))
    if kind == "bytes":
        return bytes.fromhex(str(content))
    if kind in ("list", "tuple", "set", "range"):
        return _decoded_items(kind, content)
    if kind == "dict":
        return {_decoded(key): _decoded(one) for key, one in content or ()}
    if kind == "text" and content in ("Decimal", "Fraction"):
        return _exact(content, value[2])
    if kind in ("text", "large"):
        return (kind, *value[1:])
    # Comparisons of pandas' tables and columns have no truth value, not even for one element; an index is an array.
    is_array = kind == "array" or (kind == "series" and not content)
    return _Array([_decoded(one) for one in value[2]]) if is_array else _Unequal()


def _exact(name: str, text: str) -> Any:
    """Return an exact number. Raises ValueError and ArithmeticError.

    A fraction with an exponent is refused, since its digits could fill the memory.
    """
    if name == "Decimal":
        return Decimal(text)
    if not _FRACTION.fullmatch(text):
        raise ValueError("not a fraction")
    return Fraction(text)


def _decoded_items(kind: str, content: Any) -> Any:
    if kind == "range":
        return range(*(int(one, 16) for one in content))
    items = [_decoded(one) for one in content]
    return items if kind == "list" else tuple(items) if kind == "tuple" else set(items)


def shown(value: Encoded | None) -> str | None:
    """Return a value as short text for people; None for none."""
    if value is None:
        return None
    try:
        text = _shown(value)
    except (TypeError, ValueError, IndexError, RecursionError, ArithmeticError):
        text = "a value that cannot be shown"
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"


def _shown(value: Encoded) -> str:
    kind, content = value[0], value[1] if len(value) > 1 else None
    if kind in _BRACKETS:
        opening, closing = _BRACKETS[kind]
        items = [f"{_shown(one[0])}: {_shown(one[1])}" if kind == "dict" else _shown(one) for one in content or ()]
        comma = "," if kind == "tuple" and len(items) == 1 else ""
        return "set()" if kind == "set" and not items else f"{opening}{', '.join(items)}{comma}{closing}"
    if kind == "array":
        return f"array({', '.join(map(_shown, value[2]))})"
    if kind == "object":
        return f"{content}({_shown(value[2])})"
    if kind == "text":
        return f"{content}({str(value[2])!r})"
    if kind in (*_NUMBERS, "none", "bool", "str", "complex", "bytes", "range"):
        return ascii(_decoded(value)) if kind != "str" else repr(content)
    return str(kind)
