"""Compare values that programs returned in their sandboxes, as `values.encoded` writes them. Pure functions.

Values are data here: no code of a program runs, so no object can claim to be equal to another one.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

Encoded = Sequence[Any]
"""A list with the kind of a value and its content; see `treadle.environments.scorers.programs.values.encoded`."""
_Number = int | float | complex | Decimal | Fraction
_MAX_SHOWN_CHARS = 300
_BRACKETS = {
    "list": ("[", "]"),
    "tuple": ("(", ")"),
    "set": ("{", "}"),
    "dict": ("{", "}"),
    "deque": ("deque([", "])"),
    "ordered": ("OrderedDict({", "})"),
    "counter": ("Counter({", "})"),
}
_MAPPINGS = ("dict", "ordered", "counter")


def same(value: Encoded, expected: Encoded, tolerance: float = 0.0) -> bool:
    """Return whether two encoded values are equal by Python's rules, with four differences.

    NaN is equal to NaN. Numbers of which one is floating are equal within the relative and absolute `tolerance`. True
    is not 1. Arrays and tables are equal if all their items are, and objects of a program's own classes if their
    classes have the same name and their attributes are equal. Malformed values are unequal; no error is raised.
    """
    try:
        return _same(value, expected, tolerance)
    except (TypeError, ValueError, IndexError, RecursionError, ArithmeticError):
        return False


def _same(value: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(value, list) or not isinstance(expected, list):
        return type(value) is type(expected) and bool(value == expected)
    kinds = _kind(value), _kind(expected)
    if all(kind in _NUMBERS for kind in kinds):
        return _same_number(_number(value), _number(expected), tolerance)
    if all(kind in _MAPPINGS for kind in kinds):
        return _same_mapping(value, expected, tolerance)
    if kinds == ("set", "set"):
        return _same_items(sorted(value[1], key=_order), sorted(expected[1], key=_order), tolerance)
    if kinds == ("range", "range"):
        return _range(value) == _range(expected)
    return _same_items(value, expected, tolerance)


def _kind(value: Sequence[Any]) -> str:
    """Return the kind of an encoded value; empty for a part of an encoded value, which has no kind."""
    return value[0] if value and isinstance(value[0], str) else ""


def _same_items(value: Sequence[Any], expected: Sequence[Any], tolerance: float) -> bool:
    return len(value) == len(expected) and all(
        _same(one, other, tolerance) for one, other in zip(value, expected, strict=True)
    )


def _same_mapping(value: Encoded, expected: Encoded, tolerance: float) -> bool:
    """Return whether two dicts are equal: ordered ones in their order, counters without counts of 0."""
    one, other = value[1], expected[1]
    if value[0] == expected[0] == "ordered":
        return _same_items(one, other, tolerance)
    if value[0] == expected[0] == "counter":
        one, other = ([pair for pair in pairs if not _is_zero(pair[1])] for pairs in (one, other))
    return _same_items(sorted(one, key=_order), sorted(other, key=_order), tolerance)


def _is_zero(value: Encoded) -> bool:
    return value == ["bool", False] or (_kind(value) in _NUMBERS and _number(value) == 0)


def _order(value: Any) -> Any:
    """Return a sort key for encoded values, the same for equal values: numbers of any kind sort by their value."""
    if not isinstance(value, list):
        return value
    kind = _kind(value)
    if kind in _NUMBERS:
        return ("number", *map(_order_of_part, _parts(_number(value))))
    if kind == "range":
        one = _range(value)
        return kind, len(one), *one[:2]
    if kind in ("set", "dict"):
        return kind, *sorted(map(_order, value[1]))
    return tuple(map(_order, value))


def _order_of_part(part: Any) -> tuple[bool, Any]:
    is_nan = _is_nan(part)
    return is_nan, 0 if is_nan else part


def _parts(number: _Number) -> tuple[Any, Any]:
    """Return the real and the imaginary part of a number."""
    return (number.real, number.imag) if isinstance(number, complex) else (number, 0)


def _is_nan(number: Any) -> bool:
    return bool(number.is_nan() if isinstance(number, Decimal) else number != number)


def _same_number(one: _Number, other: _Number, tolerance: float) -> bool:
    is_floating = isinstance(one, float | complex) or isinstance(other, float | complex)
    limit = tolerance if is_floating else 0.0
    return all(_same_part(*parts, limit) for parts in zip(_parts(one), _parts(other), strict=True))


def _same_part(one: Any, other: Any, tolerance: float) -> bool:
    if _is_nan(one) or _is_nan(other):
        return _is_nan(one) and _is_nan(other)
    if one == other:
        return True
    if not tolerance or math.isinf(one) or math.isinf(other):
        return False
    return math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=tolerance)


def _number(value: Encoded) -> _Number:
    return _NUMBERS[value[0]](*value[1:])


def _fraction(numerator: str, denominator: str) -> Fraction:
    return Fraction(int(numerator, 16), int(denominator, 16))


def _range(value: Encoded) -> range:
    return range(*(int(one, 16) for one in value[1]))


_NUMBERS: Mapping[str, Callable[..., _Number]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "decimal": Decimal,
    "fraction": _fraction,
}
"""Kind of a number -> function that decodes its content."""


def same_legacy(value: Encoded, expected: Encoded) -> bool:
    """Return whether Python's `==` holds, as in the published program.

    So 1 equals True, and NaN equals nothing. Comparing arrays fails unless both have one element; if it fails, they are
    unequal.

    Objects of the programs' own classes are never equal.
    """
    try:
        return bool(_decoded(value) == _decoded(expected))
    except (TypeError, ValueError, IndexError, KeyError, RecursionError, ArithmeticError):
        return False


@dataclass(frozen=True, slots=True)
class _Other:
    """Value of a type that is not decoded; values of the same kind with the same content are equal."""

    kind: str
    content: tuple[Any, ...]


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
    """Return the value that an encoded value describes, made of built-in types, `_Other`, `_Unequal` and `_Array`."""
    kind, content = value[0], value[1] if len(value) > 1 else None
    if kind in _NUMBERS:
        return _number(value)
    if kind in ("none", "bool", "str"):
        return content
    if kind == "bytes":
        return bytes.fromhex(str(content))
    if kind == "range":
        return _range(value)
    if kind in _ITEMS:
        return _ITEMS[kind](map(_decoded, value[1]))
    if kind in _MAPPINGS:
        made = {_decoded(key): _decoded(one) for key, one in content or ()}
        return OrderedDict(made) if kind == "ordered" else Counter(made) if kind == "counter" else made
    if kind == "slice":
        return slice(*map(_decoded, value[1]))
    if kind == "namespace":
        return _Other(kind, (_decoded(value[1]),))
    if kind == "items":
        return _Other(kind, (*value[1], *map(_decoded, value[2])))
    if kind in _ALIKE and value[-1] != "solution":
        return _Other(kind, tuple(map(_hashable, value[1:])))
    # Comparisons of pandas' tables and columns have no truth value, not even for one element; an index is an array.
    is_array = kind == "array" or (kind == "series" and not content)
    return _Array([_decoded(one) for one in value[2]]) if is_array else _Unequal()


_ITEMS: Mapping[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": frozenset, "deque": deque}
_ALIKE = frozenset(
    {
        "text", "large", "date", "datetime", "time", "duration", "zone", "path", "pattern", "constant", "type",
    }
)  # fmt: skip
"""Kinds whose values are compared by their content, except for classes that programs define."""


def _hashable(content: Any) -> Any:
    return tuple(map(_hashable, content)) if isinstance(content, list) else content


def shown(value: Encoded | None) -> str | None:
    """Return a value as short text for people; None if there is no value."""
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
        is_mapping = kind in _MAPPINGS
        items = [f"{_shown(one[0])}: {_shown(one[1])}" if is_mapping else _shown(one) for one in content or ()]
        comma = "," if kind == "tuple" and len(items) == 1 else ""
        return "set()" if kind == "set" and not items else f"{opening}{', '.join(items)}{comma}{closing}"
    if kind in ("array", "items"):
        return f"array({', '.join(map(_shown, value[2]))})"
    if kind == "object":
        return f"{content}({_shown(value[2])})"
    if kind == "text":
        return f"{content}({str(value[2])!r})"
    if kind in (*_NUMBERS, "none", "bool", "bytes", "range", "slice"):
        return str(_decoded(value)) if kind == "fraction" else ascii(_decoded(value))
    return repr(content) if kind == "str" else _shown_time(kind, *value[1:])


def _shown_time(kind: str, content: Any = "0x0", is_utc: bool = False) -> str:
    """Return a value of `datetime` as text, or the name of the kind of another value."""
    if kind == "date":
        return f"date('{date.fromordinal(int(content, 16))}')"
    if kind in ("datetime", "time", "duration", "zone"):
        days, rest = divmod(int(content, 16), 86_400_000_000)
        day = f"{date.fromordinal(days)} " if kind == "datetime" else f"{days} days, " if days else ""
        return f"{kind}('{day}{timedelta(microseconds=rest)}{' UTC' if is_utc else ''}')"
    return f"{kind}({content!r})" if kind in ("path", "type") else kind
