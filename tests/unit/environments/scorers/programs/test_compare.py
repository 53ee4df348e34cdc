"""Values of two programs are compared as data, by the rules of each profile."""

from __future__ import annotations

import math
import re
from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs.own_values import EAST, Point

from treadle.environments.scorers.programs.compare import same, same_legacy, shown
from treadle.environments.scorers.programs.values import Incomparable, encoded

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.frozensets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN, PLAIN)
def test_legacy_comparison_is_that_of_python(one: Any, other: Any) -> None:
    assert same_legacy(encoded(one), encoded(other)) == (one == other)


@given(PLAIN)
def test_value_equals_itself(value: Any) -> None:
    assert same(encoded(value), encoded(value)) and shown(encoded(value)) is not None


@pytest.mark.parametrize(
    ("one", "other", "strict", "legacy"),
    [
        (1, True, False, True),
        (1, 1.0, True, True),
        (0.1 + 0.2, 0.3, True, False),
        ([0.1 + 0.2], [0.3], True, False),
        (math.nan, math.nan, True, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True),
        ((1, 2), [1, 2], False, False),
        ("1", 1, False, False),
        (None, False, False, False),
        ({1, 2}, frozenset({2, 1}), True, True),
        ({2, 16}, {2.0, 16.0}, True, True),
        ({2: "a", 16: "b", "c": None}, {2.0: "a", 16.0: "b", "c": None}, True, True),
        ({0.1 + 0.2, 0.15, math.nan}, {0.3, 0.15, math.nan}, True, False),
        ({0.1 + 0.2: [1], 0.15: [2]}, {0.3: [1], 0.15: [2]}, True, False),
        ({(1, 0.1 + 0.2), (1, 0.15)}, {(1, 0.3), (1, 0.15)}, True, False),
        ({1: "a", 2: "b"}, {1: "b", 2: "a"}, False, False),
        ({1, 2}, {1, 3}, False, False),
        (np.array([1, 2]), np.array([1, 2]), True, False),
        (np.array([1, 2]), np.array([1.0, 2.0]), True, False),
        (np.array([1]), np.array([1]), True, True),
        (np.array([[1, 2]]), np.array([1, 2]), False, False),
        (np.array([1]), np.array([1, 2]), False, False),
        (1.5, 1.6, False, False),
        (np.float32(2), 2.0, True, True),
        (np.bool_(True), True, True, True),
        (Decimal("1.5"), Decimal("1.5"), True, True),
        (Decimal("1.50"), Decimal("1.5"), True, True),
        ({Decimal("1.50"): 1, Decimal("1.10"): 2}, {Decimal("1.5"): 1, Decimal("1.1"): 2}, True, True),
        (Decimal("1.5"), Decimal("1.6"), False, False),
        (Decimal("nan"), Decimal("nan"), True, False),
        (Decimal("sNaN"), Decimal("sNaN"), True, False),
        (Decimal(2), 2, True, True),
        (Decimal("0.1"), 0.1, True, False),
        (Decimal("0.1"), Decimal("0.1000000000001"), False, False),
        (Decimal("1e400"), math.inf, False, False),
        (Fraction(1, 2), Fraction(2, 4), True, True),
        (Fraction(1, 2), 0.5, True, True),
        (Fraction(1, 3), 1 / 3, True, False),
        (Fraction(4, 2), 2, True, True),
        (Fraction(1, 2), Decimal("0.5"), True, True),
        (2 + 0j, 2, True, True),
        (0.1 + 0.2 + 0j, 0.3, True, False),
        (complex(math.nan, 1), complex(math.nan, 1), True, False),
        (-0.0, 0.0, True, True),
        ({complex(0.0, 1), complex(3, 1)}, {complex(-0.0, 1), complex(3, 1)}, True, True),
        ({Fraction(1, 2), 2, Decimal(16)}, {0.5, Decimal(2), 16 + 0j}, True, True),
        ({frozenset({2, 16})}, {frozenset({2.0, 16.0})}, True, True),
        (date(2024, 1, 2), date(2024, 1, 2), True, True),
        (Counter("aab"), {"a": 2, "b": 1}, True, True),
        (OrderedDict(a=1), {"a": 1}, True, True),
        (defaultdict(int, a=1), {"a": 1}, True, True),
        pytest.param(2**70_000, 2**70_000, True, True, id="huge"),
        (range(3), range(3), True, True),
        (range(0, 5, 2), range(0, 6, 2), True, True),
        (range(3, 3), range(0), True, True),
        (range(1, 2), range(1, 9, 9), True, True),
        (range(3), [0, 1, 2], False, False),
        ({range(0, 5, 2), range(9)}, {range(9), range(0, 6, 2)}, True, True),
        (slice(1, 2), slice(1.0, 2), True, True),
        (deque([1]), deque([1.0]), True, True),
        (deque([1]), [1], False, False),
        (deque([1], maxlen=3), deque([1]), True, True),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), False, False),
        (OrderedDict(a=1, b=2), {"b": 2, "a": 1}, True, True),
        (Counter(a=0), Counter(), True, True),
        (Counter(a=0), {}, False, False),
        (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}, True, True),
        (UserList([1]), [1], True, True),
        (UserDict(a=1), {"a": 1}, True, True),
        (UserString("a"), "a", True, True),
        (MappingProxyType({"a": 1}), {"a": 1}, True, True),
        ({"a": 1}.keys(), {"a"}, True, True),
        ({"a": 1}.items(), {("a", 1)}, True, True),
        (SimpleNamespace(a=1), SimpleNamespace(a=1.0), True, True),
        (b"a", bytearray(b"a"), True, True),
        (b"a", memoryview(b"a"), True, True),
        (b"a", "a", False, False),
        (array("i", [1, 2]), array("d", [1.0, 2.0]), True, True),
        (array("i", [1]), [1], False, False),
        ("\u00e9", "e\u0301", False, False),
        (Path("a/b"), PurePosixPath("a//b"), True, True),
        (PureWindowsPath("A"), PureWindowsPath("a"), True, True),
        (Path("a"), "a", False, False),
        (re.compile("a"), re.compile("a"), True, True),
        (re.compile("a"), re.compile("a", re.IGNORECASE), False, False),
        (UUID(int=1), UUID(int=1), True, True),
        (int, int, True, True),
        (int, float, False, False),
        (..., ..., True, True),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 2, tzinfo=EAST), True, True),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1), False, False),  # noqa: DTZ001
        ({datetime(2024, 1, 1, tzinfo=UTC): 1}, {datetime(2024, 1, 1, 2, tzinfo=EAST): 1}, True, True),
        (datetime(1, 1, 1, tzinfo=EAST), datetime(1, 1, 1, tzinfo=EAST), True, True),
        (datetime(2024, 1, 1), date(2024, 1, 1), False, False),  # noqa: DTZ001
        (time(1, tzinfo=UTC), time(3, tzinfo=EAST), True, True),
        (time(1), time(1, tzinfo=UTC), False, False),
        (timedelta(hours=24), timedelta(days=1), True, True),
        (timezone(timedelta(hours=2)), timezone(timedelta(hours=2), "X"), True, True),
        (np.datetime64("2024-01-01"), date(2024, 1, 1), True, True),
        (np.datetime64("NaT"), None, False, False),
        (np.datetime64("2024-01-01", "ns"), 1704067200000000000, False, False),
        (np.array(["2024-01-01"], "M8[ns]"), np.array([1704067200000000000]), False, False),
        (1 + 2j, 1 + 2j, True, True),
        (1 + 2j, 1 + 3j, False, False),
        (1e-12, 0.0, True, False),
        ({math.nan, 0}, {math.nan, 0.0}, True, False),
    ],
)
def test_rules_of_each_profile(one: Any, other: Any, strict: bool, legacy: bool) -> None:
    assert same(encoded(one), encoded(other), 1e-9) == strict
    assert same_legacy(encoded(one), encoded(other)) == legacy


