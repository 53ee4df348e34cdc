"""Accuracy by the length of responses, and how lengths are spread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.scored_rollouts import scored

from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.figures.response_lengths import BUCKETS, QUARTERS, by_length, response_quantiles
from treadle.report.groups import group_rows, group_tables
from treadle.report.summary import model_rows

SETTINGS = ReportSettings(bootstrap_samples=100)


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [(0, "<50"), (49, "<50"), (50, "50-199"), (199, "50-199"), (200, "200-499"), (499, "200-499"), (500, ">=500")],
)
def test_bounds_of_buckets(tokens: int, bucket: str) -> None:
    other = scored(tokens=5_000 if tokens < 500 else 1)
    groups = by_length([scored(tokens=tokens), other])[BUCKETS]
    assert [one.reasoning_tokens for one in groups[bucket]] == [tokens]


def test_quarters_are_named_by_their_numbers() -> None:
    groups = by_length([scored(tokens=tokens) for tokens in (10, 20, 30, 40, 50, 60, 70, 80)])[QUARTERS]
    assert list(groups) == ["1 (10 to 20)", "2 (30 to 40)", "3 (50 to 60)", "4 (70 to 80)"]


@given(st.lists(st.integers(0, 900), max_size=30))
def test_each_rollout_is_in_one_group_and_equal_ones_in_the_same(tokens: list[int]) -> None:
    for groups in by_length([scored(tokens=one) for one in tokens]).values():
        found = [[one.response_tokens for one in group] for group in groups.values()]
        assert sorted(sum(found, [])) == sorted(tokens)
        assert len({one for group in found for one in group}) == sum(len(set(group)) for group in found)
        assert sum(found, []) == sorted(tokens)


def test_sampled_tokens_stand_in_without_a_tokenizer() -> None:
    """Services behind the chat route report numbers of tokens, but no ids."""
    rollouts = [scored(reasoning_tokens=None, completion_tokens=tokens) for tokens in (10, 300)]
    assert list(by_length(rollouts)[BUCKETS]) == ["<50", "200-499"]
    unknown = scored(reasoning_tokens=None, prompt_tokens=0, completion_tokens=0)
    assert by_length([unknown, unknown]) == {} and response_quantiles([unknown]) == {}


def test_rollouts_that_infrastructure_ended_are_not_short_responses() -> None:
    lost, own = scored(tokens=0, status="failed"), scored(tokens=300)
    assert by_length([lost, own]) == {} and response_quantiles([lost, own])["response_tokens:p25"] == 300


def test_quantiles_are_figures_of_data_sets_and_not_of_averages() -> None:
    rollouts = [scored(tokens=tokens, question_key=f"q{tokens}") for tokens in range(1, 102)]
    rows = {
        (row["dataset"], row["figure"]): row
        for row in model_rows("m", dataset_figures([*rollouts, scored(dataset="other")]), SETTINGS)
    }
    values = [rows["world", f"response_tokens:{name}"]["value"] for name in ("p25", "p50", "p75", "p90", "p95")]
    assert values == pytest.approx([26, 51, 76, 91, 96])
    assert rows["other", "response_tokens:p90"]["value"] == 100
    assert ("all", "response_tokens:p50") not in rows


def test_accuracy_by_length_is_a_table_with_the_shortest_first() -> None:
    rollouts = [
        scored(float(tokens < 100), tokens=tokens, question_key=f"q{tokens}") for tokens in (700, 20, 40, 120, 300)
    ]
    assert len(list(group_tables(group_rows("m", rollouts, {}, SETTINGS)))) == 1  # too few for quarters
    rollouts = rollouts * 2
    buckets, quarters = group_tables(group_rows("m", rollouts, {}, SETTINGS))
    assert [row[0] for row in buckets.rows] == ["<50", "50-199", "200-499", ">=500"]
    place = next(n for n, head in enumerate(buckets.header) if head.startswith("accuracy"))
    assert [str(row[place])[:5] for row in buckets.rows] == ["1.000", "0.000", "0.000", "0.000"]
    assert [str(row[0])[0] for row in quarters.rows] == ["1", "2", "3", "4"]
