"""Rows of the table `summary`: the interval of each metric, and which averages are included."""

from __future__ import annotations

import pytest
from support.tables.scored_rollouts import scored

from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.scored_rollout import ScoredRollout, Votes
from treadle.eval.statistics import Interval
from treadle.report.comparison_rows import comparison_rows
from treadle.report.summary import figure_interval, model_rows, shown_averages

SETTINGS = ReportSettings(bootstrap_samples=200)


def interval(name: str, *rollouts: ScoredRollout) -> Interval | None:
    (part,) = dataset_figures(rollouts)
    return figure_interval(part.sums[name], name, SETTINGS)


def test_interval_method_depends_on_the_values() -> None:
    """One right answer of 30, as a bootstrap would have it, might be none at all."""
    rows = [scored(float(place == 0), place % 3, place % 2, tokens=place + 1, question_key=f"q{place}")
            for place in range(30)]  # fmt: skip
    share = interval("score", *rows)
    assert share is not None and share.method == "wilson"
    assert (round(share.low, 3), round(share.high, 3)) == (0.006, 0.167)
    methods = {name: found.method for name in ("tool_use", "efficiency", "reasoning_tokens", "call_success")
               if (found := interval(name, *rows))}  # fmt: skip
    assert methods == {
        "tool_use": "wilson",
        "efficiency": "wilson",
        "reasoning_tokens": "bootstrap",
        "call_success": "bootstrap",
    }
    partly = interval("f1", *(scored(place / 30, question_key=f"q{place}") for place in range(30)))
    assert partly is not None and partly.method == "bootstrap" and 0 < partly.low < partly.mean < partly.high < 1
    twice = interval("score", *rows, *rows)
    assert twice is not None and twice.method == "clustered"


def test_conciseness_has_an_interval() -> None:
    votes = [Votes(0, 10, 0)] * 14 + [Votes(10, 0, 0)] * 16
    found = interval("conciseness", *(scored(1, 1, votes=vote, question_key=f"q{n}") for n, vote in enumerate(votes)))
    assert found is not None
    assert (found.method, round(found.low, 3), round(found.high, 3)) == ("wilson", 0.302, 0.639)


def test_rollouts_without_a_call_do_not_count_for_call_metrics() -> None:
    """One concise rollout with a call among 99 without is one trial; a further one without changes nothing."""
    concise, wasteful, idle = Votes(0, 10, 0), Votes(10, 0, 0), Votes(0, 0, 0)
    lone = [scored(1, 1, votes=concise, question_key="q"), *(scored(1, 0, votes=idle, question_key=f"q{n}")
            for n in range(99))]  # fmt: skip
    for name in ("conciseness_tool_users", "call_success"):
        found = interval(name, *lone)
        assert found is not None and (found.mean, found.method, round(found.low, 3)) == (1.0, "wilson", 0.207)
    users = [scored(1, 1, votes=wasteful if n else concise, question_key=f"q{n}") for n in range(30)]
    with_idle = [*users, scored(1, 0, votes=idle, question_key="idle")]
    found = interval("conciseness_tool_users", *with_idle)
    assert found is not None and found == interval("conciseness_tool_users", *users)
    assert (found.method, round(found.high, 3)) == ("wilson", 0.167)


def test_efficiency_without_a_call_is_none() -> None:
    """The average over a data set with calls and one without is still one."""
    rollouts = [scored(1, 0, dataset="a", question_key="q"), scored(1, 2, dataset="b", question_key="q")]
    rows = {(row["dataset"], row["figure"]): row for row in model_rows("m", dataset_figures(rollouts), SETTINGS)}
    values = {name: rows[name, "efficiency"]["value"] for name in ("a", "b", "all")}
    assert values == {"a": None, "b": 0.5, "all": 0.75}
    assert rows["a", "efficiency"]["low"] is None and rows["a", "score"]["value"] == 1
    models = {
        "direct": [scored(1, 0), scored(0, 0, question_key="r")],
        "calls": [scored(1, 2), scored(0, 1, question_key="r")],
    }
    compared = {row["figure"] for row in comparison_rows(models, SETTINGS)}
    assert "efficiency" not in compared and "calls_requested" in compared


def test_metric_without_a_value_has_empty_cells_and_infinite_bounds_are_none() -> None:
    rows = {row["figure"]: row for row in model_rows("m", dataset_figures([scored(None, tokens=7)]), SETTINGS)}
    score, length = rows["score"], rows["reasoning_tokens"]
    assert (score["value"], score["low"], score["method"], score["num_undecided"]) == (None, None, None, 1)
    assert (length["value"], length["low"], length["high"], length["method"]) == (7, None, None, "unknown")
    assert rows["status:answered"]["value"] == 1 and rows["status:answered"]["low"] is None


def test_redundant_averages_are_omitted() -> None:
    def shown(*datasets: tuple[str, str], headline: tuple[str, ...] = ()) -> dict[str, list[str]]:
        parts = dataset_figures([scored(1, dataset=name, domain=domain) for name, domain in datasets])
        return shown_averages({part.dataset: part.area for part in parts}, headline)

    a, b, c = ("a", "math"), ("b", "math"), ("c", "qa")
    assert shown(a) == {}
    assert shown(a, b) == {"all": ["a", "b"]}
    assert shown(a, b, c) == {"all": ["a", "b", "c"], "math": ["a", "b"]}
    assert shown(a, b, c, headline=("b", "c")) == {"all": ["b", "c"], "every": ["a", "b", "c"]}
    assert shown(a, b, c, headline=("b",)) == {"all": ["b"], "every": ["a", "b", "c"]}


@pytest.mark.covers("evaluation-12")
def test_average_has_the_unweighted_mean_and_a_combined_interval() -> None:
    rollouts = [scored(1, dataset="a", question_key=f"q{n}") for n in range(90)]
    rollouts += [scored(0, dataset="b", question_key=f"q{n}") for n in range(10)]
    rows = {(row["dataset"], row["figure"]): row for row in model_rows("m", dataset_figures(rollouts), SETTINGS)}
    whole = rows["all", "score"]
    assert (whole["value"], whole["method"], whole["num_questions"]) == (0.5, "combined", 100)
    assert rows["all", "status:answered"]["value"] == 100