def test_long_values_are_equal_by_their_digests() -> None:
    for compare in (same, same_legacy):
        assert compare(["large", "ab"], ["large", "ab"]) and not compare(["large", "ab"], ["large", "cd"])


def test_tolerance_is_a_setting() -> None:
    assert not same(encoded(0.1 + 0.2), encoded(0.3))
    assert same(encoded(1.0), encoded(1.01), 0.05) and not same(encoded(1), encoded(2), 0.9)


class Always:
    """Object that claims to be equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Sly(int):
    """Number that claims the same."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_objects_that_claim_to_be_equal_are_not() -> None:
    assert not same(encoded(Sly(3)), encoded(4)) and same(encoded(Sly(3)), encoded(3))
    with pytest.raises(Incomparable, match="type Always"):
        encoded(Always())
    with pytest.raises(Incomparable):
        encoded(iter([]))
    Always.__module__ = "solution"
    assert not same(encoded(Always()), encoded(4)) and not same_legacy(encoded(Always()), encoded(Always()))


def test_objects_of_equal_classes_are_equal_by_their_attributes() -> None:
    assert same(encoded(Point(1, 1)), encoded(Point(1, 1))) and not same(encoded(Point(1, 1)), encoded(Point(2, 1)))
    assert same(encoded(Point(1, 1, cached=True)), encoded(Point(1, 1))), "the field does not take part"
    assert shown(encoded(Point(1, 2))) == "Point({'x': 1, 'y': 2})"


