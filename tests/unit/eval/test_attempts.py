"""Figures over several attempts at a question, and what a right answer costs."""

from __future__ import annotations

import math
import random
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.scored_rollouts import scored

from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.figures.prices import TokenPrices, rollout_cost
from treadle.eval.scored_rollout import ScoredRollout, ToolCalls
from treadle.eval.statistics import expected_best
from treadle.report.summary import model_rows

SETTINGS = ReportSettings(bootstrap_samples=100)


def figures(rollouts: list[ScoredRollout]) -> dict[str, dict[str, Any]]:
    """Return the rows of the report of one data set, by figure."""
    return {row["figure"]: row for row in model_rows("m", dataset_figures(rollouts), SETTINGS)}


def attempts(*right: bool, key: str = "q", **given: Any) -> list[ScoredRollout]:
    return [
        scored(float(one), question_key=key, sample_index=number, answer=1 if one else number + 2, **given)
        for number, one in enumerate(right)
    ]


@pytest.mark.covers("planning-29")
def test_worked_example_of_sixteen_attempts() -> None:
    rows = figures(attempts(*(number < 6 for number in range(16)), cost=0.003))
    assert rows["avg@16"]["value"] == rows["accuracy"]["value"] == 0.375
    assert rows["pass@4"]["value"] == pytest.approx(1 - math.comb(10, 4) / math.comb(16, 4))
    assert round(rows["pass@4"]["value"], 3) == 0.885
    assert rows["pass@16"]["value"] == 1.0
    assert rows["std@16"]["value"] == pytest.approx(math.sqrt(0.375 * 0.625))
    assert (rows["cost"]["value"], rows["cost_of_pass"]["value"]) == (pytest.approx(0.003), pytest.approx(0.008))


@pytest.mark.covers("planning-29")
def test_a_failed_question_stays_in_the_denominator() -> None:
    lost = scored(0.0, question_key="lost", status="failed", is_valid_answer=False, cost=0.001)
    rows = figures([*attempts(True, cost=0.001), lost])
    assert (rows["accuracy"]["value"], rows["accuracy"]["num_questions"]) == (0.5, 2)
    assert (rows["num_failed"]["value"], rows["cost_of_pass"]["value"]) == (1, pytest.approx(0.002))


def test_cost_of_pass_is_infinite_without_a_right_answer() -> None:
    row = figures(attempts(False, False, cost=0.001))["cost_of_pass"]
    assert (row["value"], row["low"], row["high"], row["method"]) == (math.inf, None, None, "infinite")


def test_cost_of_pass_counts_questions_without_a_right_answer() -> None:
    rollouts = [one for number in range(40) for one in attempts(number % 4 == 0, key=f"q{number}", cost=0.002)]
    row = figures(rollouts)["cost_of_pass"]
    assert row["value"] == pytest.approx(0.008)
    assert row["low"] < 0.008 < row["high"] < 0.1


def test_there_are_no_costs_without_prices_and_none_over_data_sets() -> None:
    assert not {"cost", "cost_of_pass"} & figures(attempts(True)).keys()
    parts = dataset_figures([*attempts(True, cost=1.0), *attempts(False, cost=1.0, dataset="other")])
    rows = {(row["dataset"], row["figure"]) for row in model_rows("m", parts, SETTINGS)}
    assert ("all", "cost") in rows and ("all", "cost_of_pass") not in rows


def test_cost_is_that_of_tokens_and_calls() -> None:
    rollout = scored(tokens=2_000, tools=(ToolCalls("search", 5, 4, 1), ToolCalls("python", 2, 2, 0)))
    prices = TokenPrices(prompt_per_million=1.0, completion_per_million=10.0)
    assert rollout_cost(rollout, prices, {"search": 0.005}) == pytest.approx(0.001 + 0.02 + 0.02)
    assert rollout_cost(rollout, None, {"search": 0.005}) is None
    assert rollout_cost(scored(prompt_tokens=0, completion_tokens=0), prices, {}) is None


@pytest.mark.parametrize(
    ("answers", "right", "value"),
    [
        ([1, 1, 2, 3], {1}, 1.0),
        ([2, 2, 1, 3], {1}, 0.0),
        ([1, 1, 2, 2], {1}, 0.5),
        ([1, 0, 0, 0], {1}, 1.0),
        ([0, 0, 0, 0], set(), 0.0),
    ],
)
def test_majority_of_the_answers_decides(answers: list[int], right: set[int], value: float) -> None:
    """0 stands for no answer, which does not vote."""
    rollouts = [
        scored(float(one in right), question_key="q", sample_index=number, answer=one, is_valid_answer=one > 0)
        for number, one in enumerate(answers)
    ]
    random.Random(0).shuffle(rollouts)
    assert figures(rollouts)["maj@4"]["value"] == value


def test_equal_answers_are_recognised_in_rows_of_scores() -> None:
    """In math, a point and a minus are no punctuation."""
    row = {name: getattr(scored(), name) for name in ScoredRollout.__dataclass_fields__}
    row |= {"tools": [], "parts": [], "votes_yes": None, "judges": "{}"}

    def answer(text: str, domain: str) -> int:
        return ScoredRollout.from_row({**row, "prediction": text, "domain": domain}).answer

    assert answer("The Ilme.", "qa") == answer("ilme", "qa") != answer("Arn", "qa")
    assert answer("1.5", "math") == answer(" 1.5 ", "math") != answer("15", "math")
    assert answer("-4", "math") != answer("4", "math")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_best_of_k_is_the_mean_over_all_draws(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    draws = [max(draw) for draw in combinations(values, k)]
    assert expected_best(values, k) == pytest.approx(math.fsum(draws) / len(draws))


def test_best_and_worst_of_graded_answers() -> None:
    rollouts = [scored(value, question_key="q", sample_index=n) for n, value in enumerate((0.0, 0.5, 1.0))]
    rows = figures(rollouts)
    assert (rows["best@3"]["value"], rows["worst@3"]["value"]) == (1.0, 0.0)
    assert rows["best@2"]["value"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert rows["worst@2"]["value"] == pytest.approx((0 + 0 + 0.5) / 3)
    assert "best@2" not in figures(attempts(True, False))


def test_deviation_is_that_within_questions() -> None:
    """As trainers report it: questions that are always right, or never, have none."""
    rollouts = [*attempts(True, False, key="a"), *attempts(True, True, key="b"), *attempts(False, False, key="c")]
    assert figures(rollouts)["std@2"]["value"] == pytest.approx(0.5 / 3)


def test_amounts_per_right_answer() -> None:
    rows = figures([scored(1.0, 2, tokens=100, question_key="a"), scored(0.0, 4, tokens=300, question_key="b")])
    assert (rows["calls_of_pass"]["value"], rows["tokens_of_pass"]["value"]) == (6.0, 400.0)
