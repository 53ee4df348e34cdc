"""Values are equal if Python's own `==` says so, for all types that can be compared."""

from __future__ import annotations

import math
import re
from array import array
from collections import ChainMap, Counter, OrderedDict, UserList, UserString, defaultdict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from support.programs.own_values import ZONES, Point

from treadle.environments.scorers.programs.compare import same, same_legacy
from treadle.environments.scorers.programs.values import encoded

EQUAL_ATOMS = (
    st.integers(-3, 3)
    | st.sampled_from([0.0, -0.0, 1.0, 0.5, 2.0, math.inf])
    | st.sampled_from([Decimal("1.0"), Decimal("0.50"), Decimal(-2), Decimal("Infinity"), Fraction(1, 2), Fraction(2)])
    | st.sampled_from([0j, 1 + 0j, 1j])
    | st.sampled_from(["", "a", "1", UserString("a"), b"", b"a", bytearray(b"a"), None, ...])
    | st.builds(range, st.integers(-2, 2), st.integers(-2, 4), st.integers(1, 3))
    | st.builds(slice, st.integers(0, 1), st.sampled_from([1, 1.0, None]))
    | st.sampled_from([array("i", [1]), array("d", [1.0]), array("b")])
    | st.builds(memoryview, st.sampled_from([array("h", [1]), b"a"]))
    | st.sampled_from([Path("a"), PurePosixPath("a/"), PureWindowsPath("A"), PureWindowsPath("a"), UUID(int=1)])
    | st.sampled_from([IPv4Address("1.2.3.4"), IPv4Address(0x01020304), re.compile("a"), re.compile(b"a"), int, str])
    | st.builds(timedelta, hours=st.integers(-1, 1), minutes=st.sampled_from([0, 60]))
    | st.builds(timezone, st.sampled_from([timedelta(0), timedelta(hours=2)]))
    | st.builds(datetime, st.just(2024), st.just(1), st.just(1), st.integers(0, 3), tzinfo=st.sampled_from(ZONES))
    | st.builds(time, st.integers(0, 3), tzinfo=st.sampled_from(ZONES))
    | st.builds(date, st.just(2024), st.just(1), st.integers(1, 2))
    | st.builds(Point, st.integers(0, 1), st.integers(0, 1))
)
"""Values of which many are equal to others, of the same type or of another; without True, NaN, and arrays of numpy."""
COUNTS = st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=2)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return collections of equal and of different kinds."""
    items, keyed = st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", 1, 1.0, (1,)]), inner, max_size=3)
    return (
        items
        | items.map(tuple)
        | items.map(deque)
        | items.map(UserList)
        | keyed
        | keyed.map(lambda value: OrderedDict(reversed(value.items())))
        | keyed.map(lambda value: defaultdict(int, value))
        | keyed.map(MappingProxyType)
        | keyed.map(lambda value: ChainMap({}, value))
        | keyed.map(lambda value: value.keys())
        | COUNTS
        | COUNTS.map(Counter)
        | items.map(hashable).map(set)
        | items.map(hashable).map(frozenset)
    )


def hashable(items: list[Any]) -> list[Any]:
    """Return the items that a set can have."""
    found = []
    for one in items:
        try:
            hash(one)
        except (TypeError, ValueError):
            continue
        found.append(one)
    return found


VALUES = st.recursive(EQUAL_ATOMS, containers, max_leaves=6)


@given(VALUES, VALUES)
def test_values_are_equal_as_in_python(one: Any, other: Any) -> None:
    """The differences that are meant are in `test_compare.py`.

    They are NaN, the tolerance, True and 1, arrays, and objects that say that they are equal.
    """
    expected = bool(one == other)
    assert same(encoded(one), encoded(other)) == expected
    if not has_points(one) and not has_points(other):
        assert same_legacy(encoded(one), encoded(other)) == expected


def has_points(value: Any) -> bool:
    """Return whether a value has an object of a program's own class, which is never equal in the profile `legacy`."""
    return "Point(" in repr(value)