def test_classes_that_derive_from_standard_types_count_as_those() -> None:
    class Day(date):
        pass

    class Failed(Exception):
        pass

    class Tasks(deque[int]):
        pass

    for kind in (Day, Failed, Tasks):
        kind.__module__ = "solution"
    assert same(encoded(Day(2024, 1, 1)), encoded(date(2024, 1, 1)))
    assert not same(encoded(Day(2024, 1, 1)), encoded(Day(2024, 1, 2)))
    assert same(encoded(Tasks([1])), encoded(deque([1]))) and not same(encoded(Tasks([1])), encoded(Tasks([2])))
    assert same(encoded(Failed("a")), encoded(Failed("a"))) and not same(encoded(Failed("a")), encoded(Failed("b")))
    assert same(encoded(Day), encoded(Day)) and not same_legacy(encoded(Day), encoded(Day))


def test_objects_with_slots_are_equal_by_them() -> None:
    class Point:
        __slots__ = ("x", "y")

        def __init__(self, x: int) -> None:
            self.x = x

    class Weighted(Point):
        __slots__ = "weight"

    class Named(Weighted):
        pass

    for kind in (Point, Weighted, Named):
        kind.__module__ = "solution"
        assert same(encoded(kind(1)), encoded(kind(1))) and not same(encoded(kind(1)), encoded(kind(2)))
    named, other = Named(1), Named(1)
    named.name, other.name = "a", "b"  # type: ignore[attr-defined]
    assert not same(encoded(named), encoded(other))


def test_tables_and_columns_of_pandas_are_equal_by_content_and_names() -> None:
    pandas = pytest.importorskip("pandas")
    series, frame = pandas.Series, pandas.DataFrame
    repeated = ["a", "a"]
    equal = [
        (series([1, None]), series([1.0, math.nan])),
        (frame({"a": [1], "b": ["x"]}), frame({"a": [1.0], "b": ["x"]})),
        (frame([[1, 2]], columns=repeated), frame([[1, 2]], columns=repeated)),
        (pandas.Index([1]), pandas.Index([1])),
        (pandas.NaT, pandas.NaT),
        (pandas.Timestamp("2024-01-01 00:00Z"), datetime(2024, 1, 1, 2, tzinfo=EAST)),
        (pandas.Timedelta(hours=1), timedelta(hours=1)),
    ]
    different = [
        (series([1], index=["a"]), series([1], index=["b"])),
        (series([1]), series([2])),
        (frame({"a": [1]}), frame({"b": [1]})),
        (frame([[1, 2]], columns=repeated), frame([[1, 3]], columns=repeated)),
        (frame({"a": [1]}, index=[0]), frame({"a": [1]}, index=[1])),
    ]
    assert all(same(encoded(one), encoded(other)) for one, other in equal)
    assert not any(same(encoded(one), encoded(other)) for one, other in different)
    assert same_legacy(encoded(pandas.Index([1])), encoded(pandas.Index([1])))
    for one in (series([1]), frame({"a": [1]}), pandas.Index([1, 2])):
        with pytest.raises(ValueError, match="truth value"):
            bool(one == one)
        assert not same_legacy(encoded(one), encoded(one))


