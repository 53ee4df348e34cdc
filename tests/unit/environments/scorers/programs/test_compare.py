"""Values of two programs are compared as data, by the rules of each profile."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.environments.scorers.programs.compare import same, same_legacy, shown
from treadle.environments.scorers.programs.harness import Incomparable, encoded

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
        (np.array([1, 2]), np.array([1, 2]), True, False),
        (np.array([1, 2]), np.array([1.0, 2.0]), True, False),
        (np.array([1]), np.array([1]), True, True),
        (np.array([[1, 2]]), np.array([1, 2]), False, False),
        (np.array([1]), np.array([1, 2]), False, False),
        (1.5, 1.6, False, False),
        (np.float32(2), 2.0, True, True),
        (np.bool_(True), True, True, True),
        (Decimal("1.5"), Decimal("1.5"), True, True),
        (date(2024, 1, 2), date(2024, 1, 2), True, True),
        (Counter("aab"), {"a": 2, "b": 1}, True, True),
        (OrderedDict(a=1), {"a": 1}, True, True),
        (defaultdict(int, a=1), {"a": 1}, True, True),
        pytest.param(2**70_000, 2**70_000, True, True, id="huge"),
        (range(3), range(3), True, True),
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
    @dataclass
    class Point:
        x: int

    Point.__module__ = "solution"
    assert same(encoded(Point(1)), encoded(Point(1))) and not same(encoded(Point(1)), encoded(Point(2)))
    assert shown(encoded(Point(1))) == "Point({'x': 1})"


@pytest.mark.parametrize("value", [[], ["int"], ["int", "zz"], ["dict", 3], ["list", [["list"]]], [[]], ["float", "x"]])
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
    assert shown(encoded(deque([1]))) == "[1]"
