"""Figures of scored rollouts per data set, and their averages."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.scored_rollouts import averages, rollouts, scored

from treadle.environments.planning.figures import PlanFigures
from treadle.environments.planning.parts import PARTS, is_planning
from treadle.eval.averages import average_groups
from treadle.eval.dataset_figures import DatasetFigures, dataset_figures, figure_sums
from treadle.eval.figures.attempts import pass_at_ks
from treadle.eval.figures.sums import FigureSums
from treadle.eval.metrics import FIGURES, figures_of, notes_of, reasoning_length, title_of
from treadle.eval.scored_rollout import ScoredRollout

SUITE = ("aime24", "amc23", "math500", "2wiki", "bamboogle", "musique")


def one(*given_rollouts: ScoredRollout) -> DatasetFigures:
    (figures,) = dataset_figures(given_rollouts)
    return figures


def values_of(figures: DatasetFigures) -> dict[str, float | None]:
    return {name: sums.value for name, sums in figures.sums.items()}


def published(
    name: str, values: list[float], rows: tuple[int, ...] = (30, 40, 500, 500, 125, 500)
) -> list[DatasetFigures]:
    """One figure of the six benchmarks, from per cent, with their numbers of rows."""
    empty = one(scored(1, 1))
    return [
        replace(
            empty,
            dataset=dataset,
            area="math" if index < 3 else "knowledge",
            num_rollouts=size,
            sums={**empty.sums, name: FigureSums({"q": (value / 100, 1.0)}, False, 0)},
        )
        for index, (dataset, value, size) in enumerate(zip(SUITE, values, rows, strict=True))
    ]


@pytest.mark.covers("evaluation-7")
def test_efficiency_is_a_mean_of_ratios() -> None:
    figures = one(scored(1, 0), scored(1, 2), scored(0.5, 1), scored(0, 3))
    assert figures.sums["efficiency"].value == 0.5
    assert (figures.sums["tool_use"].value, figures.sums["calls_requested"].value, figures.sums["score"].value) == (
        0.75,
        1.5,
        0.625,
    )


@pytest.mark.covers("evaluation-8")
def test_refused_calls_count_for_efficiency_and_are_not_failures() -> None:
    """Two calls that ran and one that was refused are three requests."""
    figures = one(scored(1, 3, failed=0, calls_executed=2))
    assert figures.sums["efficiency"].value == pytest.approx(1 / 3)
    assert (figures.sums["successful_execution"].value, figures.sums["call_success"].value) == (1.0, 1.0)


@pytest.mark.covers("evaluation-10")
def test_worked_example_execution_success() -> None:
    figures = one(scored(1, 2, failed=0), scored(1, 3, failed=2), scored(0.5, 1, failed=1))
    assert round(figures.sums["successful_execution"].value, 4) == 0.6667
    assert round(figures.sums["successful_execution_strict"].value, 4) == 0.5278
    assert figures.sums["call_success"].value == 3 / 6


@pytest.mark.covers("evaluation-11")
def test_worked_example_reasoning_length() -> None:
    figures = one(scored(1, tokens=200), scored(0.5, tokens=100), scored(0, tokens=50))
    assert round(figures.sums["reasoning_length"].value, 2) == 3.33
    assert round(figures.sums["reasoning_tokens"].value, 1) == 116.7


def test_empty_output_counts_as_one_token() -> None:
    assert reasoning_length(0.5, 0) == 500


@pytest.mark.covers("evaluation-12")
@pytest.mark.parametrize(
    ("name", "values", "everything", "mathematics", "knowledge"),
    [
        ("score", [46.7, 77.5, 81.6, 67.2, 59.4, 28.0], 60.1, 68.6, 51.5),
        ("efficiency", [43.3, 71.3, 76.1, 35.6, 34.4, 15.3], 46.0, 63.6, 28.4),
    ],
)
def test_averages_reproduce_the_published_rows(
    name: str, values: list[float], everything: float, mathematics: float, knowledge: float
) -> None:
    means = averages(published(name, values))
    assert [round(100 * means[area][name], 1) for area in ("all", "math", "knowledge")] == [
        everything,
        mathematics,
        knowledge,
    ]


@pytest.mark.covers("evaluation-12")
def test_datasets_weigh_equally_regardless_of_size() -> None:
    """By rows the mean would be 79.5."""
    given_rollouts = [
        scored(float(index < right), dataset=dataset, domain="math", question_key=f"{dataset}{index}")
        for dataset, right, size in [("aime24", 14, 30), ("amc23", 31, 40), ("math500", 408, 500)]
        for index in range(size)
    ]
    parts = dataset_figures(given_rollouts)
    assert round(100 * averages(parts)["all"]["accuracy"], 1) == 68.6
    assert round(sum(100 * part.sums["accuracy"].value * part.num_rollouts for part in parts) / 570, 1) == 79.5


PUBLISHED_AVERAGES = [
    ([10.0, 30.0, 57.2, 18.9, 24.5, 8.5], 24.9),
    ([10.0, 37.5, 65.4, 42.9, 48.5, 13.3], 36.3),
    ([23.3, 35.0, 57.8, 49.2, 40.5, 18.6], 37.4),
    ([26.7, 65.0, 72.2, 61.5, 58.4, 17.0], 50.1),
    ([2.9, 23.5, 13.9, 5.3, 6.1, 1.6], 8.9),
    ([40.0, 71.1, 83.8, 35.1, 14.2, 5.8], 41.6),
    ([33.3, 62.5, 72.6, 66.2, 56.9, 30.9], 53.7),
    ([21.3, 46.4, 61.2, 27.8, 29.5, 12.0], 33.1),
    ([25.6, 53.8, 70.0, 29.0, 34.2, 12.6], 37.5),
    ([33.3, 67.5, 72.8, 24.6, 23.0, 9.8], 38.5),
    ([0.17, 0.75, 2.19, 1.49, 2.10, 0.47], 1.20),
    ([1.00, 2.32, 3.60, 3.61, 3.85, 1.49], 2.65),
    ([0.59, 1.23, 2.84, 6.34, 5.62, 1.81], 3.07),
    ([43.3, 70.0, 84.5, 63.2, 54.3, 23.3], 56.4),
]
"""Rows of the tables in arXiv 2601.06860 with the average printed next to them."""


@pytest.mark.parametrize(("values", "average"), PUBLISHED_AVERAGES)
def test_published_averages_are_reproduced(values: list[float], average: float) -> None:
    """Six values and their average, each rounded to the last digit printed."""
    unit = 0.1 if average > 5 else 0.01
    assert 100 * averages(published("score", values))["all"]["score"] == pytest.approx(average, abs=unit)


def test_one_published_average_does_not_match_its_row() -> None:
    """Tool-Star's correctness: the table prints 52.3."""
    assert round(100 * averages(published("score", [33.3, 60.0, 80.4, 65.8, 55.4, 24.5]))["all"]["score"], 1) == 53.2