def test_numbers_of_sympy_are_numbers() -> None:
    sympy = pytest.importorskip("sympy")
    x = sympy.Symbol("x")
    assert same(encoded(sympy.Integer(2)), encoded(2)) and same(encoded(sympy.Rational(1, 2)), encoded(Fraction(1, 2)))
    assert same(encoded((x + 1) ** 2), encoded((1 + x) ** 2)) and not same(encoded(x), encoded(x + 1))


def test_members_of_equal_enums_are_equal_by_their_names() -> None:
    colors, others = (Enum("Color", names, module="solution") for names in (["RED", "BLUE"], ["BLUE", "RED"]))
    red = encoded(colors["RED"])
    assert same(red, encoded(others["RED"])) and not same(red, encoded(colors["BLUE"]))
    assert same(encoded({colors["RED"]: 1}), encoded({others["RED"]: 1})) and not same_legacy(red, red)
    assert shown(red) == "Color('RED')"


FORGED_NUMBERS = (["decimal", "x"], ["decimal"], ["fraction", "0x1", "0x0"], ["complex", "0x1"], ["range", ["0x1"] * 9])
FORGED_TIMES = (
    ["date", "0x0"],
    ["datetime", "0xfffffffffffffffffff", True],
    ["duration", []],
    ["slice", [["none"]] * 4],
)


@pytest.mark.parametrize(
    "value",
    [
        [],
        ["int"],
        ["int", "zz"],
        ["dict", 3],
        ["list", [["list"]]],
        [[]],
        ["float", "x"],
        *FORGED_NUMBERS,
        *FORGED_TIMES,
    ],
)
def test_forged_values_are_no_error(value: Any) -> None:
    for compare in (same, same_legacy):
        assert not compare(value, encoded(1)) and not compare(encoded([1]), value)
    assert isinstance(shown(value), str)
    assert not same(["bool", 1], encoded(True)) and not same(["str", 1], ["str", "1"])
    deep: list[Any] = ["int", "0x1"]
    for _ in range(100_000):
        deep = ["list", [deep]]
    assert not same(deep, encoded(1)) and not same_legacy(deep, encoded(1)) and shown(deep)
    while len(deep) > 1 and isinstance(deep[1][0], list):  # dropped level by level, as its end would recurse
        deep = deep[1][0]


def test_values_are_shown_as_python_writes_them_and_cut() -> None:
    for value in (None, True, 3, 2.5, "a'b", [1, (2,), {3}], {"k": [1]}, set(), (), {}):
        assert shown(encoded(value)) == repr(value)
    assert shown(encoded(np.array([1, 2]))) == "array(1, 2)"
    assert len(shown(encoded("x" * 1_000)) or "") == 300
    assert shown(None) is None
    others = (deque([1]), OrderedDict(a=1), Decimal("1.50"), range(3), slice(1, None, None))
    assert all(eval(shown(encoded(one)) or "") == one for one in others)
    assert shown(encoded(Counter("aa"))) == "Counter({'a': 2})" and shown(encoded(Fraction(1, 2))) == "1/2"
    assert shown(encoded(datetime(2024, 1, 1, 2, tzinfo=EAST))) == "datetime('2024-01-01 0:00:00 UTC')"
    assert shown(encoded(date(2024, 1, 2))) == "date('2024-01-02')"
    assert shown(encoded(timedelta(days=2, minutes=1))) == "duration('2 days, 0:01:00')"
    assert shown(encoded(Path("a"))) == "path('a')" and shown(encoded(int)) == "type('int')"
