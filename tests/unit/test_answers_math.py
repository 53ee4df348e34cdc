"""Mathematical equality without the symbolic layer, and with a stand-in for it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.answers.math_equal import (
    MAX_SYMBOLIC_CHECKS,
    SymbolicVerdict,
    math_equal,
    split_group,
    textually_equal,
)
from treadle.core.answers.math_number import parse_number
from treadle.core.answers.score import score_answer
from treadle.core.errors import ConfigError, EngineError

EQUAL_BY_TEXT = [
    (r"\dfrac{1}{2}", "0.5"),
    ("3/4", r"\frac{3}{4}"),
    (r"\frac34", "3/4"),
    ("x=5", "5"),
    (r"5\text{ cm}", "5"),
    (r"10\%", "10"),
    (r"90^\circ", "90"),
    (r"\sqrt3", r"\sqrt{3}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
]
EQUAL_BY_LATER_LAYERS = [
    ("25", "025"),
    ("1,000", "1000"),
    ("12.0", "12"),
    ("0.50", "1/2"),
    ("10%", "10"),
    ("$5", "5"),
    (r"\text{(C)}", "(C)"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"-\frac{3}{4}", "-3/4"),
    (r"5 \text{cm}", "5"),
]
EQUAL_BY_ALGEBRA = [(r"2\cdot 3", "6"), ("x+1", "1+x")]
UNEQUAL = [("xyz=5", "5"), ("12", "13"), ("(1,2)", "12")]
FURTHER_EQUAL = [
    ("1,-2", r"\{-2,1\}"),
    ("(1, 2]", r"(1,\frac{4}{2}]"),
    (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty) \cup (-\infty, 1)"),
    (r"1 \text{ or } 2", "2, 1"),
    ("5 cm", "5"),
    ("$18.00", "18"),
    ("18 dollars", "18"),
    ("1.5e3", "1500"),
    (r"1.5\times10^{3}", "1500"),
    (r"3\frac12", "3.5"),
    ("3 1/2", "7/2"),
    (r"x\in[1,2]", "[1,2]"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("0.333333", "1/3"),
    ("42.", "42"),
    (r"\$32,000", "32000"),
    ("(5)", "5"),
    ("\N{MINUS SIGN}3", "-3"),
]
FURTHER_UNEQUAL = [
    ("1000000", "1000001"),
    ("(1,2)", "(2,1)"),
    ("[1,2]", "(1,2)"),
    ("1,2,3,4,5", "3"),
    ("5 or 6", "5"),
    (r"5\text{ or }7", "5"),
    ("east", "seat"),
    ("0.33", "1/3"),
    ("1,2", "1,2,3"),
    ("1,1,2", "1,2,2"),
    ("3 1/2", "31/2"),
    ("", "5"),
    ("$", r"\%"),
    ("1,000", "(1,000)"),
    ("2", "-2"),
    ("1/0", "1"),
    ("1/0", "2/0"),
]


class _Recorder:
    """A symbolic layer that says no and remembers what it was asked."""

    def __init__(self, verdict: SymbolicVerdict | EngineError | None = None) -> None:
        self.verdict = verdict or SymbolicVerdict(False)
        self.asked: list[tuple[str, str]] = []

    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        self.asked.append((prediction, gold))
        if isinstance(self.verdict, EngineError):
            raise self.verdict
        return self.verdict


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(("left", "right"), EQUAL_BY_TEXT + EQUAL_BY_LATER_LAYERS + FURTHER_EQUAL)
def test_equal_answers(left: str, right: str) -> None:
    assert math_equal(left, right).equal
    assert math_equal(right, left).equal


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(("left", "right"), UNEQUAL + FURTHER_UNEQUAL)
def test_unequal_answers(left: str, right: str) -> None:
    yes = _Recorder(SymbolicVerdict(True))
    assert not math_equal(left, right, yes).equal or yes.asked
    assert not math_equal(left, right).equal
    assert not math_equal(right, left).equal


@pytest.mark.parametrize(("left", "right"), UNEQUAL)
def test_algebra_is_not_asked_about_what_is_decided(left: str, right: str) -> None:
    assert not math_equal(left, right, _Recorder(SymbolicVerdict(True))).equal


@pytest.mark.covers("evaluation-4")
def test_textual_rule_alone_gives_the_older_results() -> None:
    assert all(textually_equal(left, right) for left, right in EQUAL_BY_TEXT)
    assert not any(textually_equal(left, right) for left, right in EQUAL_BY_LATER_LAYERS + EQUAL_BY_ALGEBRA + UNEQUAL)


@pytest.mark.covers("flywheel-21")
def test_fraction_notations_need_no_further_layer() -> None:
    recorder = _Recorder()
    assert math_equal("1/2", r"\frac{1}{2}", recorder).rule in ("math_text", "math_numeric")
    assert recorder.asked == []


def test_missing_symbolic_layer_is_said() -> None:
    assert score_answer("x+1", ["1+x"], domain="math").scorer == "math_rules"
    assert score_answer("x+1", ["1+x"], domain="math", checker=_Recorder()).scorer == "math_symbolic"
    limited = _Recorder(SymbolicVerdict(False, "time"))
    assert score_answer("x+1", ["1+x"], domain="math", checker=limited).scorer == "math_symbolic_limit"


def test_broken_symbolic_layer_gives_no_verdict() -> None:
    broken = _Recorder(EngineError("it broke"))
    score = score_answer("x+1", ["1+x"], domain="math", checker=broken)
    assert (score.score, score.correct, score.error) == (None, None, "it broke")
    assert score_answer("x+1", ["1+x", "x+1"], domain="math", checker=broken).correct is True


def test_words_and_half_equations_are_not_algebra() -> None:
    recorder = _Recorder(SymbolicVerdict(True))
    for left, right in [("east", "seat"), ("x+1=5", "5"), (r"\text{ab} + 1", "1 + ab"), ("no idea", "x")]:
        assert not math_equal(left, right, recorder).equal
    assert recorder.asked == []


def test_number_of_symbolic_checks_is_bounded() -> None:
    recorder = _Recorder()
    left = ",".join(f"x+{n}" for n in range(40))
    right = ",".join(f"{n}+y" for n in range(40))
    assert math_equal(left, right, recorder).rule == "math_symbolic_limit"
    assert len(recorder.asked) == MAX_SYMBOLIC_CHECKS


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
def test_rationals_compare_as_numbers_in_any_notation(left: Fraction, right: Fraction) -> None:
    def notations(value: Fraction) -> list[str]:
        sign = "-" if value < 0 else ""
        top, bottom = abs(value.numerator), value.denominator
        return [f"{value}", f"{sign}\\frac{{{top}}}{{{bottom}}}", f"${sign}{top:,}/{bottom}$", f"x={value}"]

    for one in notations(left):
        for other in notations(right):
            assert math_equal(one, other).equal == (left == right), (one, other)
            assert math_equal(one, other).equal == math_equal(other, one).equal


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_compared_and_symmetric(left: str, right: str) -> None:
    assert math_equal(left, right).equal == math_equal(right, left).equal
    assert math_equal(left, left).equal


@pytest.mark.parametrize("text", ["9" * 401, "1e401", "1e99999", "10^{9999}", "9^{9^9}", "1/0", "nan", "inf", "0x10"])
def test_numbers_beyond_the_limits_are_not_read(text: str) -> None:
    assert parse_number(text) is None


def test_groups() -> None:
    group = split_group(r"(1,\frac{2,3}{4}]")
    assert group is not None
    assert (group.kind, group.elements) == ("(]", ("1", r"\frac{2,3}{4}"))
    assert split_group("(x+1)(x-2)") is None
    assert split_group(")1,2(") is None or not split_group(")1,2(").kind.startswith("(")  # type: ignore[union-attr]


def test_unknown_domain_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="poetry"):
        score_answer("x", ["x"], domain="poetry")


def test_hostile_answers_end_without_a_symbolic_layer() -> None:
    for piece in ("9", "(", "{", "\\", "$", ",", r"\frac", r"\text{", "1,000", " ", r"\{", "=", "x "):
        for size in (1_900, 1_000_000):
            assert not math_equal(piece * (size // len(piece)), "7").equal