def test_undecided_and_failed_rollouts_are_counted_separately() -> None:
    figures = one(
        scored(1, question_key="a"),
        scored(None, 5, question_key="b", is_valid_answer=True),
        scored(0, question_key="b", status="failed", is_valid_answer=False),
        scored(0, question_key="c", status="limit", is_valid_answer=False),
    )
    assert (figures.num_rollouts, figures.num_questions) == (4, 3)
    assert (figures.sums["accuracy"].num_undecided, figures.sums["calls_requested"].num_undecided) == (1, 0)
    assert figures.counts == {
        "num_failed": 1,
        "num_valid": 2,
        "scorer:qa_f1": 4,
        "status:answered": 2,
        "status:failed": 1,
        "status:limit": 1,
        "tools_used:none": 3,
        "tools_used:python": 1,
    }
    assert figures.sums["accuracy"].value == pytest.approx(1 / 3)


def test_metrics_without_a_verdict_cover_all_rollouts() -> None:
    """The rollout without a verdict is the long one with six calls, of which three failed."""
    means = values_of(one(scored(1, 0, tokens=100), scored(None, 6, failed=3, tokens=4_000, f1=0.5)))
    assert (means["calls_requested"], means["tool_use"], means["reasoning_tokens"]) == (3, 0.5, 2_050)
    assert (means["call_success"], means["f1"]) == (0.5, 0.75)
    assert (means["score"], means["efficiency"], means["reasoning_length"]) == (1, 1, 10)


def test_dataset_without_verdicts_has_verdict_free_metrics() -> None:
    means = values_of(one(scored(None, 2), scored(None, 4, question_key="q1")))
    of_verdicts = {"score", "accuracy", "efficiency", "reasoning_length"}
    of_verdicts |= {"successful_execution", "successful_execution_strict", "calls_of_pass", "tokens_of_pass"}
    without_judge = {"conciseness", "conciseness_tool_users"}
    assert {name for name, value in means.items() if value is None} == of_verdicts | without_judge
    assert means["calls_requested"] == 3


def test_areas_follow_the_domain() -> None:
    parts = dataset_figures(
        [
            scored(1, dataset="a", domain="math"),
            scored(0, dataset="b", domain="qa"),
            scored(0, dataset="b", domain="choice"),
            scored(0, dataset="c", domain="math"),
            scored(0, dataset="c", domain="choice"),
        ]
    )
    assert [part.area for part in parts] == ["math", "knowledge", "mixed"]
    groups = average_groups({part.dataset: part.area for part in parts})
    assert groups == {"all": ["a", "b", "c"], "math": ["a"], "knowledge": ["b"]}
    assert average_groups({"b": "knowledge"}).keys() == {"all", "knowledge"}


def test_partially_correct_answers_count_for_f1_but_not_accuracy() -> None:
    figures = one(scored(0.9, correct=True), scored(0.5), scored(0.0))
    assert (figures.sums["accuracy"].value, figures.sums["f1"].value) == (pytest.approx(1 / 3), pytest.approx(1.4 / 3))


