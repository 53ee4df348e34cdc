"""Rows of steps by shares: numbers per step and over all steps, passes over rows, and a function of its arguments."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.rl.training.step_rows import most_prompts, prompts_of_steps, step_rows

NAMES = ("default", "guess", "tools", "web", "desk")
DRIFTING = dict(zip("abcdefgh", (0.99, 0.71, 0.91, 0.99, 0.99, 0.63, 0.79, 0.99), strict=True))
"""Parts of seven prompts with which the largest remainder first is wrong after 75 steps."""


@st.composite
def thousandths(draw: st.DrawFn) -> dict[str, float]:
    """Shares of one to five environments, in thousandths, whose sum is 1."""
    borders = sorted(draw(st.lists(st.integers(0, 1000), min_size=0, max_size=4)))
    ends = itertools.pairwise([0, *borders, 1000])
    return {name: (high - low) / 1000 for name, (low, high) in zip(NAMES, ends, strict=False)}


@settings(max_examples=examples(60), deadline=None)
@given(thousandths(), st.integers(1, 12))
@example({"default": 0.3, "guess": 0.7}, 8)
@example({"default": 0.333333, "guess": 0.333333, "tools": 0.333334}, 8)
@example(DRIFTING, 7)
@example({"default": 0.2345678901, "guess": 0.2345678902, "tools": 0.5308642197}, 4)
@example({"default": 0.1234567890123456, "guess": 0.1234567890123457, "tools": 0.7530864219753087}, 5)
def test_each_step_and_all_steps_so_far_have_their_shares(shares: dict[str, float], prompts: int) -> None:
    total: Counter[str] = Counter()
    for step, counts in enumerate(itertools.islice(prompts_of_steps(shares, prompts), 100), 1):
        assert sum(counts.values()) == prompts and counts.keys() == shares.keys()
        total.update(counts)
        for name, share in shares.items():
            exact = Fraction(str(share)) / sum(Fraction(str(one)) for one in shares.values()) * prompts
            assert counts[name] in (math.floor(exact), math.ceil(exact))
            assert abs(total[name] - step * exact) < 1
            assert counts[name] <= most_prompts(share, shares, prompts)


def test_share_of_three_tenths_of_eight_prompts_is_two_or_three() -> None:
    counts = [made["guess"] for made in itertools.islice(prompts_of_steps({"default": 0.7, "guess": 0.3}, 8), 10)]
    assert set(counts) == {2, 3} and sum(counts) == 24


@pytest.mark.parametrize("num_rows", [(3, 5), (4, 4), (40, 3)])
def test_environment_has_passes_of_its_own_over_all_its_rows(num_rows: tuple[int, int]) -> None:
    environments = ["default"] * num_rows[0] + ["guess"] * num_rows[1]
    steps = step_rows(environments, {"default": 0.4, "guess": 0.6}, 5, 60, 7)
    assert all(len(rows) == len(set(rows)) == 5 for rows in steps), "no row is twice in a step"
    for name in ("default", "guess"):
        size = environments.count(name)
        own = [row for rows in steps for row in sorted(rows) if environments[row] == name]
        counts = Counter(own)
        assert len(counts) == size and max(counts.values()) - min(counts.values()) <= 1
        assert len(own) == 60 * (2 if name == "default" else 3)


def test_share_of_zero_leaves_rows_out() -> None:
    steps = step_rows(["default", "guess", "guess"], {"default": 0.0, "guess": 1.0}, 2, 4, 1)
    assert {row for rows in steps for row in rows} == {1, 2}


def test_rows_of_a_step_depend_on_nothing_but_the_arguments() -> None:
    environments, shares = ["default", "guess"] * 9, {"default": 0.3, "guess": 0.7}
    made = step_rows(environments, shares, 4, 12, 5)
    assert step_rows(environments, shares, 4, 12, 5) == made
    assert step_rows(environments, shares, 4, 5, 5) == made[:5], "more steps do not change earlier ones"
    assert step_rows(environments, shares, 4, 12, 6) != made
    # Rows of one environment do not depend on those of another.
    longer = step_rows([*environments, *["guess"] * 4], shares, 4, 12, 5)
    own = [sorted(row for row in rows if environments[row] == "default") for rows in made]
    assert own == [sorted(row for row in rows if row < 18 and row % 2 == 0) for rows in longer]


def test_order_is_pinned() -> None:
    """A resumed training of an earlier process must get the same rows."""
    steps = step_rows(["default"] * 4 + ["guess"] * 3, {"default": 0.25, "guess": 0.75}, 2, 6, 1)
    assert steps == [[0, 5], [4, 6], [3, 6], [4, 5], [4, 2], [5, 6]]
