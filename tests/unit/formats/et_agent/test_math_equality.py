"""Comparison of math answers in the published program: its worked pairs, and failures of its normalisation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.formats.et_agent.metrics import legacy_math_equal

COMMANDS = [r"\frac", r"\sqrt", r"\text{ ", "{", "}", "=", "/", "1", "2", "x", " ", ".", r"\%", r"\left", "0.5", "\n"]


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (r"\dfrac{1}{2}", "0.5", True),
        ("3/4", r"\frac{3}{4}", True),
        (r"\frac34", "3/4", True),
        ("x=5", "5", True),
        (r"5\text{ cm}", "5", True),
        (r"10\%", "10", True),
        (r"90^\circ", "90", True),
        (r"\sqrt3", r"\sqrt{3}", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", True),
        ("25", "025", False),
        ("1,000", "1000", False),
        ("12.0", "12", False),
        ("0.50", "1/2", False),
        ("10%", "10", False),
        ("$5", "5", False),
        (r"\text{(C)}", "(C)", False),
        (r"\text{Evelyn}", "Evelyn", False),
        (r"-\frac{3}{4}", "-3/4", False),
        (r"5 \text{cm}", "5", False),
        (r"2\cdot 3", "6", False),
        ("xyz=5", "5", False),
        ("12", "13", False),
        ("(1,2)", "12", False),
    ],
)
def test_worked_legacy_pairs(left: str, right: str, equal: bool) -> None:
    assert legacy_math_equal(left, right) is equal is legacy_math_equal(right, left)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        # Text within math, letter case, and white space other than blank and newline count.
        ("Paris", "paris", False),
        ("a\tb", "ab", False),
        ("a\nb", "a b", True),
        # The one character behind a root is braced, be it a blank.
        (r"\sqrt 3", r"\sqrt3", False),
        # A single character behind a braced numerator is not.
        (r"\frac{1}2", r"\frac{1}{2}", False),
        (r"\frac1{72}", r"\frac{1}{72}", True),
        # Integers with zeros in front are none.
        ("03/4", r"\frac{03}{4}", False),
        ("-3/4", r"\frac{-3}{4}", True),
        (".5", "0.5", True),
        # If the normalisation fails, texts have to be the same.
        (r"\frac12\text{ a}\text{ b}", r"\frac{1}{2}\text{ a}\text{ b}", False),
        (r"1 \text{ a}\text{ b}", r"1 \text{ a}\text{ b}", True),
        (r"\sqrt", r"\sqrt ", False),
        (r"\sqrt", r"\sqrt", True),
        (r"1\frac", r" 1\frac", False),
    ],
)
def test_letters_and_edge_cases_of_the_legacy_normalisation(left: str, right: str, equal: bool) -> None:
    assert legacy_math_equal(left, right) is equal is legacy_math_equal(right, left)


@given(st.text() | st.lists(st.sampled_from(COMMANDS), max_size=8).map("".join), st.text())
def test_any_text_equals_itself_without_errors(left: str, right: str) -> None:
    assert legacy_math_equal(left, left)
    assert legacy_math_equal(left, right) is legacy_math_equal(right, left)
