"""Conciseness from a judge's votes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables.scored_rollouts import averages, scored

from treadle.eval.dataset_figures import DatasetFigures, dataset_figures
from treadle.eval.scored_rollout import ScoredRollout, Votes, is_redundant

COUNTS = st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10), st.integers(0, 3))


def voted(yes: int, no: int, abstained: int = 0, calls: int = 1, **columns: object) -> ScoredRollout:
    return scored(1, calls, votes=Votes(yes, no, abstained), **columns)


def shares(*rollouts: ScoredRollout) -> tuple[float | None, float | None, int]:
    """Over all, over users of tools, and how many are undecided."""
    (part,) = dataset_figures(rollouts)
    return (
        part.sums["conciseness"].value,
        part.sums["conciseness_tool_users"].value,
        part.sums["conciseness_tool_users"].num_undecided,
    )


@pytest.mark.covers("evaluation-9")
def test_worked_conciseness_example() -> None:
    assert shares(voted(6, 4), voted(5, 5), voted(0, 0, 10), voted(1, 0, 9)) == (0.0, 0.0, 3)


@pytest.mark.parametrize(
    ("votes", "redundant"),
    [
        (Votes(6, 4, 0), True),
        (Votes(4, 6, 0), False),
        (Votes(6, 0, 4), True),
        (Votes(0, 6, 4), False),
        (Votes(5, 0, 5), None),
        (Votes(5, 4, 1), None),
        (Votes(2, 1, 0), True),
        (Votes(1, 1, 1), None),
        (Votes(0, 0, 0), None),
    ],
)
def test_majority_is_of_all_requested_votes(votes: Votes, redundant: bool | None) -> None:
    assert is_redundant(votes) is redundant


def test_rollouts_without_calls_are_concise_and_counted_separately() -> None:
    rollouts = [voted(0, 0, calls=0), voted(10, 0, calls=0), voted(10, 0), voted(0, 10), voted(10, 0)]
    assert shares(*rollouts) == (3 / 5, pytest.approx(1 / 3), 0)


def test_agent_without_calls_has_no_share_among_tool_users() -> None:
    assert shares(voted(0, 0, calls=0)) == (1.0, None, 0)
    assert shares(voted(5, 5)) == (None, None, 1)


def test_judge_without_readable_votes_gives_no_conciseness() -> None:
    """The ten that made no call are concise; of the ninety that did nothing is known."""
    silent = [voted(0, 0, calls=0)] * 10 + [voted(0, 0, 10)] * 90
    assert shares(*silent) == (None, None, 90)
    (part,) = dataset_figures(silent)
    assert part.sums["conciseness"].num_undecided == 100
    assert shares(*silent, voted(0, 10)) == (1.0, 1.0, 90)


def test_without_a_judge_no_rollout_is_concise() -> None:
    assert shares(scored(1, 0), scored(1, 2)) == (None, None, 1)


@pytest.mark.covers("evaluation-13")
@given(st.lists(COUNTS, min_size=1, max_size=20))
def test_shares_are_bounded_and_independent_of_order(counts: list[tuple[int, int, int, int]]) -> None:
    rollouts = [voted(*count) for count in counts]
    whole, users, num_undecided = shares(*rollouts)
    assert (whole, users, num_undecided) == shares(*rollouts[::-1])
    for share in (whole, users):
        assert share is None or 0 <= share <= 1
    concise = sum(1 for yes, no, lost, calls in counts if calls == 0 or no > (yes + no + lost) / 2)
    assert whole is None or whole == concise / (len(rollouts) - num_undecided)


def published(dataset: str, share: float, calls: int) -> list[DatasetFigures]:
    num_concise = round(1_000 * share)
    return dataset_figures(
        [voted(0, 10, calls=calls, dataset=dataset)] * num_concise
        + [voted(10, 0, calls=1, dataset=dataset)] * (1_000 - num_concise)
    )


def test_average_reproduces_the_published_row() -> None:
    row = [53.3, 65.0, 84.6, 62.0, 58.4, 18.5]
    parts = [part for place, value in enumerate(row) for part in published(f"d{place}", value / 100, 1)]
    means = averages(parts)["all"]
    assert means["conciseness"] is not None and round(100 * means["conciseness"], 1) == 57.0
    assert means["conciseness_tool_users"] == means["conciseness"]


def test_average_needs_every_dataset() -> None:
    means = averages(published("a", 0.5, 1) + dataset_figures([voted(0, 0, calls=0, dataset="b")]))["all"]
    assert (means["conciseness"], means["conciseness_tool_users"]) == (0.75, None)