@pytest.mark.covers("evaluation-13")
@given(st.lists(rollouts(), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_metrics_are_ordered_bounded_and_order_independent(
    given_rollouts: list[ScoredRollout], draw: random.Random
) -> None:
    parts = dataset_figures(given_rollouts)
    for part in parts:
        means = {name: value for name, value in values_of(part).items() if value is not None}
        undecided = part.sums["score"].num_undecided
        if undecided < part.num_rollouts:
            assert means["efficiency"] <= means["score"]
            assert means["successful_execution_strict"] <= means["successful_execution"] <= means["score"]
            assert 0 <= means["reasoning_length"] <= 1_000
        for name, value in means.items():
            low, high = FIGURES[name].bounds or (0, math.inf) if name in FIGURES else (0, 1)
            assert low <= value <= high
        statuses = [count for name, count in part.counts.items() if name.startswith("status:")]
        assert sum(statuses) == part.num_rollouts
    shuffled = draw.sample(given_rollouts, len(given_rollouts))
    assert dataset_figures(shuffled) == parts


def test_row_order_changes_no_bit_of_the_result() -> None:
    rows = [scored(score, question_key="q") for score in (0.1, 0.2, 0.3)]
    # `sum` itself rounds once from Python 3.12 on.
    assert reduce(add, (row.score or 0.0 for row in rows)) != reduce(add, (row.score or 0.0 for row in rows[::-1]))
    assert one(*rows) == one(*rows[::-1])


@given(st.lists(rollouts(datasets=1), min_size=1, max_size=20))
def test_metrics_equal_exact_arithmetic(given_rollouts: list[ScoredRollout]) -> None:
    rows = [replace(rollout, dataset="d") for rollout in given_rollouts if rollout.score is not None]
    if not rows:
        return
    p = [Fraction(rollout.score or 0) for rollout in rows]
    expected = {
        "efficiency": [score / (row.calls_requested or 1) for score, row in zip(p, rows, strict=True)],
        "successful_execution": [
            score if row.failed_calls < 2 else score / row.failed_calls for score, row in zip(p, rows, strict=True)
        ],
        "successful_execution_strict": [score / (1 + row.failed_calls) for score, row in zip(p, rows, strict=True)],
        "reasoning_length": [1_000 * score / (row.reasoning_tokens or 1) for score, row in zip(p, rows, strict=True)],
    }
    means = values_of(one(*rows))
    for name, terms in expected.items():
        assert means[name] == pytest.approx(float(sum(terms) / len(terms)), rel=1e-12)


def test_sums_per_question_reproduce_the_mean() -> None:
    rows = [
        scored(1, 2, question_key="b"),
        scored(1, 0, question_key="a"),
        scored(0.5, 1, question_key="b"),
        scored(None, question_key="c"),
    ]
    sums = figure_sums(rows, "efficiency")
    assert list(sums.questions.items()) == [("a", (1.0, 1)), ("b", (1.0, 2))]
    assert (sums.num_undecided, sums.value, sums.is_binary) == (1, pytest.approx(2 / 3), False)


@pytest.mark.parametrize(
    ("num_each", "ks"), [([1, 3], []), ([2, 2], [2]), ([5, 6], [2, 4, 5]), ([16, 16], [2, 4, 8, 16])]
)
def test_pass_at_k_is_reported_up_to_the_smallest_sample_count(num_each: list[int], ks: list[int]) -> None:
    rows = [scored(question_key=f"q{place}") for place, count in enumerate(num_each) for _ in range(count)]
    assert pass_at_ks(rows) == ks


def test_questions_with_too_few_verdicts_are_excluded_from_pass_at_k() -> None:
    """One of three questions with four rollouts each has only two verdicts."""
    verdicts: dict[str, list[float | None]] = {"a": [1, 0, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1, None, None]}
    rows = [scored(value, question_key=key) for key, values in verdicts.items() for value in values]
    figures = one(*rows)
    assert (figures.sums["pass@2"].value, figures.sums["pass@2"].num_undecided) == (pytest.approx((0.5 + 0 + 1) / 3), 2)
    assert (figures.sums["pass@4"].value, figures.sums["pass@4"].num_undecided) == (0.5, 4)
    assert list(figures.sums["pass@4"].questions) == ["a", "b"]


def test_parts_of_planning_agents_have_titles_and_parts_of_others_their_names() -> None:
    """An environment of a user may mean something else by `steps`."""
    plan = {**PlanFigures(num_steps=2, mean_width=1.5, num_plans=1, num_early_calls=1).parts(), "em": 1.0, "bonus": 3.0}
    planned = figures_of([replace(scored(1, 1), parts=tuple(plan.items()))])
    own = figures_of([replace(scored(1, 1), parts=(("steps", 2.0), ("plans", 1.0)))])
    titles = [title_of(name) for name in planned if name.partition(":")[0] in ("em", "planning", "part")]
    assert titles[:3] == ["exact match", "sequential steps", "calls per step"] and titles[-1] == "bonus"
    assert len(titles) == len(plan) and "early calls" in titles and "early calls" in notes_of(planned)
    assert {"part:plans", "part:steps"} <= set(own) and "sequential steps" not in notes_of(own)
    assert PlanFigures(num_plans=1).parts().keys() == PARTS.keys() and is_planning(PlanFigures().parts())
