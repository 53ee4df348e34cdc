"""Exact numbers are equal only if exact arithmetic confirms it, however large or close they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from treadle.core.answers.math_equal import MAX_SYMBOLIC_CHARS, math_equal
from treadle.core.answers.symbolic import SymbolicChecker

Written = tuple[str, Fraction]


@pytest.fixture(scope="module")
def checker() -> Iterator[SymbolicChecker]:
    with SymbolicChecker(limit_s=10.0) as opened:
        yield opened


def _leaves() -> st.SearchStrategy[Written]:
    whole = st.integers(0, 10**12).map(lambda n: (str(n), Fraction(n)))
    powers = st.tuples(st.integers(2, 12), st.integers(-300, 300)).map(
        lambda pair: (f"{pair[0]}^{{{pair[1]}}}", Fraction(pair[0]) ** pair[1])
    )
    factorials = st.integers(0, 80).map(lambda n: (f"{n}!", Fraction(math.factorial(n))))
    binomials = st.tuples(st.integers(0, 90), st.integers(0, 40)).map(
        lambda pair: (rf"\binom{{{sum(pair)}}}{{{pair[1]}}}", Fraction(math.comb(sum(pair), pair[1])))
    )
    return st.one_of(whole, powers, factorials, binomials)


def _combined(parts: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    def combine(sign: str, one: Written, other: Written) -> Written:
        if sign == "+":
            return rf"\left({one[0]}+{other[0]}\right)", one[1] + other[1]
        if sign == "-":
            return rf"\left({one[0]}-{other[0]}\right)", one[1] - other[1]
        if sign == "/" and other[1] != 0:
            return rf"\frac{{{one[0]}}}{{{other[0]}}}", one[1] / other[1]
        return rf"\left({one[0]}\cdot {other[0]}\right)", one[1] * other[1]

    return st.builds(combine, st.sampled_from("+-*/"), parts, parts)


WRITTEN = st.recursive(_leaves(), _combined, max_leaves=5)


@pytest.mark.covers("evaluation-4")
@settings(max_examples=12, deadline=None)
@given(WRITTEN, st.integers(1, 400))
def test_exact_numbers_are_equal_only_if_identical(checker: SymbolicChecker, written: Written, power: int) -> None:
    latex, value = written
    assume(value != 0)
    same = rf"\frac{{{latex}\cdot 2^{{{power}}}}}{{2^{{{power}}}}}"
    more = f"{latex}+1"
    nearly = rf"{latex}\cdot\left(1+2^{{-{power}}}\right)"
    assume(len(same) < MAX_SYMBOLIC_CHARS)
    assert math_equal(same, latex, checker).equal
    for other in (more, nearly):
        verdict = math_equal(other, latex, checker)
        assert (verdict.equal, verdict.rule) == (False, "math_symbolic"), other


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("10^{10^{10}}", "10^{10^{10}}+1"),
        ("2^{300000}", "2^{300000}-1"),
        (r"10^{5000}\sqrt2", r"10^{5000}\sqrt2+1"),
        ("2^{2^n}", "2^{2^n}+1"),
        ("x^{100000}", "2x^{100000}"),
        (r"\frac{1}{\sqrt2\sqrt3-\sqrt6}", "5"),
    ],
)
def test_values_beyond_exact_arithmetic_are_not_considered_equal(
    checker: SymbolicChecker, left: str, right: str
) -> None:
    assert not math_equal(left, right, checker).equal


TOO_LARGE_AND_EQUAL = [
    ("2^{10^6}", "4^{500000}"), ("2^{1000001}", r"2\cdot 2^{1000000}"), ("10^{1000000}", "100^{500000}"),
    ("2^{2^{100}}", "4^{2^{99}}"), ("30000!", r"30000\cdot 29999!"), ("9^{9^{9^9}}", r"3^{2\cdot 9^{9^9}}"),
    (r"\frac{100000!}{99999!}", "100000"), (r"\binom{100000}{2}", "4999950000"),
    (r"\binom{100000}{50000}", r"\frac{100000!}{50000!\cdot 50000!}"), ("2^{-10^6}", r"\frac{1}{4^{500000}}"),
    (r"\frac{2^{2^{20}}-1}{3}", r"\frac{4^{2^{19}}-1}{3}"), ("(3/2)^{10^6}", r"\frac{3^{10^6}}{2^{10^6}}"),
    ("2^{1000000}x", "4^{500000}x"), (r"1.5\cdot 10^{1000000}", r"15\cdot 10^{999999}"),
    ("10^{10^{10}}+1", r"1+100^{5\cdot 10^9}"), ("1000000!", r"1000000\cdot 999999!"), ("2^{10^6!}", "2^{1000000!}"),
    ("6^{10^7}", r"2^{10^7}\cdot 3^{10^7}"), (r"\left(2^{10^6}+1\right)\left(2^{10^6}-1\right)", "4^{10^6}-1"),
]  # fmt: skip
TOO_LARGE_AND_UNEQUAL = [
    ("2^{10^6}", "4^{500000}+1"), ("2^{1000001}", "2^{1000000}"), ("10^{1000000}", "100^{500001}"),
    ("2^{2^{100}}", "4^{2^{100}}"), ("30000!", r"29999\cdot 29999!"), ("9^{9^{9^9}}", "9^{9^{9^9}}-1"),
    ("10^{10^{10}}", "10^{10^{9}}"), ("1000000!", "1000000!+1"), (r"\frac{100000!}{99999!}", "99999"),
    (r"\binom{100000}{50000}", r"\binom{100000}{49999}"), ("2^{-10^6}", "-2^{-10^6}"),
    (r"1.5\cdot 10^{1000000}", r"1.6\cdot 10^{1000000}"), ("2^{10^6}x", "2^{10^6}x+1"), ("2^{2^{2^{2^{2^2}}}}", "3"),
    ("(-1)^{2^{10^6}}", "-1"), ("2^{10^7/3}", "3^{10^7/3}"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), TOO_LARGE_AND_EQUAL)
def test_equal_numbers_too_large_to_write_out_are_equal(checker: SymbolicChecker, left: str, right: str) -> None:
    for one, other in ((left, right), (right, left)):
        verdict = math_equal(one, other, checker)
        assert (verdict.equal, verdict.rule) == (True, "math_symbolic")


@pytest.mark.parametrize(("left", "right"), TOO_LARGE_AND_UNEQUAL)
def test_unequal_numbers_too_large_to_write_out_are_unequal(checker: SymbolicChecker, left: str, right: str) -> None:
    for one, other in ((left, right), (right, left)):
        verdict = math_equal(one, other, checker)
        assert (verdict.equal, verdict.rule) == (False, "math_symbolic")
